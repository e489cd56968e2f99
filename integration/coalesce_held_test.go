package integration

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// A row that somebody else holds for long holds up nobody but those who want it.
func TestAHeldRowHoldsUpOnlyThoseWhoWantIt(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 12 })
	c := rig.Coalesce(t, rig.Limiter(t, ratelimit.Config{Timeout: -1}), pool)
	limit := ratelimit.MustDefine("held", ratelimit.FixedWindow{Rate: 1000, Period: rig.Century})
	all := ratelimit.MustDefine("all", ratelimit.FixedWindow{Rate: 1000, Period: rig.Century})
	takeOK(t, first(c.RateLimit(t.Context(), limit.For("held"))))
	release := hold(t, pool, "held", "held")
	defer release()
	var waiting sync.WaitGroup
	var free atomic.Bool
	for i := range 20 {
		waiting.Go(func() {
			requests := []ratelimit.Request{limit.For("held")}
			if i%2 == 0 {
				requests = append(requests, all.Global())
			}
			takeOK(t, first(c.RateLimit(t.Context(), requests...)))
			if !free.Load() {
				t.Error("granted while another transaction holds the row")
			}
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), hung)
	defer cancel()
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() { takeOK(t, first(c.RateLimit(ctx, limit.For(fmt.Sprint(i))))) })
		wg.Go(func() { takeOK(t, first(c.RateLimit(ctx, limit.For(fmt.Sprint("and", i)), all.For("x")))) })
	}
	wg.Wait()
	takeOK(t, first(c.RateLimit(ctx, limit.For("0"))))
	free.Store(true)
	release()
	waiting.Wait()
	wantLeft(t, c, limit.For("held"), 979)
	wantLeft(t, c, all.Global(), 990)
	takeOK(t, first(c.RateLimit(t.Context(), limit.For("held")))) // in its usual lane again
}

// Nor does it if one of the limits has shards.
func TestAHeldRowHoldsUpNoOtherCallOfALimitWithShards(t *testing.T) {
	t.Parallel()
	g := newGate()
	pool := pgtest.Pool(t, rig.Most(12), g.through)
	holders := rig.Beside(t, pool, func(c *pgxpool.Config) { c.PrepareConn = nil })
	c := rig.Coalesce(t, rig.Limiter(t, ratelimit.Config{}), pool)
	all := ratelimit.MustDefine("all", ratelimit.FixedWindow{Rate: 1000, Period: rig.Century}, ratelimit.Shards(4))
	limit := ratelimit.MustDefine("held", ratelimit.FixedWindow{Rate: 1000, Period: rig.Century})
	takeOK(t, first(c.RateLimit(t.Context(), all.Global(), limit.For("held"))))
	defer hold(t, holders, "held", "held")()
	waits, leave := context.WithCancel(t.Context())
	within, cancel := context.WithTimeout(t.Context(), hung)
	defer cancel()
	var held, free sync.WaitGroup
	g.shut()
	defer g.open()
	call := func(key string) {
		ctx, wg := within, &free
		if key == "held" {
			ctx, wg = waits, &held
		}
		p := park(ctx)
		wg.Go(func() {
			res, err := c.RateLimit(p, all.Global(), limit.For(key))
			if key == "held" && !errors.Is(err, context.Canceled) || key != "held" && (err != nil || !res.OK) {
				t.Errorf("%s: %+v, %v", key, res, err)
			}
		})
		p.wait(t)
	}
	call("first")
	g.next(t)
	call("held") // before all others of its batch
	for i := range 20 {
		call(fmt.Sprint(i))
	}
	g.open()
	free.Wait()
	leave()
	held.Wait()
}

// A crowd on a limit with shards asks for more than the capacity, and more than there is. Some of
// the calls are granted, and the others are denied, in a few trips for all of them.
func TestACrowdOnALimitWithShardsIsDecidedTogether(t *testing.T) {
	t.Parallel()
	const callers = 400
	var counter trips
	g := newGate()
	pool := pgtest.Pool(t, counter.through, g.through)
	c := rig.Coalesce(t, rig.Limiter(t, ratelimit.Config{}), pool)
	limit := ratelimit.MustDefine("crowd", ratelimit.TokenBucket{Rate: 40, Period: rig.Century}, ratelimit.Shards(4))
	ahead := ratelimit.MustDefine("ahead", ratelimit.FixedWindow{Rate: 1000, Period: rig.Century})
	takeOK(t, first(c.RateLimit(t.Context(), ahead.For("k"))))
	takeOK(t, first(c.RateLimit(t.Context(), limit.For("k").Count(34))))
	g.shut()
	defer g.open()
	var ok atomic.Int64
	n := counter.of(func() {
		var wg sync.WaitGroup
		under := park(t.Context())
		wg.Go(func() { takeOK(t, first(c.RateLimit(under, ahead.For("k")))) })
		under.wait(t)
		g.next(t) // all of the crowd come while this is under way, and so in one batch
		for range callers {
			p := park(t.Context())
			wg.Go(func() {
				res, err := c.RateLimit(p, limit.For("k"))
				switch {
				case err != nil:
					t.Error(err)
				case res.OK:
					ok.Add(1)
				case res.RetryAt.IsZero():
					t.Errorf("denied without a RetryAt: %+v", res)
				}
			})
			p.wait(t)
		}
		g.open()
		wg.Wait()
	})
	if ok.Load() != 6 {
		t.Errorf("%d calls were granted, of 6 tokens", ok.Load())
	}
	if n > callers/4 {
		t.Errorf("%d round trips for %d calls", n, callers)
	}
}
