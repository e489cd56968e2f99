package schema_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// The planner reads a table of few pages by a sequential scan, and that locks the whole table
// against SERIALIZABLE writers. Here there are ten rows, and the planner knows it, before and after
// a vacuum that would cut empty pages off.
func TestATableOfFewRowsIsReadByItsIndex(t *testing.T) {
	t.Parallel()
	const relationLocks = `
		SELECT count(*) FROM pg_locks
		WHERE pid = pg_backend_pid() AND mode = 'SIReadLock' AND locktype = 'relation' AND relation = '%s'::regclass`
	for _, maintenance := range []string{"ANALYZE weir_balance", "VACUUM (ANALYZE) weir_balance"} {
		t.Run(maintenance, func(t *testing.T) {
			t.Parallel()
			pool := migrated(t)
			exec(t, pool, `
				INSERT INTO weir_balance (name, key, value, ts, capacity, rate, period)
				SELECT 'login', 'user ' || i, i, '2024-02-29 12:00:00Z', 10, 10, 1000000 FROM generate_series(1, 10) AS i`)
			exec(t, pool, "CREATE TABLE small (LIKE weir_balance INCLUDING ALL)") // without the empty pages
			exec(t, pool, "INSERT INTO small SELECT * FROM weir_balance")
			exec(t, pool, maintenance)
			exec(t, pool, strings.ReplaceAll(maintenance, "weir_balance", "small"))
			for table, want := range map[string]int{"weir_balance": 0, "small": 1} {
				tx := begin(t, pool, pgx.Serializable)
				for i := 1; i <= 10; i++ {
					exec(
						t, tx,
						fmt.Sprintf("SELECT value FROM %s WHERE name = 'login' AND key = 'user %d' AND shard = 0",
							table, i),
					)
				}
				if n := scan[int](t, tx, fmt.Sprintf(relationLocks, table)); n != want {
					t.Errorf("%s: %d relation locks; want %d", table, n, want)
				}
			}
		})
	}
}

func TestAFreshTableHasNoRows(t *testing.T) {
	t.Parallel()
	if n := scan[int](t, migrated(t), "SELECT count(*) FROM weir_balance"); n != 0 {
		t.Errorf("%d", n)
	}
}
