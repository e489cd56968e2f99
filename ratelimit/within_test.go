package ratelimit_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-go/weir/ratelimit"
)

func TestWithinGrantsWhatMayRunInTime(t *testing.T) {
	t.Parallel()
	bucket := define(t, ratelimit.TokenBucket{Rate: 10, Period: 10 * sec, MaxReserved: ratelimit.Tokens(5)})
	window := define(t, ratelimit.FixedWindow{Rate: 10, Period: 10 * sec, MaxReserved: ratelimit.Tokens(25), Start: t0})
	for _, tc := range []struct {
		name   string
		l      ratelimit.Limit
		value  float64
		paused time.Duration
		n      float64
		within time.Duration
		at     time.Duration
		ok     bool
		when   time.Duration // RunAt or RetryAt
	}{
		{"tokens there", bucket, 3, 0, 3, 0, 0, true, 0},
		{"one missing, now", bucket, 3, 0, 4, 0, 0, false, sec},
		{"one missing, in time", bucket, 3, 0, 4, sec, 0, true, sec},
		{"one missing, a microsecond late", bucket, 3, 0, 4, sec - us, 0, false, us},
		{"parts of a microsecond", bucket, 3, 0, 4, sec - 1, 0, false, us},
		{"behind others", bucket, -2, 0, 3, 4 * sec, 0, false, sec},
		{"behind others, later", bucket, -2, 0, 3, 4 * sec, sec, true, 5 * sec},
		{"more than MaxReserved", bucket, -2, 0, 4, time.Hour, 0, false, sec},
		{"nothing asked of a debt", bucket, -2, 0, 0, sec, 0, false, sec},
		{"paused", bucket, 3, 4 * sec, 3, 4 * sec, 0, true, 4 * sec},
		{"paused for too long", bucket, 3, 4 * sec, 3, 4*sec - us, 0, false, us},
		{"paused, now", bucket, 3, 4 * sec, 3, 0, 0, false, 4 * sec},
		{"paused, and one missing", bucket, 3, 4 * sec, 4, 5 * sec, 0, true, 5 * sec},
		{"paused, and one missing too late", bucket, 3, 4 * sec, 4, 4500 * ms, 0, false, 500 * ms},
		{"window: in the next", window, 3, 0, 4, 7 * sec, 3 * sec, true, 10 * sec},
		{"window: the next is too late", window, 3, 0, 4, 7*sec - us, 3 * sec, false, 3*sec + us},
		{"window: the one after it", window, 3, 0, 20, 17 * sec, 3 * sec, true, 20 * sec},
		{"window: paused until the next", window, 3, 12 * sec, 4, 9 * sec, 3 * sec, false, 11 * sec},
		{"window: paused into the next", window, 3, 12 * sec, 3, 9 * sec, 3 * sec, true, 12 * sec},
	} {
		s := ratelimit.State{Value: tc.value, TS: t0}
		if tc.paused > 0 {
			s.PausedUntil = t0.Add(tc.paused)
		}
		d := decide(t, tc.l.For("key").Count(tc.n).Within(tc.within), s, t0.Add(tc.at))
		at := d.RetryAt
		if d.OK {
			at = d.RunAt
		}
		if d.OK != tc.ok || tc.when == 0 && !at.IsZero() || tc.when != 0 && !at.Equal(t0.Add(tc.when)) {
			t.Errorf("%s: %+v", tc.name, d)
		}
	}
}

// anyWithin draws a time that may matter under the rule.
func anyWithin(r terms) *rapid.Generator[time.Duration] {
	p := r.period.Microseconds()
	return rapid.Map(rapid.OneOf(rapid.Just(int64(0)), rapid.Just(p), rapid.Just(3*p),
		rapid.Int64Range(0, p), rapid.Int64Range(0, 60*p)),
		func(n int64) time.Duration { return time.Duration(n) * us })
}

// Granted, it may run in time; denied, it is granted at RetryAt and not a microsecond before, and
// could not have run in time.
func TestWithinIsExact(t *testing.T) {
	check(t, func(t *rapid.T) {
		r := anyTerms().Draw(t, "rule")
		l := define(t, r.rule())
		for range 10 {
			reserve := ask(l, anyCount(r, true).Draw(t, "n"), true)
			within := anyWithin(r).Draw(t, "within")
			req := reserve.Within(within)
			s := anyState(r, t0).Draw(t, "state")
			if rapid.Bool().Draw(t, "pause") {
				s = anyPause(t, r, t0)
			}
			d, err := ratelimit.Decide(req, s, t0)
			if err != nil {
				if full := decide(t, reserve, ratelimit.State{}, t0); !r.window && full.RunAt.Sub(t0) <= within {
					t.Fatalf("refused, and runs at %v of the full limit: %v", full.RunAt, err)
				}
				continue
			}
			ahead := decide(t, reserve, s, t0)
			since := ahead.State.TS
			if r.window {
				since = maxTime(t0, s.TS)
			}
			if in := ahead.OK && (ahead.RunAt.IsZero() || within > 0 && ahead.RunAt.Sub(since) <= within); in != d.OK {
				t.Fatalf("%v within %v of %+v: %+v, reserved %+v", req, within, s, d, ahead)
			}
			if d.OK {
				if d != ahead {
					t.Fatalf("within %v of %+v: %+v, reserved %+v", within, s, d, ahead)
				}
				continue
			}
			if !decide(t, req, s, d.RetryAt).OK || decide(t, req, s, d.RetryAt.Add(-us)).OK {
				t.Fatalf("RetryAt %v is not the first instant within %v of %+v", d.RetryAt, within, s)
			}
		}
	})
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Who would be granted now would be granted later too, if nobody else came: else no RetryAt could
// be right. The numbers are such that no rounding decides between two windows.
func TestGrantingWithinIsMonotoneInTime(t *testing.T) {
	check(t, func(t *rapid.T) {
		r := anyTerms().Draw(t, "rule")
		eighths := func(name string, low, high int) float64 {
			return float64(rapid.IntRange(low, high).Draw(t, name)) / 8
		}
		r.rate, r.capacity, r.debt = eighths("rate", 1, 800), eighths("capacity", 0, 800), eighths("debt", 0, 800)
		l, err := ratelimit.Define("limit", r.rule())
		if err != nil {
			t.Skip(err)
		}
		req := l.For("key").Count(eighths("n", 0, 1600)).Within(anyWithin(r).Draw(t, "within"))
		s := ratelimit.State{Value: eighths("value", -800, 800), TS: t0}
		if rapid.Bool().Draw(t, "pause") {
			s.PausedUntil = t0.Add(time.Duration(rapid.Int64Range(0, 3*r.period.Microseconds()).Draw(t, "paused")) * us)
		}
		before, err := ratelimit.Decide(req, s, t0)
		if err != nil {
			t.Skip(err)
		}
		now := t0
		for range 30 {
			now = now.Add(time.Duration(rapid.Int64Range(0, r.period.Microseconds()).Draw(t, "elapsed")) * us)
			d := decide(t, req, s, now)
			if before.OK && !d.OK {
				t.Fatalf("granted earlier, denied at %v: %+v", now, d)
			}
			if !d.OK && !before.OK && d.RetryAt != before.RetryAt {
				t.Fatalf("RetryAt moved from %v to %v", before.RetryAt, d.RetryAt)
			}
			before = d
		}
	})
}

func TestBadTimesAreRefused(t *testing.T) {
	t.Parallel()
	bucket := define(t, ratelimit.TokenBucket{Rate: 10, Period: 10 * sec})
	window := define(t, ratelimit.FixedWindow{Rate: 10, Period: 10 * sec, Start: t0})
	for name, tc := range map[string]struct {
		r     ratelimit.Request
		field string
		never bool
		want  string
	}{
		"negative":      {bucket.For("key").Within(-1), "Within", false, "0 or more"},
		"more than now": {bucket.For("key").Count(11).Within(0), "count", true, "at most the capacity of 10"},
		"more than comes": {bucket.For("key").Count(13).Within(2 * sec), "count", true,
			"at most 12: the capacity of 10 plus what flows in within any 2s"},
		"more than comes in windows": {window.For("key").Count(31).Within(15 * sec), "count",
			true, "at most 20: the capacity of 10 plus what flows in within any 15s"},
		"more than is sure of windows": {window.For("key").Count(21).Within(15 * sec), "count",
			false, "at most 20: the capacity of 10 plus what flows in within any 15s"},
	} {
		_, err := ratelimit.Decide(tc.r, ratelimit.State{}, t0)
		var invalid *ratelimit.InvalidError
		if !errors.As(err, &invalid) || invalid.Field != tc.field || errors.Is(err,
			ratelimit.ErrNeverGranted) != tc.never || !strings.HasPrefix(invalid.Want, tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, r := range map[string]ratelimit.Request{
		"what comes":             bucket.For("key").Count(12).Within(2 * sec),
		"what comes in windows":  window.For("key").Count(20).Within(15 * sec),
		"for ever":               bucket.For("key").Count(1e6).Within(1<<63 - 1),
		"bounded, then reserved": bucket.For("key").Count(12).Within(2 * sec).OrReserve(),
	} {
		if d := decide(t, r, ratelimit.State{}, t0); !d.OK {
			t.Errorf("%s: %+v", name, d)
		}
	}
}
