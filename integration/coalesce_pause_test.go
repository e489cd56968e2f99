package integration

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// A pause outlives a take for after it, also where the row is ahead of a clock that was set back.
func TestACoalescedTakeKeepsThePause(t *testing.T) {
	t.Parallel()
	clock := rig.Clock()
	c := rig.Coalesce(t, rig.Limiter(t, ratelimit.Config{Clock: clock.Now}), pgtest.Pool(t))
	k := ratelimit.MustDefine("paused", ratelimit.TokenBucket{Rate: 10, Period: time.Hour}).For("k")
	takeOK(t, first(c.RateLimit(t.Context(), k)))
	clock.Add(-time.Hour)
	until := clock.Now().Add(time.Minute)
	if err := c.Pause(t.Context(), time.Minute, k); err != nil {
		t.Fatal(err)
	}
	takeOK(t, first(c.RateLimit(t.Context(), k.OrReserve())))
	if s, err := c.Value(t.Context(), k); err != nil || !s.PausedUntil.Equal(until) {
		t.Errorf("paused until %v (%v), want %v", s.PausedUntil, err, until)
	}
}

// Each tells by how much pauses have put off its limit, with shards or without, however many were
// decided with it.
func TestCoalescedCallsTellOfThePause(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	clock := rig.Clock()
	c := rig.Limiter(t, ratelimit.Config{Clock: clock.Now}).Coalesce(pool)
	defer c.Close()
	for _, shards := range []int{1, 4} {
		limit := ratelimit.MustDefine(fmt.Sprint("limit", shards),
			ratelimit.TokenBucket{Rate: 1000, Period: time.Hour}, ratelimit.Shards(shards))
		if err := c.Pause(t.Context(), time.Second, limit.For("k")); err != nil {
			t.Fatal(err)
		}
		clock.Add(time.Second)
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				res, err := c.RateLimit(t.Context(), limit.For("k"))
				if err != nil || !res.OK || res.Outcomes[0].Delay != time.Second {
					t.Errorf("%d shards: %+v, %v, want it put off by a second", shards, res, err)
				}
			})
		}
		wg.Wait()
	}
}
