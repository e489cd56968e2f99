package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// A flood of denials is the day on which a limiter must be cheap: once a process has seen a key
// denied, it finds out that it still is without a write and without a lock.
func TestAnExpectedDenialWritesNothingAndLocksNothing(t *testing.T) {
	t.Parallel()
	limit := ratelimit.MustDefine("flood", ratelimit.TokenBucket{Rate: 1, Period: rig.Never})
	roomy := ratelimit.MustDefine("roomy", ratelimit.TokenBucket{Rate: 100, Period: rig.Never})
	for _, level := range rig.Levels {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
			a := l.Autocommit(pool)
			for range 2 { // a grant, and the denial that makes it known
				if _, err := a.RateLimit(t.Context(), limit.For("k")); err != nil {
					t.Fatal(err)
				}
			}
			tx := rig.Begin(t, pool, level)
			for range 3 {
				res, err := l.RateLimit(t.Context(), tx, limit.For("k"), roomy.For("never used"))
				if err != nil || res.OK {
					t.Fatal(res, err)
				}
			}
			var wrote bool
			if err := tx.QueryRow(t.Context(),
				`SELECT pg_current_xact_id_if_assigned() IS NOT NULL`).Scan(&wrote); err != nil {
				t.Fatal(err)
			}
			if wrote {
				t.Error("the transaction was given an id: something was written or locked")
			}
			if locked(t, pool, "k") {
				t.Error("the row is locked")
			}
			var rows int
			if err := tx.QueryRow(t.Context(),
				`SELECT count(*) FROM weir_balance WHERE name = 'roomy'`).Scan(&rows); err != nil ||
				rows != 0 {
				t.Errorf("%d rows (%v) of the limit that was not taken from", rows, err)
			}
		})
	}
}

// What a process remembers of denials only chooses the first statement: a reset by another process
// is seen at once.
func TestARememberedDenialDoesNotOutliveAReset(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	here, elsewhere := rig.Limiter(t, ratelimit.Config{}).Autocommit(pool), rig.Limiter(t, ratelimit.Config{}).Autocommit(pool)
	limit := ratelimit.MustDefine("reset", ratelimit.TokenBucket{Rate: 1, Period: rig.Never})
	for _, want := range []bool{true, false, false} {
		if res, err := here.RateLimit(t.Context(), limit.For("k")); err != nil || res.OK != want {
			t.Fatal(res, err)
		}
	}
	if err := elsewhere.ResetRateLimit(t.Context(), limit.For("k")); err != nil {
		t.Fatal(err)
	}
	for _, want := range []bool{true, false} { // and it is taken, not only promised
		if res, err := here.RateLimit(t.Context(), limit.For("k")); err != nil || res.OK != want {
			t.Fatal(res, err)
		}
	}
}

// In a table of few rows the planner prefers a sequential scan, under SERIALIZABLE a predicate lock
// on the whole relation: unrelated keys would abort each other six times a commit.
func TestUnrelatedKeysDoNotAbortEachOther(t *testing.T) {
	t.Parallel()
	limit := ratelimit.MustDefine("unrelated", ratelimit.TokenBucket{Rate: 1000, Period: rig.Never})
	for _, c := range []struct {
		name    string
		prepare string
		keys    int
	}{
		{"AnalysedWhileSmall", `INSERT INTO weir_balance (value, ts, capacity, rate, period, name, key)
			SELECT 1000, now(), 1000, 1000, 1000000, 'unrelated', i::text FROM generate_series(1, 200) i; ANALYZE weir_balance`,
			200},
		{"AnalysedWhileEmpty", `ANALYZE weir_balance`, 200},
		{"NewKeys", ``, 1_000_000},
	} {
		for _, check := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/CheckFirst=%v", c.name, check), func(t *testing.T) {
				t.Parallel()
				pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
				if c.prepare != "" {
					rig.Exec(t, pool, c.prepare)
				}
				var commits, runs atomic.Int64
				var wg sync.WaitGroup
				for caller := range 8 {
					wg.Go(func() {
						for range 50 {
							// no two callers share a key
							r := limit.For(fmt.Sprint(rand.IntN(c.keys/8)*8 + caller + 1))
							err := l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
								runs.Add(1)
								if check {
									if _, err := l.CheckRateLimit(ctx, tx, r); err != nil {
										return err
									}
								}
								if _, err := l.RateLimit(ctx, tx, r); err != nil {
									return err
								}
								_, err := tx.Exec(ctx, `SELECT pg_sleep(0.001)`)
								return err
							})
							if err != nil {
								t.Error(err)
								return
							}
							commits.Add(1)
						}
					})
				}
				wg.Wait()
				aborts := float64(runs.Load()-commits.Load()) / float64(commits.Load())
				t.Logf("%.3f aborts a commit", aborts)
				// New keys whose absence was read first do share index pages; locks on the whole
				// relation give 3 to 6.
				if most := 1.5; aborts > most {
					t.Errorf("%.2f aborts a commit among unrelated keys, want at most %v", aborts, most)
				}
			})
		}
	}
}

func TestGrantsLeaveNoPredicateLockAndChecksNoneOnTheWholeTable(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it watches the locks of one server")
	limit := ratelimit.MustDefine("locks", ratelimit.TokenBucket{Rate: 1000, Period: rig.Never})
	pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
	for i := range 10 {
		if _, err := l.Autocommit(pool).RateLimit(t.Context(), limit.For(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	rig.Exec(t, pool, `ANALYZE weir_balance`)

	// predicateLocks are those that the transaction holds on the table and its index: how many, and
	// on the relation whole.
	predicateLocks := func(tx pgx.Tx) (n, whole int) {
		t.Helper()
		err := tx.QueryRow(t.Context(), `SELECT count(*), count(*) FILTER (WHERE locktype = 'relation') FROM pg_locks
			WHERE mode = 'SIReadLock' AND pid = pg_backend_pid()
			AND relation IN ('weir_balance'::regclass, 'weir_balance_pkey'::regclass)`).Scan(&n, &whole)
		if err != nil {
			t.Fatal(err)
		}
		return n, whole
	}

	taken := rig.Begin(t, pool, pgx.Serializable)
	if res, err := l.RateLimit(t.Context(), taken, limit.For("3"), limit.For("new")); err != nil || !res.OK {
		t.Fatal(res, err)
	}
	if n, _ := predicateLocks(taken); n != 0 {
		t.Errorf("a granted take left %d predicate locks", n)
	}
	checked := rig.Begin(t, pool, pgx.Serializable)
	if _, err := l.CheckRateLimit(t.Context(), checked, limit.For("4"), limit.For("none")); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Value(t.Context(), checked, limit.For("5")); err != nil {
		t.Fatal(err)
	}
	if n, whole := predicateLocks(checked); n == 0 || whole != 0 {
		t.Errorf("a check left %d predicate locks, %d of them on the whole relation; want some, and none of those",
			n, whole)
	}
	written := rig.Begin(t, pool, pgx.Serializable)
	res, err := l.RateLimit(t.Context(), written, limit.For("6"))
	if err != nil {
		t.Fatal(err)
	}
	if err := l.GiveBack(t.Context(), written, res); err != nil {
		t.Fatal(err)
	}
	if err := l.ResetRateLimit(t.Context(), written, limit.For("7"), limit.For("8")); err != nil {
		t.Fatal(err)
	}
	if n, _ := predicateLocks(written); n != 0 {
		t.Errorf("giving back and resetting left %d predicate locks", n)
	}
}

// Predicate locks of committed transactions stay for as long as any older SERIALIZABLE transaction
// is open, and when they run out every transaction of the server fails. A denial through InTx is
// rolled back, which frees its locks at once.
func TestDeniedTransactionsLeaveNoPredicateLocksBehind(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it watches the locks of one server")
	pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
	limit := ratelimit.MustDefine("behind", ratelimit.TokenBucket{Rate: 1, Period: rig.Never})

	open := rig.Begin(t, pool, pgx.Serializable)
	if _, err := open.Exec(t.Context(), `SELECT 1 FROM weir_schema`); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		err := l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
			res, err := l.RateLimit(ctx, tx, limit.For(fmt.Sprint(i%5)))
			if err != nil {
				return err
			}
			return res.Err()
		})
		if (i < 5) != (err == nil) || err != nil && !errors.Is(err, ratelimit.ErrDenied) {
			t.Fatal(i, err)
		}
	}
	var n int
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks WHERE mode = 'SIReadLock'
		AND relation IN ('weir_balance'::regclass, 'weir_balance_pkey'::regclass)`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	if n != 0 {
		t.Errorf("95 denials left %d predicate locks", n)
	}
}

// A server whose default is SERIALIZABLE changes nothing for statements that state their level.
func TestAutocommitStatesItsIsolationLevel(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
		c.MaxConns = 16
	})
	a := rig.Limiter(t, ratelimit.Config{}).Autocommit(pool)
	limit := ratelimit.MustDefine("level", ratelimit.TokenBucket{Rate: 100, Period: rig.Never})
	other := ratelimit.MustDefine("level2", ratelimit.TokenBucket{Rate: 1000, Period: rig.Never})
	var granted atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for i := range 10 {
				requests := []ratelimit.Request{limit.For("k")}
				if i%2 == 0 {
					requests = append(requests, other.For("k"))
				}
				res, err := a.RateLimit(t.Context(), requests...)
				if err != nil {
					t.Error(err)
					return
				}
				if res.OK {
					granted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if granted.Load() != 100 {
		t.Errorf("%d granted, want 100", granted.Load())
	}
}

// A pool of one connection is enough for everything: nothing waits for a second while it holds the
// first.
func TestNothingNeedsASecondConnection(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 1 })
	l := rig.Limiter(t, ratelimit.Config{})
	limit := ratelimit.MustDefine("one", ratelimit.TokenBucket{Rate: 2, Period: rig.Never})
	ctx, cancel := context.WithTimeout(t.Context(), hung)
	defer cancel()

	err := l.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
		for range 3 { // the third is denied
			if _, err := l.RateLimit(ctx, tx, limit.For("k"), limit.Global()); err != nil {
				return err
			}
		}
		if _, err := l.CheckRateLimit(ctx, tx, limit.For("k")); err != nil {
			return err
		}
		if err := l.InTx(ctx, pool, func(context.Context, pgx.Tx) error {
			return nil
		}); !errors.Is(err, ratelimit.ErrNested) {
			return fmt.Errorf("a nested InTx: got %w, want ErrNested", err)
		}
		if _, err := l.Autocommit(pool).RateLimit(ctx, limit.For("k")); !errors.Is(err, ratelimit.ErrNested) {
			return fmt.Errorf("a nested Autocommit: got %w, want ErrNested", err)
		}
		if _, err := l.Autocommit(pool).RateLimit(ctx, limit.For("k"),
			limit.Global()); !errors.Is(err, ratelimit.ErrNested) {
			return fmt.Errorf("a nested Autocommit of several: got %w, want ErrNested", err)
		}
		return l.ResetRateLimit(ctx, tx, limit.For("k"))
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := l.Autocommit(pool).RateLimit(ctx, limit.For("k"), limit.For("m")); err != nil {
			t.Fatal(err)
		}
	}
}
