package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

// crowd has calls decided that come while another one is under way, and so in one batch. It returns
// their answers, and how many round trips all of that takes.
func crowd(
	t *testing.T, c *ratelimit.Coalesced, counter *trips, g *gate, calls []ratelimit.Request,
) (answers []ratelimit.Result, n int64) {
	t.Helper()
	ahead := ratelimit.MustDefine("ahead", ratelimit.FixedWindow{Rate: 1000, Period: rig.Century}).For("k")
	takeOK(t, first(c.RateLimit(t.Context(), ahead)))
	answers = make([]ratelimit.Result, len(calls))
	g.shut()
	defer g.open()
	n = counter.of(func() {
		var wg sync.WaitGroup
		under := park(t.Context())
		wg.Go(func() { takeOK(t, first(c.RateLimit(under, ahead))) })
		under.wait(t)
		g.next(t)
		for i, r := range calls {
			p := park(t.Context())
			wg.Go(func() {
				res, err := c.RateLimit(p, r)
				if err != nil {
					t.Error(err)
				}
				answers[i] = res
			})
			p.wait(t)
		}
		g.open()
		wg.Wait()
	})
	if t.Failed() {
		t.FailNow()
	}
	return answers, n
}

// A crowd on a limit with shards asks for more than the capacity, and more than there is. Some of
// the calls are granted, and the others are denied, in a few trips for all of them.
func TestACrowdOnALimitWithShardsIsDecidedTogether(t *testing.T) {
	t.Parallel()
	const callers = 400
	var counter trips
	g := newGate()
	c := rig.Coalesce(t, rig.Limiter(t, ratelimit.Config{}), pgtest.Pool(t, counter.through, g.through))
	limit := ratelimit.MustDefine("crowd", ratelimit.TokenBucket{Rate: 40, Period: rig.Century}, ratelimit.Shards(4))
	takeOK(t, first(c.RateLimit(t.Context(), limit.For("k").Count(34))))
	answers, n := crowd(t, c, &counter, g, slices.Repeat([]ratelimit.Request{limit.For("k")}, callers))
	granted := 0
	for _, res := range answers {
		if res.OK {
			granted++
		} else if res.RetryAt.IsZero() {
			t.Errorf("denied without a RetryAt: %+v", res)
		}
	}
	if granted != 6 {
		t.Errorf("%d calls were granted, of 6 tokens", granted)
	}
	if n > callers/4 {
		t.Errorf("%d round trips for %d calls", n, callers)
	}
}

// So are they while another transaction holds nearly all tokens that there are: they are denied for
// a moment. One that wants no more than what is free is granted, although it comes last.
func TestACrowdThatLosesItsTokensIsDeniedTogether(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, noLocksOnCitus)
	const callers = 400
	var counter trips
	g := newGate()
	pool := pgtest.Pool(t, counter.through, g.through)
	beside := rig.Beside(t, pool, func(cfg *pgxpool.Config) { cfg.PrepareConn = nil })
	c, r := rig.Coalesce(t, rig.Limiter(t, ratelimit.Config{}), pool), fourShards.For("k")
	fillShards(t, beside, r, 0, 1, 10, 0)
	there := rig.Limiter(t, ratelimit.Config{})
	holder := rig.Begin(t, beside, pgx.ReadCommitted)
	takeOK(t, first(there.RateLimit(t.Context(), holder, r.Count(4))))
	calls := append(slices.Repeat([]ratelimit.Request{r.Count(2)}, callers), r)
	answers, n := crowd(t, c, &counter, g, calls)
	for i, res := range answers[:callers] {
		if res.OK || res.RetryAfter() <= 0 || res.RetryAfter() > 100*time.Millisecond {
			t.Fatalf("call %d: granted %v, retry after %v; want a denial for at most 100 ms",
				i, res.OK, res.RetryAfter())
		}
	}
	if last := answers[callers]; !last.OK {
		t.Errorf("the last call, for a token that is free: %+v", last)
	}
	if n > callers/4 {
		t.Errorf("%d round trips for %d calls", n, callers)
	}
	rollback(t, holder)
	takeOK(t, first(c.RateLimit(t.Context(), r.Count(2))))
}

// Tokens that flow in while a crowd is decided are lost to nobody: of a crowd beside which nobody
// takes, each call that is denied finds less than it wants.
func TestTokensThatFlowInBesideACrowdAreNotLost(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "its clock goes by trips, of which a cluster takes more")
	direct := pgtest.Pool(t)
	rule := ratelimit.TokenBucket{Rate: 4, Period: 4 * time.Second}
	for flow := 200 * time.Millisecond; flow < 600*time.Millisecond; flow += 15 * time.Millisecond {
		t.Run(fmt.Sprintf("%vTokensWithEachTrip", flow.Seconds()), func(t *testing.T) {
			var counter trips
			g := newGate()
			pool := rig.Beside(t, direct, rig.Most(4), counter.through, g.through)
			c := rig.Coalesce(t, rig.Limiter(t, ratelimit.Config{Clock: func() time.Time {
				return rig.Noon.Add(time.Duration(counter.n.Load()) * flow)
			}}), pool)
			r := ratelimit.MustDefine(fmt.Sprint("flows", flow), rule, ratelimit.Shards(2)).For("k")
			takeOK(t, first(c.RateLimit(t.Context(), r.Count(4))))
			answers, _ := crowd(t, c, &counter, g, slices.Repeat([]ratelimit.Request{r}, 24))
			for i, res := range answers {
				if there := res.Outcomes[0].Value; !res.OK && there >= 1 {
					t.Errorf("call %d is denied, with %v there", i, there)
				}
			}
		})
	}
}
