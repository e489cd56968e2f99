package model

import (
	"testing"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// A call that is denied takes nothing, be the denial expected or not: by the rules that it asked
// with, all that was there is there after it. What a larger rule had left above their capacity may
// be gone, as after every use of the smaller one.
func TestACallThatIsDeniedForAnotherLimitTakesNothing(t *testing.T) {
	t.Parallel()
	large := ratelimit.TokenBucket{Rate: 20, Period: rig.Never}
	small := ratelimit.TokenBucket{Rate: 10, Period: rig.Never}
	plan := ratelimit.MustDefine("a", large)
	empty := ratelimit.MustDefine("b", small)
	for name, before := range map[string]ratelimit.Request{
		"NeverUsed": plan.For("other"),
		"Used":      plan.For("k").Count(5),
	} {
		for _, expected := range []bool{false, true} {
			sub := name + "/Unexpected"
			if expected {
				sub = name + "/Expected"
			}
			t.Run(sub, func(t *testing.T) {
				t.Parallel()
				pool := pgtest.Pool(t)
				v := rig.Limiter(t, ratelimit.Config{Clock: rig.Clock().Now}).Autocommit(pool)
				take := func(want bool, requests ...ratelimit.Request) {
					t.Helper()
					if res, err := v.RateLimit(t.Context(), requests...); err != nil || res.OK != want {
						t.Fatalf("got %+v and %v, want granted %v", res, err, want)
					}
				}
				take(true, before)
				take(true, empty.For("k").Count(10))
				if expected {
					take(false, empty.For("k"))
				}
				asked := plan.For("k").Rule(small)
				had, err := v.Value(t.Context(), asked)
				if err != nil {
					t.Fatal(err)
				}
				take(false, asked.Count(3), empty.For("k"))
				if s, err := v.Value(t.Context(), asked); err != nil || s.Value != had.Value {
					t.Errorf("the denied call left %v of %v tokens (%v)", s.Value, had.Value, err)
				}
			})
		}
	}
}

// The window that tokens go back to is that of the row that they were taken from, though other rows
// of the call may be further on.
func TestTokensOfAnEndedWindowAreNotGivenToTheNext(t *testing.T) {
	t.Parallel()
	noon := rig.Clock().Now()
	window := ratelimit.MustDefine("a", ratelimit.FixedWindow{Rate: 10, Period: rig.Micros(1e6), Start: noon})
	bucket := ratelimit.MustDefine("b", ratelimit.TokenBucket{Rate: 10, Period: rig.Never})
	for _, level := range rig.Levels {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			pool, clock := pgtest.Pool(t), rig.Clock()
			l := rig.Limiter(t, ratelimit.Config{Clock: clock.Now})
			v := rig.Tx(l, pool, level)
			take := func(requests ...ratelimit.Request) ratelimit.Result {
				t.Helper()
				res, err := v.RateLimit(t.Context(), requests...)
				if err != nil || !res.OK {
					t.Fatal(res, err)
				}
				return res
			}
			clock.Set(noon.Add(rig.Micros(1_500_000)))
			take(bucket.For("k")) // its row is ahead
			clock.Set(noon)
			res := take(window.For("k").Count(4), bucket.For("k"))
			clock.Set(noon.Add(rig.Micros(1_200_000)))
			take(window.For("k").Count(10))
			if err := v.GiveBack(t.Context(), res); err != nil {
				t.Fatal(err)
			}
			if s, err := v.Value(t.Context(), window.For("k")); err != nil || s.Value != 0 {
				t.Errorf("%v tokens came into a window that had granted all of its own (%v)", s.Value, err)
			}
		})
	}
}
