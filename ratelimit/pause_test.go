package ratelimit_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-go/weir/ratelimit"
)

func TestNothingIsGrantedDuringAPauseButAhead(t *testing.T) {
	t.Parallel()
	for _, rule := range []ratelimit.Rule{
		ratelimit.TokenBucket{Rate: 10, Period: 10 * sec, MaxReserved: ratelimit.Tokens(5)},
		ratelimit.FixedWindow{Rate: 10, Period: 10 * sec, MaxReserved: ratelimit.Tokens(5), Start: t0},
	} {
		l := define(t, rule)
		until := t0.Add(25 * sec)
		_, windowed := rule.(ratelimit.FixedWindow)
		repaid := until.Add(2 * sec) // two tokens are owed
		if windowed {
			repaid = t0.Add(30 * sec)
		}
		for _, tc := range []struct {
			name    string
			value   float64
			now     time.Time
			n       float64
			reserve bool
			ok      bool
			left    float64
			at      time.Time // RunAt or RetryAt
		}{
			{"tokens there", 4, t0, 1, false, false, 4, until},
			{"nothing asked", 4, t0, 0, false, false, 4, until},
			{"the last microsecond", 4, until.Add(-us), 1, false, false, 4, until},
			{"over", 4, until, 1, false, true, 3, time.Time{}},
			{"too few tokens", 4, t0.Add(20 * sec), 6, false, false, 4, repaid},
			{"reserved of what is there", 4, t0, 4, true, true, 0, until},
			{"nothing reserved", 4, t0, 0, true, true, 4, until},
			{"reserved, over", 4, until, 4, true, true, 0, time.Time{}},
			{"reserved beyond it", 4, t0.Add(20 * sec), 6, true, true, -2, repaid},
			{"reserved beyond the bound", -4, t0.Add(20 * sec), 3, true, false, -4, repaid},
		} {
			s := ratelimit.State{Value: tc.value, TS: t0, PausedUntil: until, Delay: time.Hour}
			d := decide(t, ask(l, tc.n, tc.reserve), s, tc.now)
			at := d.RetryAt
			if d.OK {
				at = d.RunAt
			}
			if d.OK != tc.ok || d.State.Value != tc.left || !at.Equal(tc.at) || d.State.Delay != time.Hour {
				t.Errorf("window %v: %s: %+v", windowed, tc.name, d)
			}
			if paused := tc.now.Before(until); paused != d.State.PausedUntil.Equal(until) ||
				paused == d.State.PausedUntil.IsZero() {
				t.Errorf("window %v: %s: paused until %v", windowed, tc.name, d.State.PausedUntil)
			}
			if !d.RunAt.IsZero() && d.PacedAt.Before(d.RunAt) || d.RunAt.IsZero() != d.PacedAt.IsZero() {
				t.Errorf("window %v: %s: paced at %v, runs at %v", windowed, tc.name, d.PacedAt, d.RunAt)
			}
		}
	}
}

// anyPause draws a state in a pause, or after one.
func anyPause(t *rapid.T, r terms, now time.Time) ratelimit.State {
	s := anyState(r, now).Draw(t, "state")
	s.PausedUntil = now.Add(time.Duration(rapid.OneOf(rapid.Just(int64(0)),
		rapid.Int64Range(-2*r.period.Microseconds(), 5*r.period.Microseconds()),
		rapid.Int64Range(1, 366*24*3600*1e6)).Draw(t, "paused")) * us)
	return s
}

// The promise of every denial, in a pause and after it.
func TestPausedRequestIsGrantedAtExactlyRetryAt(t *testing.T) {
	check(t, func(t *rapid.T) {
		r := anyTerms().Draw(t, "rule")
		l := define(t, r.rule())
		for range 10 {
			reserve := rapid.Bool().Draw(t, "reserve")
			req := ask(l, anyCount(r, reserve).Draw(t, "n"), reserve)
			s := anyPause(t, r, t0)
			d := decide(t, req, s, t0)
			if d.OK && !reserve && s.PausedUntil.After(t0) {
				t.Fatalf("granted in a pause: %+v from %+v", d, s)
			}
			if d.OK && d.RunAt.Before(s.PausedUntil) && s.PausedUntil.After(t0) {
				t.Fatalf("runs in a pause: %+v from %+v", d, s)
			}
			if d.OK {
				continue
			}
			if !reserve && d.RetryAt.Before(s.PausedUntil) {
				t.Fatalf("RetryAt is in the pause: %+v from %+v", d, s)
			}
			if !decide(t, req, s, d.RetryAt).OK || decide(t, req, s, d.RetryAt.Add(-us)).OK {
				t.Fatalf("RetryAt %v is not the first instant, from %+v", d.RetryAt, s)
			}
		}
	})
}

// Time stands still: what is asked at x after a pause meets what it would have met at x without
// one.
func TestAPauseShiftsTime(t *testing.T) {
	check(t, func(t *rapid.T) {
		r := anyTerms().Draw(t, "rule")
		r.window = false
		l := define(t, r.rule())
		value := rapid.Float64Range(-r.debt, r.capacity).Draw(t, "value")
		paused := time.Duration(rapid.Int64Range(1, 3*r.period.Microseconds()).Draw(t, "paused")) * us
		after := time.Duration(rapid.Int64Range(0, 3*r.period.Microseconds()).Draw(t, "after")) * us
		reserve := rapid.Bool().Draw(t, "reserve")
		req := ask(l, anyCount(r, reserve).Draw(t, "n"), reserve)
		want := decide(t, req, ratelimit.State{Value: value, TS: t0}, t0.Add(after))
		got := decide(t, req, ratelimit.State{Value: value, TS: t0, PausedUntil: t0.Add(paused)}, t0.Add(paused+after))
		shifted := func(at time.Time) time.Time {
			if at.IsZero() {
				return at
			}
			return at.Add(paused)
		}
		if got.OK != want.OK || got.State.Value != want.State.Value ||
			!got.RunAt.Equal(shifted(want.RunAt)) || !got.RetryAt.Equal(shifted(want.RetryAt)) {
			t.Fatalf("%+v, without the pause of %v %+v", got, paused, want)
		}
	})
}

// A Decision's State carries the pause on.
func TestDecisionsCarryThePauseOn(t *testing.T) {
	check(t, func(t *rapid.T) {
		r := anyTerms().Draw(t, "rule")
		l := define(t, r.rule())
		b := row{anyPause(t, r, t0)}
		until, now := b.state.PausedUntil, t0
		for range 10 {
			now = now.Add(time.Duration(rapid.Int64Range(0, r.period.Microseconds()).Draw(t, "pass")) * us)
			reserve := rapid.Bool().Draw(t, "reserve")
			d := b.take(t, ask(l, anyCount(r, reserve).Draw(t, "n"), reserve), now)
			if paused := until.After(now); paused == d.State.PausedUntil.IsZero() || paused && d.OK && !reserve {
				t.Fatalf("paused until %v, at %v: %+v", until, now, d)
			}
		}
	})
}

func TestDecideRefusesAPauseOfNoRow(t *testing.T) {
	t.Parallel()
	l := define(t, ratelimit.TokenBucket{Rate: 10, Period: sec})
	for _, s := range []ratelimit.State{
		{PausedUntil: t0},
		{TS: t0, PausedUntil: time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)},
		{TS: t0, PausedUntil: time.Date(-1, 1, 1, 0, 0, 0, 0, time.UTC)},
	} {
		if d, err := ratelimit.Decide(l.For("k"), s, t0); !errors.Is(err, ratelimit.ErrInvalid) {
			t.Errorf("%+v: %+v and %v", s, d, err)
		}
	}
}

func TestPausesThatMakeNoSenseAreRefused(t *testing.T) {
	t.Parallel()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		t.Fatal(err)
	}
	l := define(t, ratelimit.TokenBucket{Rate: 10, Period: sec})
	for _, d := range []time.Duration{0, -1, math.MinInt64, 366*24*time.Hour + 1, math.MaxInt64} {
		for way, err := range map[string]error{
			"tx":         limiter.Pause(t.Context(), nil, d, l.For("k")),
			"sql":        limiter.InSQL(nil).Pause(t.Context(), d, l.For("k")),
			"autocommit": limiter.Autocommit(nil).Pause(t.Context(), d, l.For("k")),
		} {
			var invalid *ratelimit.InvalidError
			if !errors.As(err, &invalid) || invalid.Value != d {
				t.Errorf("%s: %v: %v", way, d, err)
			}
		}
	}
}
