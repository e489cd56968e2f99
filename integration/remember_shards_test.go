package integration

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// Denied calls of a limit with shards that come together are remembered like one that comes alone.
func TestDenialsOfCoalescedCallsOfShardsAreRemembered(t *testing.T) {
	t.Parallel()
	var count trips
	pool := pgtest.Pool(t, count.through)
	limit := ratelimit.MustDefine("together", ratelimit.TokenBucket{Rate: 3, Period: rig.Never}, ratelimit.Shards(3))
	c := rig.Coalesce(t, rig.Limiter(t, ratelimit.Config{RememberDenials: true}), pool)
	takeOK(t, first(c.RateLimit(t.Context(), limit.For("k").Count(3))))
	denied := func() {
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				if res, err := c.RateLimit(t.Context(), limit.For("k")); err != nil || res.OK {
					t.Errorf("%+v, %v, want a denial", res, err)
				}
			})
		}
		wg.Wait()
	}
	denied()
	if n := count.of(denied); n != 0 {
		t.Errorf("the same calls have asked the database in %d trips", n)
	}
}

// Merged shards may have enough sooner than the shards had alone: a full one gains nothing.
func TestDenialsAreForgottenWhenTheLimitGetsOtherShards(t *testing.T) {
	t.Parallel()
	pool, clock := pgtest.Pool(t), rig.Clock()
	l := rig.Limiter(t, ratelimit.Config{RememberDenials: true, Clock: clock.Now})
	rule := ratelimit.TokenBucket{Rate: 10, Period: time.Hour}
	two := ratelimit.MustDefine("sooner", rule, ratelimit.Shards(2)).For("k")
	one := ratelimit.MustDefine("sooner", rule).For("k").Count(8)
	v := l.Autocommit(pool)
	rig.Take(t, v, two.Count(5))
	before, err := v.RateLimit(t.Context(), one)
	if err != nil || before.OK {
		t.Fatalf("%+v, %v, want a denial", before, err)
	}
	opts := pgx.TxOptions{IsoLevel: pgx.ReadCommitted}
	err = l.InTxOptions(t.Context(), pool, opts, func(ctx context.Context, tx pgx.Tx) error {
		return l.Reshard(ctx, tx, 1, one)
	})
	if err != nil {
		t.Fatal(err)
	}
	after, err := v.RateLimit(t.Context(), one)
	if err != nil || after.OK || !after.RetryAt.Before(before.RetryAt) {
		t.Fatalf("%+v, %v, want a denial until sooner than %v", after, err, before.RetryAt)
	}
	clock.Add(after.RetryAfter())
	takeOK(t, first(v.RateLimit(t.Context(), one)))
}
