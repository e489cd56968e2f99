package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/weirtest"
)

// Under load the layout changes again and again, by releases that define different numbers and by
// an operator: no caller meets an error, and no token comes or goes.
func TestALimitIsReshardedUnderLoad(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "its callers run into each other at SERIALIZABLE")
	const capacity = 4000
	rule := ratelimit.TokenBucket{Rate: 1, Period: rig.Never, Capacity: ratelimit.Tokens(capacity)}
	for _, gifts := range []bool{false, true} {
		t.Run(fmt.Sprintf("gifts=%v", gifts), func(t *testing.T) {
			t.Parallel()
			eachCrowd(t, func(t *testing.T, here, there rig.Verbs, pool *pgxpool.Pool) {
				reshardUnderLoad(t, here, there, pool, rule, capacity, gifts)
			})
		})
	}
}

func reshardUnderLoad(
	t *testing.T, here, there rig.Verbs, pool *pgxpool.Pool, rule ratelimit.Rule, capacity float64, gifts bool,
) {
	t.Helper()
	releases := []ratelimit.Limit{}
	for _, n := range []int{1, 4, 16} {
		releases = append(releases, ratelimit.MustDefine("live", rule, ratelimit.Shards(n)))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // until then InTx runs again
	defer cancel()
	var done atomic.Bool
	var answers atomic.Int64
	var mu sync.Mutex
	gone := 0.0
	var wg sync.WaitGroup
	defer func() {
		done.Store(true)
		wg.Wait()
	}()
	for caller := range 8 {
		v, limit := here, releases[caller%3]
		if caller%2 == 1 {
			v = there
		}
		wg.Go(func() {
			for !done.Load() {
				n := float64(1 + rand.IntN(3))
				res, err := v.RateLimit(ctx, limit.For("k").Count(n))
				if err == nil && gifts && res.OK && rand.IntN(3) == 0 {
					err, n = v.GiveBack(ctx, res), 0
				}
				if err != nil {
					t.Error(err)
					return
				}
				if res.OK {
					mu.Lock()
					gone += n
					mu.Unlock()
				}
				answers.Add(1)
			}
		})
	}
	// above READ COMMITTED each take that comes between fails a change
	l := rig.Limiter(t, ratelimit.Config{MaxAttempts: 100_000})
	for range rig.Rounds(t, 1) {
		level := rig.Levels[rand.IntN(len(rig.Levels))]
		for _, n := range []int{4, 16, 4, 1, 32, 16, 8} {
			had := answers.Load()
			until(t, func() bool { return answers.Load() > had || t.Failed() })
			if err := l.InTxOptions(t.Context(), pool, pgx.TxOptions{IsoLevel: level},
				func(ctx context.Context, tx pgx.Tx) error {
					return l.Reshard(ctx, tx, n, releases[0].For("k"))
				}); err != nil {
				t.Error(err)
			}
		}
	}
	done.Store(true)
	wg.Wait()
	if gone == 0 {
		t.Error("nothing was taken meanwhile")
	}
	if left := sumOf(t, pool, releases[0], "k"); gone+left > capacity+1e-3 || !gifts && gone+left < capacity-1e-3 {
		t.Errorf("%v gone, and %v left of %v", gone, left, capacity) // a full shard gains nothing by a gift
	}
}

// Raising and lowering the capacity live mints nothing, by whomever.
func TestChangedNumbersOfALimitWithShardsMintNothing(t *testing.T) {
	t.Parallel()
	eachCrowd(t, func(t *testing.T, here, there rig.Verbs, pool *pgxpool.Pool) {
		var releases []ratelimit.Limit
		for _, capacity := range []float64{100, 300} {
			releases = append(releases, ratelimit.MustDefine("numbers",
				ratelimit.TokenBucket{Rate: 1, Period: rig.Never, Capacity: ratelimit.Tokens(capacity)},
				ratelimit.Shards(8)))
		}
		var granted atomic.Int64
		var wg sync.WaitGroup
		for caller := range 8 {
			v := here
			if caller%2 == 1 {
				v = there
			}
			wg.Go(func() {
				for range 30 {
					n := 1 + rand.IntN(4)
					res, err := v.RateLimit(t.Context(), releases[rand.IntN(2)].For("k").Count(float64(n)))
					if err != nil {
						t.Error(err)
						return
					}
					if res.OK {
						granted.Add(int64(n))
					}
				}
			})
		}
		wg.Wait()
		left := sumOf(t, pool, releases[1], "k")
		if sum := float64(granted.Load()) + left; sum > 300.01 || granted.Load() < 90 {
			t.Errorf("%d granted and %v left of 300", granted.Load(), left)
		}
	})
}

// A change of kind or of layout neither mints nor loses, and all shards share the start of their
// windows.
func TestShardsShareTheStartOfTheirWindows(t *testing.T) {
	t.Parallel()
	eachWayTwice(t, func(t *testing.T, here, there rig.Verbs, clock *weirtest.Clock, pool *pgxpool.Pool) {
		const all = 70 // which 5, 7 and 2 divide
		window := ratelimit.FixedWindow{Rate: all, Period: rig.Never}
		limit := ratelimit.MustDefine("windows", window, ratelimit.Shards(5))
		bucket := ratelimit.TokenBucket{Rate: all, Period: rig.Never}
		r := limit.For("k")
		for i, v := range []rig.Verbs{here, there, here} {
			if res, err := v.RateLimit(t.Context(), r.Count(10.5)); err != nil || !res.OK {
				t.Fatal(res.OK, err)
			}
			wantLeft(t, here, r, all-10.5*float64(i+1))
		}
		for _, n := range []int{7, 2} {
			reshard(t, pool, clock.Now, n, r)
			wantLeft(t, there, r.Rule(bucket), 38.5)
			if res, err := here.RateLimit(t.Context(), r.Rule(bucket).Count(0)); err != nil || !res.OK {
				t.Fatal(res.OK, err)
			}
			wantLeft(t, here, r, 38.5)
		}
		var origins int
		if err := pool.QueryRow(t.Context(), `SELECT count(DISTINCT origin) FROM weir_balance WHERE name = 'windows' AND origin IS NOT NULL`).Scan(&origins); err != nil || origins != 1 {
			t.Errorf("%d starts of windows (%v)", origins, err)
		}
		if res, err := there.RateLimit(t.Context(), r.Count(38.5-slack)); err != nil || !res.OK {
			t.Fatal(res.OK, err)
		}
		res, err := there.RateLimit(t.Context(), r.Count(all))
		if err != nil || res.OK {
			t.Fatal(res.OK, err)
		}
		clock.Set(res.RetryAt) // all of them begin then
		if res, err := here.RateLimit(t.Context(), r.Count(all)); err != nil || !res.OK {
			t.Error(res.OK, err)
		}
		if res, err := there.RateLimit(t.Context(), r.Count(0.5)); err != nil || res.OK {
			t.Error(res.OK, err)
		}
	})
}

// A change of layout that rolls back has not been.
func TestAReshardRollsBackWithItsTransaction(t *testing.T) {
	t.Parallel()
	limit := ratelimit.MustDefine("undone", ratelimit.TokenBucket{Rate: 40, Period: rig.Never}, ratelimit.Shards(4))
	eachCrowd(t, func(t *testing.T, here, _ rig.Verbs, pool *pgxpool.Pool) {
		l := rig.Limiter(t, ratelimit.Config{})
		rig.Take(t, here, limit.For("k"))
		for i, n := range []int{1, 16, 2} {
			err := l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
				if err := l.Reshard(ctx, tx, n, limit.For("k")); err != nil {
					return err
				}
				if res, err := l.RateLimit(ctx, tx, limit.For("k").Count(20)); err != nil || !res.OK {
					return fmt.Errorf("%d shards: %+v: %w", n, res, err)
				}
				return errUndo
			})
			if !errors.Is(err, errUndo) {
				t.Fatal(err)
			}
			wantLeft(t, here, limit.For("k"), 39-float64(i)/4)
			// less than what a shard would have, so that one that does not exist would do
			if res, err := l.Autocommit(pool).RateLimit(t.Context(),
				limit.For("k").Count(0.25)); err != nil || !res.OK {
				t.Fatal(res.OK, err)
			}
		}
	})
}

// A call that has locked a row of a former layout adds no shards: that would begin with the limit's
// first row, which everybody else locks before. The next call adds them.
func TestWhoHasLockedAFormerRowAddsNoShards(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"Raw", "DatabaseSQL", "InSQLTx"} {
		w := crowds[slices.IndexFunc(crowds, func(w rig.Way) bool { return w.Name == name })]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t, func(c *pgxpool.Config) {
				c.ConnConfig.RuntimeParams["lock_timeout"] = "2s" // who waits fails
			})
			limit := ratelimit.MustDefine("grows",
				ratelimit.TokenBucket{Rate: 100, Period: rig.Never}, ratelimit.Shards(4))
			v := w.Verbs(t, rig.Limiter(t, ratelimit.Config{}), pool)
			take := func() {
				t.Helper()
				if res, err := v.RateLimit(t.Context(), limit.For("k")); err != nil || !res.OK {
					t.Fatal(res.OK, err)
				}
			}
			reshard(t, pool, nil, 4, limit.For("k"))
			take() // it knows the shards now
			reshard(t, pool, nil, 2, limit.For("k"))
			tx := rig.Begin(t, pool, pgx.ReadCommitted)
			if _, err := tx.Exec(t.Context(),
				`SELECT FROM weir_balance WHERE name = 'grows' AND key = 'k' AND shard = 0 FOR UPDATE`); err != nil {
				t.Fatal(err)
			}
			take()
			rig.Commit(t, tx)
			if n := shardsOf(t, pool, "grows"); n != 2 {
				t.Errorf("%d shards, want 2", n)
			}
			take()
			if n := shardsOf(t, pool, "grows"); n != 4 {
				t.Errorf("%d shards after the next call, want 4", n)
			}
		})
	}
}

func shardsOf(t *testing.T, pool *pgxpool.Pool, limit string) (n int) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM weir_balance
		WHERE name = $1 AND shard > 0 AND value > '-Infinity'`, limit).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// While the number of a limit's shards changes, a caller waits until that is done. It is not denied
// because the transaction that does it holds all shards.
func TestCallersWaitForAnotherNumberOfShards(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it watches the locks of one server")
	for _, level := range rig.Levels {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			pool, l, r := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{}), fourShards.For("k")
			fillShards(t, pool, r, 0, 0, 10, 0)
			operator := rig.Begin(t, pool, pgx.ReadCommitted)
			if err := rig.Limiter(t, ratelimit.Config{}).Reshard(t.Context(), operator, 8, r); err != nil {
				t.Fatal(err)
			}
			ended := decided(l, pool, level, r.Count(5))
			until(t, func() bool { return len(ended) > 0 || rig.IsWaitedFor(t, pool, operator) })
			rig.Commit(t, operator)
			if got := <-ended; got.err != nil || !got.res.OK {
				t.Errorf("%+v, %v", got.res, got.err)
			}
		})
	}
}

// beforeTakes does something before the first so many transactions that begin with a take.
type beforeTakes struct {
	afterBatch
	times int
	then  func()
}

func (b *beforeTakes) TraceBatchStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceBatchStartData) context.Context {
	if b.times > 0 && strings.HasPrefix(d.Batch.QueuedQueries[0].SQL, "BEGIN") {
		b.times--
		b.then()
	}
	return ctx
}

// A call that meets another number of shards each time that it tries has lost no tokens to others.
// It is not denied for that.
func TestACallThatMeetsSeveralNumbersOfShardsIsNotDenied(t *testing.T) {
	t.Parallel()
	for _, level := range rig.Levels {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			var tracer beforeTakes
			pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.ConnConfig.Tracer = &tracer })
			l, r := rig.Limiter(t, ratelimit.Config{}), fourShards.For("k")
			takeOK(t, first(l.Autocommit(pool).RateLimit(t.Context(), r)))
			n := 4
			tracer.times, tracer.then = 3, func() {
				n = 12 - n // 8 and 4 in turn
				reshard(t, pool, nil, n, r)
			}
			if got := <-decided(l, pool, level, r); got.err != nil || !got.res.OK || tracer.times > 0 {
				t.Errorf("%+v, %v; %d changes did not come", got.res, got.err, tracer.times)
			}
		})
	}
}
