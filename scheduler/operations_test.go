package scheduler_test

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

// sqlOf are the statements of docs/operations.md from a text on that is in it.
func sqlOf(t *testing.T, from string) (all []string) {
	t.Helper()
	guide, err := os.ReadFile("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(guide), "\n"+from)
	for {
		_, begun, found := strings.Cut(rest, "```sql\n")
		if !found {
			break
		}
		statement, after, _ := strings.Cut(begun, "```")
		all, rest = append(all, statement), after
	}
	if len(all) == 0 {
		t.Fatalf("docs/operations.md has no SQL below %q", from)
	}
	return all
}

// The queries of the guide to operations count the jobs that are due, tell how late those were that
// are completed, and count those that still wait. Its last statement drops all tables.
func TestTheStatementsOfTheGuideToOperationsDoWhatItSays(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	limit := ratelimit.MustDefine("operations", ratelimit.TokenBucket{Rate: 100, Period: time.Hour})
	jobs := sched.Jobs(f.client) // which works none
	const due = 3
	f.insertTogether(t, jobs, due, limit.For("k"))
	f.reserve(t, jobs, due, time.Hour)
	f.exec(t, `UPDATE river_job SET state = 'available' WHERE state = 'scheduled'`) // ahead of time
	taking := sqlOf(t, "## Taking Weir out\n")
	query := func(sql string, to ...any) {
		t.Helper()
		if err := f.pool.QueryRow(t.Context(), sql).Scan(to...); err != nil {
			t.Fatal(err, sql)
		}
	}
	var queue string
	var n int
	if query(sqlOf(t, "**Queue depth.**")[0], &queue, &n, nil); queue != "default" || n != due {
		t.Errorf("%d jobs are due in queue %s, want %d", n, queue, due)
	}
	if query(taking[0], &n); n != due+1 {
		t.Errorf("%d jobs wait, want %d", n, due+1)
	}

	client := j.client(t, sched)
	j.await(t, due)
	eventually(t, "they are completed", func() bool {
		return f.count(t, `state = 'completed'`) == due
	})
	var late []float64
	if query(sqlOf(t, "**Lateness.**")[0], &queue, &n, &late); n != due || len(late) != 3 ||
		late[0] < 0 || !slices.IsSorted(late) {
		t.Errorf("%d jobs of queue %s were late by %v, want %d", n, queue, late, due)
	}
	if query(taking[0], &n); n != 1 {
		t.Errorf("%d jobs wait, want 1", n)
	}
	if pgtest.Citus() {
		return // it has one table more
	}
	stop(t, client)
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), taking[1]); err != nil {
		t.Fatal(err)
	}
	var left []string
	const sql = `SELECT coalesce(array_agg(tablename::text), '{}') FROM pg_tables
		WHERE schemaname = current_schema() AND tablename LIKE 'weir%'`
	if err := tx.QueryRow(t.Context(), sql).Scan(&left); err != nil || len(left) > 0 {
		t.Errorf("%v are left: %v", left, err)
	}
}
