package integration

import (
	"context"
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

// Transactions over a limit with shards and one without lock in one order, whatever they do with
// them.
func TestGivingBackAndTakingSeveralNeverDeadlock(t *testing.T) {
	t.Parallel()
	rule := ratelimit.TokenBucket{Rate: 1e6, Period: rig.Never}
	first := ratelimit.MustDefine("a", rule, ratelimit.Shards(2))
	second := ratelimit.MustDefine("b", rule)
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 8 })
	l := rig.Limiter(t, ratelimit.Config{})
	v := rig.Tx(l, pool, pgx.ReadCommitted)
	both := []ratelimit.Request{first.For("k"), second.For("k")}
	var runs, calls atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 40 {
				res, err := v.RateLimit(t.Context(), both...)
				if err != nil {
					t.Error(err)
					return
				}
				calls.Add(1)
				err = v.Do(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
					runs.Add(1)
					return l.GiveBack(ctx, tx, res)
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if runs.Load() != calls.Load() {
		t.Errorf("%d transactions ran %d times: some deadlocked", calls.Load(), runs.Load())
	}
	for _, r := range both {
		wantLeft(t, v, r, 1e6)
	}
}

// So it is if a limit has got other shards since.
func TestGivingBackAfterAChangeOfShardsAndTakingSeveralNeverDeadlock(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it counts deadlocks of one server")
	rule := ratelimit.FixedWindow{Rate: 1e6, Period: rig.Century}
	old := ratelimit.MustDefine("a", rule).For("k")
	second := ratelimit.MustDefine("b", rule).For("k")
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 8 })
	l := rig.Limiter(t, ratelimit.Config{})
	v := rig.Tx(l, pool, pgx.ReadCommitted)
	const each = 40
	var taken []ratelimit.Result
	for range 4 * each {
		taken = append(taken, takeOK(t, first(v.RateLimit(t.Context(), old, second))))
	}
	reshard(t, pool, nil, 2, old)
	now := ratelimit.MustDefine("a", rule, ratelimit.Shards(2)).For("k")
	takeOK(t, first(v.RateLimit(t.Context(), now))) // and so it is known
	var runs, calls atomic.Int64
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range each {
				calls.Add(1)
				if err := v.Do(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
					runs.Add(1)
					return l.GiveBack(ctx, tx, taken[w*each+i])
				}); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			for range each {
				calls.Add(1)
				if err := v.Do(t.Context(), func(ctx context.Context, tx pgx.Tx) error {
					runs.Add(1)
					res, err := l.RateLimit(ctx, tx, now, second)
					if err == nil && res.OK {
						time.Sleep(time.Millisecond)
					}
					return err
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if runs.Load() != calls.Load() {
		t.Errorf("%d transactions ran %d times: some deadlocked", calls.Load(), runs.Load())
	}
	wantLeft(t, v, now, 1e6-1-4*each)
	wantLeft(t, v, second, 1e6-4*each)
}
