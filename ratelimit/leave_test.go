package ratelimit_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-go/weir/ratelimit"
)

// Who leaves something is denied where others are still granted, and comes again when both would be
// there.
func TestLeaveKeepsAShareForTheOthers(t *testing.T) {
	t.Parallel()
	bucket := define(t, ratelimit.TokenBucket{Rate: 1, Period: sec, Capacity: ratelimit.Tokens(10)})
	window := define(t, ratelimit.FixedWindow{Rate: 10, Period: 10 * sec, Start: t0})
	for _, tc := range []struct {
		name            string
		l               ratelimit.Limit
		value, n, leave float64
		paused          time.Duration
		ok              bool
		when            time.Duration
	}{
		{"there is more", bucket, 7, 2, 4, 0, true, 0},
		{"just so", bucket, 6, 2, 4, 0, true, 0},
		{"one would be missing", bucket, 5, 2, 4, 0, false, sec},
		{"nothing is taken", bucket, 4, 0, 4, 0, true, 0},
		{"nothing is taken, and one is missing", bucket, 3, 0, 4, 0, false, sec},
		{"all that there can be", bucket, 10, 2, 8, 0, true, 0},
		{"owing", bucket, -1, 2, 8, 0, false, 11 * sec},
		{"paused", bucket, 9, 2, 4, 3 * sec, false, 3 * sec},
		{"paused, and one would be missing", bucket, 5, 2, 4, 3 * sec, false, 4 * sec},
		{"window", window, 6, 2, 4, 0, true, 0},
		{"window: the next one has it", window, 5, 2, 4, 0, false, 10 * sec},
	} {
		s := ratelimit.State{Value: tc.value, TS: t0}
		if tc.paused > 0 {
			s.PausedUntil = t0.Add(tc.paused)
		}
		d := decide(t, tc.l.For("key").Count(tc.n).Leave(tc.leave), s, t0)
		left := tc.value
		if tc.ok {
			left -= tc.n
		}
		if d.OK != tc.ok || d.State.Value != left || tc.ok != d.RetryAt.IsZero() ||
			!tc.ok && !d.RetryAt.Equal(t0.Add(tc.when)) {
			t.Errorf("%s: %+v", tc.name, d)
		}
	}
}

func TestWhatCannotBeLeftIsRefused(t *testing.T) {
	t.Parallel()
	r := define(t, ratelimit.TokenBucket{Rate: 1, Period: sec, Capacity: ratelimit.Tokens(10)}).For("key")
	for name, tc := range map[string]struct {
		r    ratelimit.Request
		want error
	}{
		"more than the capacity": {r.Leave(9.5), ratelimit.ErrNeverGranted},
		"below 0":                {r.Leave(-1), ratelimit.ErrInvalid},
		"NaN":                    {r.Leave(math.NaN()), ratelimit.ErrInvalid},
		"infinity":               {r.Leave(math.Inf(1)), ratelimit.ErrNeverGranted},
		"reserved":               {r.Leave(1).OrReserve(), ratelimit.ErrInvalid},
		"within":                 {r.Within(sec).Leave(1), ratelimit.ErrInvalid},
		"on credit":              {r.OnCredit().Leave(1), ratelimit.ErrInvalid},
	} {
		_, err := ratelimit.Decide(tc.r, ratelimit.State{}, t0)
		var invalid *ratelimit.InvalidError
		if !errors.Is(err, tc.want) || !errors.As(err, &invalid) || invalid.Field != "Leave" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// It is granted when a count of both would be, and takes its own only.
func TestLeaveIsAskedForAndNotTaken(t *testing.T) {
	check(t, func(t *rapid.T) {
		r := anyTerms().Draw(t, "rule")
		l := define(t, r.rule())
		for range 10 {
			n := anyCount(r, false).Draw(t, "n")
			leave := math.Trunc(rapid.Float64Range(0, 1).Draw(t, "leave") * (r.capacity - n))
			both := l.For("key").Count(n + leave)
			if _, err := ratelimit.Decide(both, ratelimit.State{}, t0); err != nil || n+leave-leave != n {
				continue // lost in rounding
			}
			s := anyState(r, t0).Draw(t, "state")
			if s.Value != math.Trunc(s.Value) || n != math.Trunc(n) {
				continue // else the two round differently
			}
			d, want := decide(t, l.For("key").Count(n).Leave(leave), s, t0), decide(t, both, s, t0)
			if d.State.Value != want.State.Value {
				want.State.Value += leave
			}
			if d.OK != want.OK && math.Abs(want.State.Value) > 1e-6 ||
				d.OK && math.Abs(d.State.Value-want.State.Value) > 1e-6 {
				t.Fatalf("%v of %+v, leaving %v: %+v; both: %+v", n, s, leave, d, want)
			}
			if req := l.For("key").Count(n).Leave(leave); !d.OK &&
				(!decide(t, req, s, d.RetryAt).OK || decide(t, req, s, d.RetryAt.Add(-us)).OK) {
				t.Fatalf("RetryAt %v is not the first instant of %+v", d.RetryAt, s)
			}
		}
	})
}
