package ratelimit_test

import (
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-go/weir/ratelimit"
)

// The next one pays, as in Guava's RateLimiter: a request of any size goes at once where nothing is
// owed.
func TestOnCreditTheNextOnePays(t *testing.T) {
	t.Parallel()
	bucket := define(t, ratelimit.TokenBucket{Rate: 1, Period: sec, Capacity: ratelimit.Tokens(5),
		MaxReserved: ratelimit.Tokens(4)})
	window := define(t, ratelimit.FixedWindow{Rate: 5, Period: 10 * sec, MaxReserved: ratelimit.Tokens(10), Start: t0})
	now := func(r ratelimit.Request) ratelimit.Request { return r.OnCredit() }
	reserved := func(r ratelimit.Request) ratelimit.Request { return r.OnCredit().OrReserve() }
	within := func(d time.Duration) func(ratelimit.Request) ratelimit.Request {
		return func(r ratelimit.Request) ratelimit.Request { return r.Within(d).OnCredit() }
	}
	for _, tc := range []struct {
		name   string
		l      ratelimit.Limit
		value  float64
		paused time.Duration
		n      float64
		how    func(ratelimit.Request) ratelimit.Request
		ok     bool
		left   float64
		when   time.Duration // RunAt or RetryAt
	}{
		{"full", bucket, 5, 0, 5, now, true, 0, 0},
		{"empty", bucket, 0, 0, 5, now, true, -5, 0},
		{"owing", bucket, -3, 0, 5, now, false, -3, 3 * sec},
		{"owing, whatever the count", bucket, -3, 0, 1, now, false, -3, 3 * sec},
		{"paused", bucket, 5, 2 * sec, 1, now, false, 5, 2 * sec},
		{"paused, owing", bucket, -1, 2 * sec, 1, now, false, -1, 3 * sec},
		{"reserved, empty", bucket, 0, 0, 9, reserved, true, -9, 0},
		{"reserved, owing", bucket, -3, 0, 5, reserved, true, -8, 3 * sec},
		{"reserved, owing more than MaxReserved", bucket, -8, 0, 1, reserved, false, -8, 4 * sec},
		{"reserved, paused", bucket, 2, 2 * sec, 5, reserved, true, -3, 2 * sec},
		{"reserved, paused, owing", bucket, -2, 2 * sec, 5, reserved, true, -7, 4 * sec},
		{"within, owing", bucket, -3, 0, 5, within(3 * sec), true, -8, 3 * sec},
		{"within, owing for longer", bucket, -3, 0, 5, within(2 * sec), false, -3, sec},
		{"window: empty", window, 0, 0, 5, now, true, -5, 0},
		{"window: owing", window, -5, 0, 5, now, false, -5, 10 * sec},
		{"window: reserved, owing", window, -7, 0, 5, reserved, true, -12, 20 * sec},
		{"window: within, owing", window, -5, 0, 5, within(10 * sec), true, -10, 10 * sec},
	} {
		s := ratelimit.State{Value: tc.value, TS: t0}
		if tc.paused > 0 {
			s.PausedUntil = t0.Add(tc.paused)
		}
		d := decide(t, tc.how(tc.l.For("key").Count(tc.n)), s, t0)
		at := d.RetryAt
		if d.OK {
			at = d.RunAt
		}
		if d.OK != tc.ok || d.State.Value != tc.left || tc.when == 0 && !at.IsZero() ||
			tc.when != 0 && !at.Equal(t0.Add(tc.when)) {
			t.Errorf("%s: %+v", tc.name, d)
		}
	}
	for name, r := range map[string]ratelimit.Request{
		"above the capacity":                 bucket.For("key").Count(6).OnCredit(),
		"above the capacity and MaxReserved": bucket.For("key").Count(10).OnCredit().OrReserve(),
	} {
		if _, err := ratelimit.Decide(r, ratelimit.State{}, t0); !errors.Is(err, ratelimit.ErrNeverGranted) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Tokens that are owed to a window's earlier reservations are not those of the take itself, which
// waits for none of its own.
func TestOnCreditIsPacedBehindThoseBeforeIt(t *testing.T) {
	t.Parallel()
	l := define(t, ratelimit.FixedWindow{Rate: 10, Period: 10 * sec, Start: t0})
	r := l.For("key").Count(4).OnCredit().OrReserve()
	b := row{ratelimit.State{TS: t0}}
	for i, want := range []time.Duration{0, 14 * sec, 18 * sec, 22 * sec} {
		if d := b.take(t, r, t0); !d.OK || want == 0 && !d.PacedAt.IsZero() ||
			want != 0 && !d.PacedAt.Equal(t0.Add(want)) {
			t.Errorf("take %d: %+v, want it paced at %v", i, d, want)
		}
	}
}

// On credit it is granted when a count of nothing would be, runs then, and leaves what a
// reservation of as much leaves.
func TestOnCreditIsNothingAskedAndTheCountOwed(t *testing.T) {
	check(t, func(t *rapid.T) {
		r := anyTerms().Draw(t, "rule")
		l := define(t, r.rule())
		for range 10 {
			n := anyCount(r, false).Draw(t, "n")
			if n == 0 {
				continue // asks for what it is compared with
			}
			s := anyState(r, t0).Draw(t, "state")
			if rapid.Bool().Draw(t, "pause") {
				s = anyPause(t, r, t0)
			}
			req, nothing := l.For("key").Count(n).OnCredit(), l.For("key").Count(0)
			d, want := decide(t, req, s, t0), decide(t, nothing, s, t0)
			if debt := want.State.Value; debt < 0 && -debt < n*1e-9 {
				continue // a sliver that drowns in the count
			}
			if d.OK != want.OK || !d.RunAt.IsZero() || d.OK && d.State.Value != want.State.Value-n {
				t.Fatalf("%v of %+v: %+v; nothing: %+v", n, s, d, want)
			}
			if !d.OK && (!decide(t, req, s, d.RetryAt).OK || decide(t, req, s, d.RetryAt.Add(-us)).OK) {
				t.Fatalf("RetryAt %v is not the first instant of %+v", d.RetryAt, s)
			}
		}
	})
}
