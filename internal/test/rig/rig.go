// Package rig is what the tests of folder integration have in common: each way of calling the
// library behind one interface, rules drawn at random, and small helpers. A helper that is given a
// test fails it if something goes wrong.
package rig

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/weirtest"
)

// Noon is a time for a clock to stand at.
var Noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// Clock is a clock that stands at Noon until it is set.
func Clock() *weirtest.Clock { return weirtest.NewClock(Noon) }

// Exec runs a statement.
func Exec(t testing.TB, pool *pgxpool.Pool, sql string) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

// Begin begins a transaction that is rolled back when the test ends.
func Begin(t testing.TB, pool *pgxpool.Pool, level pgx.TxIsoLevel) pgx.Tx {
	t.Helper()
	tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// IsWaitedFor reports whether another session waits for a transaction.
func IsWaitedFor(t testing.TB, pool *pgxpool.Pool, tx pgx.Tx) (waits bool) {
	t.Helper()
	// the blockers of those that wait only: they take long to find
	if err := pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
		WHERE wait_event_type = 'Lock' AND $1 = ANY (pg_blocking_pids(pid)))`,
		tx.Conn().PgConn().PID()).Scan(&waits); err != nil {
		t.Fatal(err)
	}
	return waits
}

// Commit commits it.
func Commit(t testing.TB, tx pgx.Tx) {
	t.Helper()
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// SQLState is the state of an error of Postgres, and empty for any other.
func SQLState(err error) string {
	var e *pgconn.PgError
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// Take takes what there must be.
func Take(t testing.TB, v Verbs, r ratelimit.Request) {
	t.Helper()
	if res, err := v.RateLimit(t.Context(), r); err != nil || !res.OK {
		t.Fatalf("got %+v and %v, want granted", res, err)
	}
}

// Apart returns two keys, the lesser one first. On a cluster their rows are on different nodes.
func Apart(t testing.TB, pool *pgxpool.Pool) (first, second string) {
	t.Helper()
	if !pgtest.Citus() {
		return "1", "2"
	}
	const find = `SELECT groupid FROM pg_dist_placement
		WHERE shardid = get_shard_id_for_distribution_column('weir_balance', $1::text)`
	node := func(key string) (id int) {
		if err := pool.QueryRow(t.Context(), find, key).Scan(&id); err != nil {
			t.Fatal(err)
		}
		return id
	}
	for i := 2; i < 10; i++ {
		if second = strconv.Itoa(i); node(second) != node("1") {
			return "1", second
		}
	}
	t.Fatal("the rows of the keys 1 to 9 are on one node: want a cluster with two workers")
	return "", ""
}

// Tolerance is how many tokens the answer may be off.
const Tolerance = 1e-6

// Near reports whether two numbers of tokens are the same, up to Tolerance.
func Near(a, b float64) bool { return math.Abs(a-b) <= Tolerance }

// Rounds bounds the work of tests that draw at random: n rounds, or as many as fit into
// WEIR_TEST_DURATION.
func Rounds(t testing.TB, n int) func(yield func(int) bool) {
	t.Helper()
	v := os.Getenv("WEIR_TEST_DURATION")
	var most time.Duration
	if v != "" {
		var err error
		if most, err = time.ParseDuration(v); err != nil {
			t.Fatalf("WEIR_TEST_DURATION is %q: %v", v, err)
		}
	}
	return func(yield func(int) bool) {
		began := time.Now()
		for i := 0; i < n || time.Since(began) < most; i++ {
			if t.Failed() || !yield(i) {
				return
			}
		}
	}
}

// Show writes down what a Result says.
func Show(r ratelimit.Result) string {
	var s strings.Builder
	when := func(t time.Time) string {
		if t.IsZero() {
			return "-"
		}
		return t.UTC().Format("02T15:04:05.000000")
	}
	fmt.Fprintf(&s, "ok %v at %s run %s retry %s by %s/%s", r.OK, when(r.At), when(r.RunAt),
		when(r.RetryAt), r.Limit, r.Key)
	for _, o := range r.Outcomes {
		fmt.Fprintf(&s, "\n  %s/%s ok %v value %v period %v run %s paced %s retry %s delay %v",
			o.Limit, o.Key, o.OK, o.Value, o.Period, when(o.RunAt), when(o.PacedAt), when(o.RetryAt), o.Delay)
	}
	return s.String()
}

// Granted is the error of a call, or that of its denial.
func Granted(res ratelimit.Result, err error) error {
	if err != nil {
		return err
	}
	return res.Err()
}

// Large is for a test that keeps the processors busy for many seconds: it runs only where
// WEIR_TEST_DURATION is set, as by make test/stress.
func Large(t testing.TB) {
	t.Helper()
	if os.Getenv("WEIR_TEST_DURATION") == "" {
		t.Skip("too large for make test: make test/stress runs it")
	}
}

// FewChecks is for TestMain: where nobody asks for more, a property draws a quarter of the hundred
// cases that are usual, as each is many statements.
func FewChecks() {
	if os.Getenv("WEIR_TEST_DURATION") == "" {
		if err := flag.Set("rapid.checks", "25"); err != nil { // -rapid.checks overrides it
			panic(err)
		}
	}
}
