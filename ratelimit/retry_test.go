package ratelimit_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-go/weir/ratelimit"
)

// A denied caller who comes back at RetryAt, and finds the row as it was left, is granted; a
// microsecond before that it is denied. The row is the one in the database, which the denial has
// not written.
func TestDeniedRequestIsGrantedAtExactlyRetryAt(t *testing.T) {
	check(t, func(t *rapid.T) {
		r := anyTerms().Draw(t, "rule")
		l := define(t, r.rule())
		now := t0.Add(time.Duration(rapid.Int64Range(0, 1e14).Draw(t, "now")) * us)
		for range 10 {
			reserve := rapid.Bool().Draw(t, "reserve")
			req := ask(l, anyCount(r, reserve).Draw(t, "n"), reserve)
			s := anyState(r, now).Draw(t, "state")
			d := decide(t, req, s, now)
			if d.OK {
				if !d.RetryAt.IsZero() {
					t.Fatalf("granted, with a RetryAt: %+v", d)
				}
				continue
			}
			if !d.RetryAt.After(now) {
				t.Fatalf("denied at %v with a RetryAt that is not later: %+v", now, d)
			}
			if !decide(t, req, s, d.RetryAt).OK {
				t.Fatalf("denied at RetryAt: %+v", d)
			}
			if decide(t, req, s, d.RetryAt.Add(-us)).OK {
				t.Fatalf("granted a microsecond before RetryAt: %+v", d)
			}
		}
	})
}

// Decide may be told the balance as of the denial in place of the row; then a rounding lies between
// the two.
func TestRetryAtHoldsForTheRefilledBalanceToo(t *testing.T) {
	check(t, func(t *rapid.T) {
		r := anyTerms().Draw(t, "rule")
		l := define(t, r.rule())
		for range 10 {
			reserve := rapid.Bool().Draw(t, "reserve")
			req := ask(l, anyCount(r, reserve).Draw(t, "n"), reserve)
			s := ratelimit.State{Value: rapid.Float64Range(-r.debt, r.capacity).Draw(t, "value"), TS: t0}
			now := t0.Add(time.Duration(rapid.Int64Range(0, 3*r.period.Microseconds()).Draw(t, "elapsed")) * us)
			d := decide(t, req, s, now)
			if d.OK {
				continue
			}
			again := decide(t, req, d.State, now)
			if again.OK {
				t.Fatalf("%+v was denied, yet its own state grants", d)
			}
			off := again.RetryAt.Sub(d.RetryAt).Abs()
			slack := us + time.Duration(1e-12*float64(d.RetryAt.Sub(t0)))
			if r.window {
				slack = r.period // the rounding may decide on the one window or the next
			}
			if off > slack {
				t.Fatalf("RetryAt %v from the row, %v from the refilled balance", d.RetryAt, again.RetryAt)
			}
		}
	})
}

// At RunAt the debt is repaid, and not a microsecond before.
func TestReservedWorkRunsAtTheInstantItsDebtIsRepaid(t *testing.T) {
	check(t, func(t *rapid.T) {
		r := anyTerms().Draw(t, "rule")
		l := define(t, r.rule())
		for range 10 {
			req := ask(l, anyCount(r, true).Draw(t, "n"), true)
			s := anyState(r, t0).Draw(t, "state")
			d := decide(t, req, s, t0)
			switch {
			case !d.OK:
				if !d.RunAt.IsZero() {
					t.Fatalf("denied, with a RunAt: %+v", d)
				}
			case d.State.Value >= 0:
				if !d.RunAt.IsZero() {
					t.Fatalf("granted now, with a RunAt: %+v", d)
				}
			default:
				nothing := ask(l, 0, false)
				if !d.RunAt.After(t0) || !decide(t, nothing, d.State, d.RunAt).OK {
					t.Fatalf("at RunAt there is still a debt: %+v", d)
				}
				if decide(t, nothing, d.State, d.RunAt.Add(-us)).OK {
					t.Fatalf("the debt is repaid before RunAt: %+v", d)
				}
			}
		}
	})
}

// A client that obeys RetryAt, over and over, gets through on each second try.
func TestObeyingRetryAtIsNeverDeniedTwice(t *testing.T) {
	check(t, func(t *rapid.T) {
		r := anyTerms().Draw(t, "rule")
		l := define(t, r.rule())
		var b row
		now := t0
		for range 30 {
			reserve := rapid.Bool().Draw(t, "reserve")
			req := ask(l, anyCount(r, reserve).Draw(t, "n"), reserve)
			d := b.take(t, req, now)
			if d.OK {
				continue
			}
			now = d.RetryAt
			if d := b.take(t, req, now); !d.OK {
				t.Fatalf("denied at RetryAt: %+v", d)
			}
		}
	})
}
