package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// flown is more than flows in during a test after all: of a hundred tokens, in half a minute.
const flown = 1e-4

const callers = 64

// work makes a table for the callers' own writes, which must agree with the tokens taken.
func work(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	rig.Exec(t, pool, `CREATE TABLE work (key text NOT NULL, tokens float8 NOT NULL)`)
}

// takeAndWork takes and, in the same transaction, does the work.
func takeAndWork(
	ctx context.Context, l *ratelimit.Limiter, pool *pgxpool.Pool, level pgx.TxIsoLevel,
	r ratelimit.Request, key string, tokens float64,
) error {
	return l.InTxOptions(ctx, pool, pgx.TxOptions{IsoLevel: level}, func(ctx context.Context, tx pgx.Tx) error {
		res, err := l.RateLimit(ctx, tx, r)
		if err != nil {
			return err
		}
		if !res.OK {
			return res.Err()
		}
		_, err = tx.Exec(ctx, `INSERT INTO work (key, tokens) VALUES ($1, $2)`, key, tokens)
		return err
	})
}

func TestConcurrentCallersNeverGetMoreThanTheLimitNorAnErrorButADenial(t *testing.T) {
	t.Parallel()
	const capacity = 100
	limit := ratelimit.MustDefine("concurrent", ratelimit.TokenBucket{Rate: capacity, Period: rig.Never})
	window := ratelimit.MustDefine("concurrentWindow", ratelimit.FixedWindow{Rate: capacity, Period: rig.Never})

	shapes := []struct {
		name    string
		limit   ratelimit.Limit
		calls   int // by each caller
		tokens  float64
		key     func(caller, call int) string
		exactly bool // as more is asked for than there is, all of it must be granted
	}{
		{"OneKey", limit, 5, 1, func(int, int) string { return "k" }, true},
		{"OneKeyOfWindow", window, 5, 1, func(int, int) string { return "k" }, true},
		{"64Keys", limit, 10, 40, func(int, int) string { return fmt.Sprint(rand.IntN(64)) }, false},
		{"NewKeys", limit, 10, 100, func(caller, call int) string { return fmt.Sprint(call, "-", caller%16) }, true},
	}
	for _, level := range rig.Levels {
		for _, s := range shapes {
			t.Run(string(level)+"/"+s.name, func(t *testing.T) {
				t.Parallel()
				pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 32 })
				work(t, pool)
				l := rig.Limiter(t, ratelimit.Config{})
				var granted, denied atomic.Int64
				var wg sync.WaitGroup
				for caller := range callers {
					wg.Go(func() {
						for call := range s.calls {
							key := s.key(caller, call)
							err := takeAndWork(t.Context(), l, pool, level,
								s.limit.For(key).Count(s.tokens), key, s.tokens)
							switch {
							case err == nil:
								granted.Add(1)
							case errors.Is(err, ratelimit.ErrDenied):
								denied.Add(1)
							default:
								t.Errorf("caller %d, call %d: %v", caller, call, err)
								return
							}
						}
					})
				}
				wg.Wait()
				checkBooks(t, pool, s.limit.Name(), capacity, s.exactly)
				if granted.Load() == 0 || denied.Load() == 0 {
					t.Errorf("%d granted and %d denied: the test should see both", granted.Load(), denied.Load())
				}
			})
		}
	}
}

// checkBooks compares the work done with the tokens gone, key by key.
func checkBooks(t *testing.T, pool *pgxpool.Pool, name string, capacity float64, exactly bool) {
	t.Helper()
	rows, err := pool.Query(t.Context(),
		`SELECT b.key, b.value, coalesce(sum(w.tokens), 0) FROM weir_balance b LEFT JOIN work w USING (key)
		WHERE b.name = $1 GROUP BY b.key, b.value`, name)
	if err != nil {
		t.Fatal(err)
	}
	var key string
	var left, done float64
	n := 0
	_, err = pgx.ForEachRow(rows, []any{&key, &left, &done}, func() error {
		n++
		if left < 0 || done > capacity {
			t.Errorf("key %q: work for %v tokens was done and %v are left, of %v", key, done, left, capacity)
		}
		if diff := capacity - left - done; diff > 0.01 || diff < -0.01 {
			t.Errorf("key %q: %v of %v tokens are left, but work was done for %v", key, left, capacity, done)
		}
		if exactly && done != capacity {
			t.Errorf("key %q: work was done for %v tokens; all %v were asked for", key, done, capacity)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n == 0 {
		t.Error("no balance was written")
	}
}

// Callers of several limits lock rows in one order, so that at READ COMMITTED, where nothing but a
// deadlock could fail a transaction, each runs exactly once.
func TestCallsForSeveralLimitsNeverDeadlock(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 16 })
	l := rig.Limiter(t, ratelimit.Config{})
	limit := ratelimit.MustDefine("several", ratelimit.TokenBucket{Rate: 50, Period: rig.Never})
	var runs, calls atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 30 {
				keys := rand.Perm(6)[:3]
				calls.Add(1)
				err := l.InTxOptions(t.Context(), pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted},
					func(ctx context.Context, tx pgx.Tx) error {
						runs.Add(1)
						_, err := l.RateLimit(ctx, tx, limit.For(fmt.Sprint(keys[0])),
							limit.For(fmt.Sprint(keys[1])), limit.For(fmt.Sprint(keys[2])))
						return err
					})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if runs.Load() != calls.Load() {
		t.Errorf("%d calls ran %d times: some deadlocked", calls.Load(), runs.Load())
	}
}

func TestSeveralLimitsAreTakenAllOrNone(t *testing.T) {
	t.Parallel()
	small := ratelimit.MustDefine("small", ratelimit.TokenBucket{Rate: 30, Period: rig.Never})
	large := ratelimit.MustDefine("large", ratelimit.FixedWindow{Rate: 1000, Period: rig.Never})
	rig.EachCrowded(t, func(t *testing.T, v rig.Verbs, pool *pgxpool.Pool) {
		first, second := rig.Apart(t, pool)
		takenAllOrNone(t, v, large.For("x"), small.For("x"))
		takenAllOrNone(t, v, large.For(first), small.For(second))
	})
}

// takenAllOrNone has callers take two tokens of large, which has 1000, and one of small, which has 30.
func takenAllOrNone(t *testing.T, v rig.Verbs, large, small ratelimit.Request) {
	t.Helper()
	var granted atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 10 {
				res, err := v.RateLimit(t.Context(), large.Count(2), small)
				if err != nil {
					// database/sql is used without InTx, but its transactions are READ
					// COMMITTED
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
	if granted.Load() != 30 {
		t.Errorf("%s and %s: %d granted, want 30", large, small, granted.Load())
	}
	for _, left := range []struct {
		of   ratelimit.Request
		want float64
	}{{small, 0}, {large, 1000 - 2*30}} {
		s, err := v.Value(t.Context(), left.of)
		if err != nil {
			t.Fatal(err)
		}
		if s.Value < left.want || s.Value > left.want+0.01 {
			t.Errorf("%s: %v tokens are left, want %v", left.of, s.Value, left.want)
		}
	}
}

func TestTheSameLimitTwiceInACallIsAddedUp(t *testing.T) {
	t.Parallel()
	limit := ratelimit.MustDefine("twice", ratelimit.TokenBucket{Rate: 10, Period: rig.Never})
	rig.EachWay(t, func(t *testing.T, v rig.Verbs, _ *pgxpool.Pool) {
		twice := []ratelimit.Request{limit.For("k").Count(3), limit.For("k").Count(3)}
		for _, want := range []bool{true, false, false} {
			res, err := v.RateLimit(t.Context(), twice...)
			if err != nil || res.OK != want || len(res.Outcomes) != 2 {
				t.Fatalf("got %+v and %v, want granted %v", res, err, want)
			}
		}
		if s, err := v.Value(t.Context(), limit.For("k")); err != nil || s.Value < 4 || s.Value > 4.01 {
			t.Errorf("%v left (%v), want 4", s.Value, err)
		}
	})
}

// Above READ COMMITTED all but one of the callers that wait for a row fail when it commits, and run
// again blindly they fail each other ten times a commit. They queue instead.
func TestCallersOfAContendedRowQueueRatherThanFailEachOther(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "callers queue on one server only")
	limit := ratelimit.MustDefine("contended", ratelimit.TokenBucket{Rate: 1e6, Period: rig.Never})
	for _, level := range rig.Levels[1:] {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 16 })
			l := rig.Limiter(t, ratelimit.Config{})
			var runs, commits atomic.Int64
			var wg sync.WaitGroup
			began := time.Now()
			for range 16 {
				wg.Go(func() {
					for range 20 {
						err := l.InTxOptions(t.Context(), pool, pgx.TxOptions{IsoLevel: level},
							func(ctx context.Context, tx pgx.Tx) error {
								runs.Add(1)
								if _, err := l.RateLimit(ctx, tx, limit.For("k")); err != nil {
									return err
								}
								_, err := tx.Exec(ctx, `SELECT pg_sleep(0.002)`)
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
			// They queue for 2.5 seconds after a conflict, and then a few meet anew.
			if most := 0.2 + 4*time.Since(began).Seconds()/2.5/float64(commits.Load()); aborts > most {
				t.Errorf("%.2f aborts a commit, want at most %v", aborts, most)
			}
		})
	}
}
