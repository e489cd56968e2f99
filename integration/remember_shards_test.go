package integration

import (
	"sync"
	"testing"

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
