package integration

import (
	"slices"
	"sync"
	"testing"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// Calls by different rules for one key, as when a customer's plan has just changed, are decided one
// after the other.
func TestCoalescedCallsByDifferentRules(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	c := rig.Coalesce(t, rig.Limiter(t, ratelimit.Config{}), pool)
	limit := ratelimit.MustDefine("plans", ratelimit.TokenBucket{Rate: 10, Period: rig.Never})
	rules := []ratelimit.Rule{nil, ratelimit.TokenBucket{Rate: 20, Period: rig.Never},
		ratelimit.FixedWindow{Rate: 5, Period: rig.Never}}
	var granted []int
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range 60 {
		wg.Go(func() {
			res, err := c.RateLimit(t.Context(), limit.For("k").Rule(rules[i%3]))
			if err != nil {
				t.Error(err)
			}
			if res.OK {
				mu.Lock()
				granted = append(granted, i%3)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	// The largest lets 20 in at most, and each of the others cuts down what it finds.
	if len(granted) < 5 || len(granted) > 20 || slices.Max(granted) > 2 {
		t.Errorf("%d were granted", len(granted))
	}
}

// Calls by different rules that come together are decided one after the other, each by its own.
func TestCallsByDifferentRulesThatComeTogether(t *testing.T) {
	t.Parallel()
	large := ratelimit.MustDefine("rules", ratelimit.TokenBucket{Rate: 20, Period: rig.Never})
	small := large.For("k").Rule(ratelimit.TokenBucket{Rate: 10, Period: rig.Never})
	g := newGate()
	c := rig.Coalesce(t, rig.Limiter(t, ratelimit.Config{}), pgtest.Pool(t, g.through))
	takeOK(t, first(c.RateLimit(t.Context(), large.For("k").Count(0)))) // makes the row
	g.shut()
	defer g.open()
	var wg sync.WaitGroup
	for i, request := range []ratelimit.Request{large.For("k").Count(0), large.For("k").Count(5), small.Count(8)} {
		p := park(t.Context())
		wg.Go(func() {
			if err := rig.Granted(c.RateLimit(p, request)); err != nil {
				t.Error(err)
			}
		})
		p.wait(t)
		if i == 0 {
			g.next(t) // the first is decided alone, and the others together
		}
	}
	g.open()
	wg.Wait()
	wantLeft(t, c, small, 2) // of the 10 that the small capacity leaves of 15
}

// Many callers of a limit with shards get all that it has, and what they give back goes where it
// came from.
func TestCoalescedCallsOfALimitWithShards(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	c := rig.Coalesce(t, rig.Limiter(t, ratelimit.Config{}), pool)
	limit := ratelimit.MustDefine("shards", ratelimit.TokenBucket{Rate: 100, Period: rig.Century}, ratelimit.Shards(8))
	results := make(chan ratelimit.Result, 1000)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for range 4 {
				res, err := c.RateLimit(t.Context(), limit.For("k"))
				if err != nil {
					t.Error(err)
				}
				results <- res
			}
		})
	}
	wg.Wait()
	close(results)
	var granted []ratelimit.Result
	for res := range results {
		if res.OK {
			granted = append(granted, res)
		}
	}
	if len(granted) != 100 {
		t.Fatalf("%d granted of 100", len(granted))
	}
	for _, res := range granted[:30] {
		if err := c.GiveBack(t.Context(), res); err != nil {
			t.Fatal(err)
		}
	}
	wantLeft(t, c, limit.For("k"), 30)
	ids := map[string]bool{}
	for _, res := range granted {
		ids[res.Reservation().ID.String()] = true
	}
	if len(ids) != len(granted) {
		t.Errorf("%d ids of %d reservations", len(ids), len(granted))
	}
}
