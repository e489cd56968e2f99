package ratelimit_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/weir-go/weir/ratelimit"
)

func TestBadCountsAreRefused(t *testing.T) {
	t.Parallel()
	l := define(t, ratelimit.TokenBucket{Rate: 10, Period: sec, MaxReserved: tok(5)})
	for _, n := range []float64{-1, -5e-324, nan, -inf, math.Copysign(nan, -1), 10 * math.Pow(2, -41), 5e-324} {
		for _, reserve := range []bool{false, true} {
			_, err := ratelimit.Decide(ask(l, n, reserve), ratelimit.State{}, t0)
			var invalid *ratelimit.InvalidError
			if !errors.As(err, &invalid) || invalid.Field != "count" || invalid.Limit != "limit" ||
				invalid.Want == "" ||
				errors.Is(err, ratelimit.ErrNeverGranted) {
				t.Errorf("count %v, reserve %v: %v", n, reserve, err)
			}
		}
	}
	for _, n := range []float64{math.Copysign(0, -1), 0, 10 * math.Pow(2, -40), 0.1, 10} {
		if _, err := ratelimit.Decide(ask(l, n, false), ratelimit.State{}, t0); err != nil {
			t.Errorf("count %v: %v", n, err)
		}
	}
}

// A finite RetryAt for a count above the capacity would be a lie.
func TestCountThatCanNeverBeGrantedIsAnError(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for _, tc := range []struct {
		rule    ratelimit.Rule
		reserve bool
		most    float64
	}{
		{ratelimit.TokenBucket{Rate: 10, Period: sec}, false, 10},
		{ratelimit.TokenBucket{Rate: 10, Period: sec, Capacity: tok(4)}, false, 4},
		{ratelimit.TokenBucket{Rate: 10, Period: sec, Capacity: tok(40), MaxReserved: tok(5)}, false, 40},
		{ratelimit.TokenBucket{Rate: 10, Period: sec, Capacity: tok(40), MaxReserved: tok(5)}, true, 45},
		{ratelimit.TokenBucket{Rate: 10, Period: sec, Capacity: tok(0), MaxReserved: tok(5)}, true, 5},
		{ratelimit.TokenBucket{Rate: 10, Period: sec, Capacity: tok(0)}, false, 0},
		{ratelimit.TokenBucket{Rate: 10, Period: sec, MaxReserved: tok(0)}, true, 10},
		{ratelimit.TokenBucket{Rate: 1, Period: day}, true, 1 + 365_242},
		{ratelimit.FixedWindow{Rate: 3, Period: day, Start: t0}, false, 3},
		{ratelimit.FixedWindow{Rate: 3, Period: day, Start: t0, MaxReserved: tok(6)}, true, 9},
	} {
		l := define(t, tc.rule)
		for _, s := range []ratelimit.State{{}, {Value: -3, TS: t0}} {
			for _, n := range []float64{tc.most + 1e-6, tc.most + 1, 1e300, inf} {
				_, err := ratelimit.Decide(ask(l, n, tc.reserve), s, t0)
				if !errors.Is(err, ratelimit.ErrNeverGranted) || !errors.Is(err, ratelimit.ErrInvalid) {
					t.Errorf("%+v: %v of at most %v, reserve %v: %v", tc.rule, n, tc.most, tc.reserve, err)
				}
			}
			d, err := ratelimit.Decide(ask(l, tc.most, tc.reserve), s, t0)
			if err != nil || d.OK != (s == ratelimit.State{}) {
				t.Errorf("%+v: the whole of %v, reserve %v, from %+v: %+v, %v", tc.rule, tc.most, tc.reserve, s, d, err)
			}
			if err == nil && !d.OK && d.RetryAt.Before(t0.Add(us)) {
				t.Errorf("%+v: %+v", tc.rule, d)
			}
		}
	}
}

func TestRequestsAreValues(t *testing.T) {
	t.Parallel()
	l := define(t, ratelimit.TokenBucket{Rate: 10, Period: sec, MaxReserved: tok(5)})
	one := l.For("key")
	_ = one.Count(7)
	_ = one.OrReserve()
	_ = one.Rule(ratelimit.TokenBucket{Rate: 1, Period: time.Hour})
	if d := decide(t, one, ratelimit.State{Value: 0, TS: t0}, t0); d.OK || !d.RetryAt.Equal(t0.Add(100*ms)) {
		t.Errorf("%+v", d)
	}
	if d := decide(t, one, ratelimit.State{}, t0); d.State.Value != 9 {
		t.Errorf("one token is the default: %+v", d)
	}
}

func TestRuleOfTheCallReplacesTheLimits(t *testing.T) {
	t.Parallel()
	l := define(t, ratelimit.TokenBucket{Rate: 10, Period: sec})
	plan := ratelimit.TokenBucket{Rate: 100, Period: sec}
	r := l.For("key").Rule(plan).Count(60)
	if d := decide(t, r, ratelimit.State{}, t0); !d.OK || d.State.Value != 40 {
		t.Errorf("%+v", d)
	}
	if _, err := ratelimit.Decide(r.Rule(nil), ratelimit.State{}, t0); !errors.Is(err, ratelimit.ErrNeverGranted) {
		t.Errorf("nil is the limit's own rule: %v", err)
	}
}
