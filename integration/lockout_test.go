package integration

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/lockout"
	"github.com/weir-go/weir/ratelimit"
)

// A charge that may have been committed or not is none: nothing is checked. Nor does a success
// count whose record is unknown.
func TestAnAttemptOfUnknownOutcomeLetsNobodyIn(t *testing.T) {
	t.Parallel()
	for when, left := range map[string]int{"before": 5, "after": 4} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			var c cutter
			pool := pgtest.Pool(t, c.through)
			guard, err := lockout.New(rig.Limiter(t, ratelimit.Config{}), pool, lockout.Config{})
			if err != nil {
				t.Fatal(err)
			}
			alice := lockout.Who{Account: "alice", Address: netip.MustParseAddr("192.0.2.1")}
			stands := func(want int) {
				t.Helper()
				if s, err := guard.State(t.Context(), alice); err != nil || s.Attempts != want {
					t.Errorf("%+v (%v), want %d attempts left", s, err, want)
				}
			}

			c.arm(when)
			ok, err := guard.Attempt(t.Context(), alice, func(context.Context) (bool, error) {
				t.Error("checked")
				return true, nil
			})
			if ok || !errors.Is(err, ratelimit.ErrOutcomeUnknown) {
				t.Errorf("the charge: %v, %v", ok, err)
			}
			stands(left)

			ok, err = guard.Attempt(t.Context(), alice, func(context.Context) (bool, error) {
				c.arm(when)
				return true, nil
			})
			if ok || !errors.Is(err, ratelimit.ErrOutcomeUnknown) {
				t.Errorf("the success: %v, %v", ok, err)
			}
			stands(map[string]int{"before": 4, "after": 5}[when])
		})
	}
}

// Two guards in two processes, and one row: what one denies the other does, at the database's own
// clock.
func TestALockHoldsInEveryProcess(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	guard := func() *lockout.Lockout {
		g, err := lockout.New(rig.Limiter(t, ratelimit.Config{}), pool, lockout.Config{})
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	one, other := guard(), guard()
	alice := lockout.Who{Account: "alice", Address: netip.MustParseAddr("192.0.2.1")}
	for range 5 {
		if ok, err := one.Attempt(t.Context(), alice, func(context.Context) (bool, error) {
			return false, nil
		}); ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	for _, g := range []*lockout.Lockout{one, other, one, other} {
		var locked *lockout.LockedError
		if _, err := g.Begin(t.Context(), alice); !errors.As(err, &locked) ||
			locked.RetryAfter() <= 0 || locked.RetryAfter().Minutes() > 1 {
			t.Errorf("got %v", err)
		}
	}
	if err := other.Unlock(t.Context(), alice); err != nil {
		t.Fatal(err)
	}
	if _, err := one.Begin(t.Context(), alice); err != nil {
		t.Errorf("after another process has unlocked: %v", err)
	}
}

// The one whose attempt has locked an address is told no longer a time than the lock lasts: rounded
// up it would be a second more.
func TestWhoLocksAnAddressIsToldTheLengthOfTheLock(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	guard, err := lockout.New(rig.Limiter(t, ratelimit.Config{}), pool, lockout.Config{AddressFailures: 1})
	if err != nil {
		t.Fatal(err)
	}
	address := netip.MustParseAddr("192.0.2.1")
	if _, err := guard.Begin(t.Context(), lockout.Who{Account: "alice", Address: address}); err != nil {
		t.Fatal(err)
	}
	var locked *lockout.LockedError
	if _, err := guard.Begin(t.Context(), lockout.Who{
		Account: "bob", Address: address,
	}); !errors.As(err, &locked) || locked.RetryAfter() > time.Minute || locked.RetryAfter() <= 0 {
		t.Errorf("got %v, want a lock of a minute", err)
	}
}
