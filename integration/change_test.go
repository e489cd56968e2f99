package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/weirtest"
)

// A pause is for a key, whatever rule the caller has: it leaves the balance as it was. A balance that
// did not exist is full by any rule. Limits with shards do the same.
func TestAPauseLeavesTheBalanceOfAnotherRule(t *testing.T) {
	t.Parallel()
	rule := ratelimit.TokenBucket{Rate: 10, Period: time.Minute}
	plan := ratelimit.TokenBucket{Rate: 60, Period: time.Minute, Capacity: ratelimit.Tokens(100)}
	for _, shards := range []int{1, 4} {
		limit := ratelimit.MustDefine("plans", rule, ratelimit.Shards(shards))
		t.Run(fmt.Sprint(shards), func(t *testing.T) {
			t.Parallel()
			eachWayTwice(t, func(t *testing.T, v, _ rig.Verbs, clock *weirtest.Clock, pool *pgxpool.Pool) {
				pause := func(r ratelimit.Request) {
					t.Helper()
					if err := v.Pause(t.Context(), time.Second, r); err != nil {
						t.Fatal(err)
					}
				}
				rich, poor, fresh, reset := limit.For("rich"), limit.For("poor"), limit.For("fresh"), limit.For("reset")
				rig.Take(t, v, rich.Rule(plan).Count(100))
				rig.Take(t, v, poor.Count(10))
				rig.Take(t, v, poor.Count(7).OrReserve())
				if err := v.ResetRateLimit(t.Context(), reset); err != nil {
					t.Fatal(err)
				}
				clock.Add(30 * time.Second)
				pause(rich)
				pause(poor.Rule(plan))
				pause(fresh)
				pause(reset)
				clock.Add(time.Second)
				wantLeft(t, v, rich.Rule(plan), 30)
				wantLeft(t, v, poor, -2)
				wantLeft(t, v, fresh.Rule(plan), 100)
				wantLeft(t, v, reset.Rule(plan), 100)

				other := limit.For("other")
				reshard(t, pool, clock.Now, 8, other)
				wantLeft(t, v, other.Rule(plan), 100)
				rig.Take(t, v, other.Rule(plan))
				clock.Add(time.Minute)
				pruned(t, rig.Limiter(t, ratelimit.Config{Clock: clock.Now}), pool, ratelimit.PruneConfig{})
				reshard(t, pool, clock.Now, 3, other)
				wantLeft(t, v, other.Rule(plan), 100)
			})
		})
	}
}

// Two releases, or two plans, with different numbers share one row: usage is kept, credit is
// clamped, debt is kept, and going back and forth mints nothing.
func TestChangedNumbersTakeEffectAtOnceAndKeepUsage(t *testing.T) {
	t.Parallel()
	small := ratelimit.TokenBucket{Rate: 10, Period: rig.Never}
	large := ratelimit.TokenBucket{Rate: 100, Period: rig.Never}
	before := ratelimit.MustDefine("change", small)
	after := ratelimit.MustDefine("change", large)
	for _, w := range rig.Ways {
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			pool, clock := pgtest.Pool(t), rig.Clock()
			v := w.Verbs(t, rig.Limiter(t, ratelimit.Config{Portable: w.Portable, Clock: clock.Now}), pool)
			for i, step := range []struct {
				limit ratelimit.Limit
				n     float64
				ok    bool
				left  float64
			}{
				{before, 4, true, 6},
				{after, 6, true, 0},   // a larger capacity does not give what it did not hold
				{before, 1, false, 0}, // nor does going back
				{after, 1, false, 0},
			} {
				res, err := v.RateLimit(t.Context(), step.limit.For("k").Count(step.n))
				if err != nil || res.OK != step.ok || res.Outcomes[0].Value != step.left {
					t.Fatalf("step %d: got %+v and %v, want granted %v with %v left", i, res, err, step.ok, step.left)
				}
			}
			// a plan is a rule given with the request
			if res, err := v.RateLimit(t.Context(), before.For("k").Rule(large).Count(50).OrReserve()); err != nil ||
				!res.OK || res.Outcomes[0].Value != -50 {
				t.Fatalf("got %+v and %v, want 50 tokens owed", res, err)
			}
			if res, err := v.CheckRateLimit(t.Context(), before.For("k")); err != nil || res.OK ||
				res.Outcomes[0].Value != -50 {
				t.Fatalf("got %+v and %v, want the debt kept", res, err)
			}
			clock.Add(20 * rig.Never) // more than fills both
			for range 3 {
				for limit, most := range map[ratelimit.Limit]float64{before: 10, after: 100} {
					s, err := v.Value(t.Context(), limit.For("k"))
					if err != nil || s.Value != most {
						t.Errorf("%v of %v left (%v)", s.Value, most, err)
					}
				}
			}
		})
	}
}

// The windows of a key are where they are, whatever happens to its row.
func TestWindowsKeepTheirPhase(t *testing.T) {
	t.Parallel()
	limit := ratelimit.MustDefine("phase", ratelimit.FixedWindow{Rate: 10, Period: time.Hour})
	pool, clock := pgtest.Pool(t), rig.Clock()
	a := rig.Limiter(t, ratelimit.Config{Clock: clock.Now}).Autocommit(pool)
	starts := map[string]bool{}
	for i := range 20 {
		key := fmt.Sprint(i)
		var phases []time.Duration
		note := func() {
			s, err := a.Value(t.Context(), limit.For(key))
			if err != nil {
				t.Fatal(err)
			}
			phases = append(phases, time.Duration(s.TS.UnixMicro()%time.Hour.Microseconds())*time.Microsecond)
		}
		note()
		rig.Take(t, a, limit.For(key))
		note()
		clock.Add(17 * time.Minute)
		if err := a.ResetRateLimit(t.Context(), limit.For(key)); err != nil {
			t.Fatal(err)
		}
		note()
		rig.Exec(t, pool, `DELETE FROM weir_balance`) // as a prune would
		clock.Add(100*time.Hour + 13*time.Minute)
		note()
		rig.Take(t, a, limit.For(key))
		note()
		for _, p := range phases {
			if p != phases[0] {
				t.Errorf("key %s: windows started %v after the hour, then %v", key, phases[0], p)
			}
		}
		starts[phases[0].String()] = true
	}
	if len(starts) < 15 {
		t.Errorf("20 keys have only %d different phases", len(starts))
	}
}

func TestWhatIsGivenBackIsNoGift(t *testing.T) {
	t.Parallel()
	bucket := ratelimit.MustDefine("giveBucket", ratelimit.TokenBucket{Rate: 10, Period: time.Hour})
	window := ratelimit.MustDefine("giveWindow",
		ratelimit.FixedWindow{Rate: 10, Period: time.Hour, Start: rig.Clock().Now()})
	for _, w := range rig.Ways {
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			pool, clock := pgtest.Pool(t), rig.Clock()
			v := w.Verbs(t, rig.Limiter(t, ratelimit.Config{Portable: w.Portable, Clock: clock.Now}), pool)
			take := func(n float64) ratelimit.Result {
				t.Helper()
				res, err := v.RateLimit(t.Context(), window.For("k").Count(n).OrReserve(),
					bucket.For("k").Count(n).OrReserve())
				if err != nil || !res.OK {
					t.Fatal(res, err)
				}
				return res
			}
			want := func(inWindow, inBucket float64) {
				t.Helper()
				for limit, want := range map[ratelimit.Limit]float64{window: inWindow, bucket: inBucket} {
					if s, err := v.Value(t.Context(), limit.For("k")); err != nil || !sameTokens(s.Value, want) {
						t.Errorf("%s: %v left (%v), want %v", limit.Name(), s.Value, err, want)
					}
				}
			}
			give := func(res ratelimit.Result) {
				t.Helper()
				if err := v.GiveBack(t.Context(), res); err != nil {
					t.Fatal(err)
				}
			}

			first := take(4)
			want(6, 6)
			give(first)
			want(10, 10)
			give(first) // never above the capacity
			want(10, 10)
			plan := ratelimit.TokenBucket{Rate: 1000, Period: time.Hour}
			if s, err := v.Value(t.Context(), bucket.For("k").Rule(plan)); err != nil || s.Value != 10 {
				t.Errorf("a larger plan finds %v (%v), want 10", s.Value, err)
			}

			late := take(8)
			clock.Add(time.Hour) // the next window; the bucket has filled up
			want(10, 10)
			take(9)
			give(late)
			want(1, 9) // the window's tokens ended with it

			denied, err := v.RateLimit(t.Context(), window.For("k").Count(2))
			if err != nil || denied.OK {
				t.Fatal(denied, err)
			}
			give(denied) // took nothing
			want(1, 9)

			owed := take(10)
			want(-9, -1)
			give(owed)
			want(1, 9)

			// a reset fills up for every rule: giving back to a smaller one takes none of it away
			res := take(1)
			if err := v.ResetRateLimit(t.Context(), bucket.For("k"), window.For("k")); err != nil {
				t.Fatal(err)
			}
			give(res)
			large := ratelimit.TokenBucket{Rate: 1000, Period: time.Hour}
			if s, err := v.Value(t.Context(), bucket.For("k").Rule(large)); err != nil || s.Value != 1000 {
				t.Errorf("%v left (%v), want 1000", s.Value, err)
			}
		})
	}
}
