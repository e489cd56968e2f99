package schema_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

type looked struct {
	value *float64
	ts    *time.Time
	at    time.Time
}

func look(t *testing.T, db querier, function, key string, now *time.Time) looked {
	t.Helper()
	var l looked
	err := db.QueryRow(t.Context(), "SELECT value, ts, at FROM "+function+"('login', $1, 0, $2)", key, now).
		Scan(&l.value, &l.ts, &l.at)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// ten fills the table with ten rows of known balances and tells the planner how few they are.
func ten(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	exec(t, pool, `
		INSERT INTO weir_balance (name, key, value, ts, capacity, rate, period)
		SELECT 'login', 'user ' || i, i, '2024-02-29 12:00:00Z', 10, 10, 1000000 FROM generate_series(1, 10) AS i`)
	exec(t, pool, "ANALYZE weir_balance")
}

func TestLookReturnsOneRowAlways(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	ten(t, pool)
	then := time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC)

	if l := look(t, pool, "weir_look", "user 7", nil); l.value == nil || *l.value != 7 || l.ts == nil || !l.ts.Equal(then) {
		t.Errorf("an existing key: %v, %v", l.value, l.ts)
	}
	if l := look(t, pool, "weir_look", "nobody", nil); l.value != nil || l.ts != nil || l.at.IsZero() {
		t.Errorf("a missing key: %v, %v, %v; want nulls and the clock", l.value, l.ts, l.at)
	}
}

func TestLookReadsTheClockAnewUnlessTold(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	tx := begin(t, pool, pgx.ReadCommitted)

	start := scan[time.Time](t, tx, "SELECT now()")
	first := look(t, tx, "weir_look", "k", nil).at
	second := look(t, tx, "weir_look", "k", nil).at
	if !first.After(start) || !second.After(first) {
		t.Errorf("the transaction began at %v; looks at %v and %v", start, first, second)
	}
	then := time.Date(2001, 2, 3, 4, 5, 6, 789000, time.UTC)
	if at := look(t, tx, "weir_look", "k", &then).at; !at.Equal(then) {
		t.Errorf("at = %v; want the clock that was given, %v", at, then)
	}
}

// The planner reads a table of ten rows by a sequential scan, and that locks the whole table against SERIALIZABLE writers.
// A plain query shows that the planner would.
func TestLookTakesNoPredicateLockOnTheWholeTable(t *testing.T) {
	t.Parallel()
	pool := migrated(t)
	ten(t, pool)
	const relationLocks = `
		SELECT count(*) FROM pg_locks
		WHERE pid = pg_backend_pid() AND mode = 'SIReadLock' AND locktype = 'relation' AND relation = 'weir_balance'::regclass`

	for _, test := range []struct {
		name, sql string
		locks     int
	}{
		{"weir_look", "SELECT value FROM weir_look('login', '%s', 0, NULL)", 0},
		{"plain query", "SELECT value FROM weir_balance WHERE name = 'login' AND key = '%s' AND shard = 0", 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			tx := begin(t, pool, pgx.Serializable)
			for i := 1; i <= 10; i++ { // more often than plpgsql needs to change to a generic plan
				exec(t, tx, fmt.Sprintf(test.sql, fmt.Sprint("user ", i)))
			}
			if n := scan[int](t, tx, relationLocks); n != test.locks {
				t.Errorf("%d relation locks; want %d", n, test.locks)
			}
		})
	}
}

func TestLookFindsItsTableWhateverTheSearchPath(t *testing.T) {
	t.Parallel()
	pool, other := migrated(t), migrated(t)
	ten(t, pool)
	function := quote(scan[string](t, pool, "SELECT current_schema()"), "weir_look")

	for _, path := range []string{"", scan[string](t, other, "SELECT current_schema()")} {
		conn := connect(t, pool, setting("search_path", path))
		if l := look(t, conn, function, "user 7", nil); l.value == nil || *l.value != 7 {
			t.Errorf("search_path %q: value %v; want 7", path, l.value)
		}
	}
}
