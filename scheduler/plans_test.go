package scheduler_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/weir-go/weir/scheduler"
)

// Whatever Postgres knows of the table, and however often a statement has run, jobs are found by
// their ids. By the index of the states, a thousand ids and twenty thousand due jobs were twenty
// million comparisons.
func TestJobsAreFoundByTheirIDs(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	params := slices.Repeat([]river.InsertManyParams{{Args: sendArgs{1}}}, 10_000)
	if _, err := f.client.InsertManyFast(t.Context(), params); err != nil {
		t.Fatal(err)
	}
	conn, err := f.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for _, analyzed := range []bool{false, true} {
		if analyzed {
			if _, err := conn.Exec(t.Context(), `ANALYZE river_job`); err != nil {
				t.Fatal(err)
			}
		}
		for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
			if _, err := conn.Exec(t.Context(), `SET plan_cache_mode = `+mode); err != nil {
				t.Fatal(err)
			}
			for name, sql := range scheduler.ByID {
				sql = strings.ReplaceAll(sql, "{river}", "")
				rows, _ := conn.Query(t.Context(), `EXPLAIN `+sql, []int64{1, 2, 3})
				lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
				if err != nil {
					t.Fatal(name, err)
				}
				plan := strings.Join(lines, "\n")
				if !strings.Contains(plan, "Index Cond: (id = ANY (") {
					t.Errorf("%s, analyzed %v, %s:\n%s", name, analyzed, mode, plan)
				}
			}
		}
	}
}
