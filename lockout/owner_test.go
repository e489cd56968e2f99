package lockout

import (
	"testing"
	"time"
)

// known is from, with a token.
func known(account string, n int, token string) Who {
	who := from(account, n)
	who.Device = token
	return who
}

// An attacker with a thousand addresses takes each attempt there is, for days. The owner's own
// device lets him in at once, all the while. From another device he is let in when he is there
// before the attacker, at the latest a Cap after he has first come: nothing that the attacker does
// while the lock lasts makes it longer.
func TestAnAttackerCannotLockTheOwnerOutForEver(t *testing.T) {
	t.Parallel()
	devices := newDevices(t, key(1))
	g := newGuard(t, Config{Devices: devices, Window: time.Hour, Cap: time.Hour})
	mine := devices.Issue("alice", "")
	attacker := 0
	next := func() Who { attacker = attacker%1000 + 1; return from("alice", attacker) }
	guesses := 0
	attack := func() State {
		for {
			state, err := g.State(t.Context(), Who{Account: "alice"})
			if err != nil {
				t.Fatal(err)
			}
			if !state.LockedUntil.IsZero() {
				return state
			}
			g.fail(1, next())
			guesses++
		}
	}
	for range 20 {
		state := attack()
		g.fail(2, known("alice", 2001, mine)) // errs twice
		g.succeed(known("alice", 2001, mine))
		g.stands(known("alice", 2001, mine), State{Attempts: 5})

		wait := state.LockedUntil.Sub(g.clock.now())
		if wait > time.Hour {
			t.Fatalf("locked for %v", wait)
		}
		for range 3 {
			g.clock.add(wait / 4)
			g.locked(next(), "account", state.LockedUntil.Sub(g.clock.now()))
		}
		g.clock.add(state.LockedUntil.Sub(g.clock.now()))
	}
	attack()
	if guesses != 21*5 {
		t.Errorf("the attacker had %d guesses", guesses)
	}
	g.clock.add(time.Hour)
	g.succeed(from("alice", 2002))
}

// One address cannot take all of an account's attempts for long: after ten locks of the account it
// is locked itself, by all accounts together.
func TestOneAddressIsLockedItself(t *testing.T) {
	t.Parallel()
	g := newGuard(t, Config{AddressFailures: 50, Window: 1000 * time.Hour, Cap: time.Minute})
	for range 10 {
		g.fail(5, from("alice", 1))
		g.clock.add(time.Minute)
	}
	g.locked(from("alice", 1), "address", time.Minute)
	g.succeed(from("alice", 2))
}

// A device that is known has as many tries as anybody, and its own locks; neither the account nor
// the address suffers for it.
func TestAStolenTokenIsWorthAFewTries(t *testing.T) {
	t.Parallel()
	devices := newDevices(t, key(1))
	g := newGuard(t, Config{Devices: devices, AddressFailures: 5})
	stolen := devices.Issue("alice", "")
	for i, d := range []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute} {
		g.fail(5, known("alice", i, stolen))
		g.locked(known("alice", 10+i, devices.Issue("alice", stolen)), "device", d)
		g.clock.add(d)
	}
	g.fail(5, known("alice", 1, stolen))
	g.stands(from("alice", 1), State{Attempts: 5})

	// For another account it is no token at all.
	g.fail(5, known("bob", 2, stolen))
	g.locked(from("bob", 3), "account", time.Minute)

	// Another device of the owner's does not notice.
	g.succeed(known("alice", 3, devices.Issue("alice", "")))
}

// What is no token is charged as nothing is: to the account and the address.
func TestAForgedTokenOpensNothing(t *testing.T) {
	t.Parallel()
	g := newGuard(t, Config{Devices: newDevices(t, key(1))})
	forger := newDevices(t, key(2))
	for range 5 {
		g.fail(1, known("alice", 1, forger.Issue("alice", "")))
	}
	g.locked(known("alice", 1, forger.Issue("alice", "")), "account", time.Minute)
	g.stands(Who{Address: address(1)}, State{Attempts: 45})
}

// A neighbour who has locked the address that they share does not lock out who has signed in
// before.
func TestAKnownDeviceIsNotLockedWithItsAddress(t *testing.T) {
	t.Parallel()
	devices := newDevices(t, key(1))
	g := newGuard(t, Config{Devices: devices, AddressFailures: 3})
	for i := range 3 {
		g.fail(1, from(name(i), 1))
	}
	g.locked(from("alice", 1), "address", time.Minute)
	g.succeed(known("alice", 1, devices.Issue("alice", "")))
	g.locked(from("alice", 1), "address", time.Minute)
}

// What succeeds with a token says nothing of those who guess without: their lock stays.
func TestASuccessWithATokenKeepsTheAccountsLock(t *testing.T) {
	t.Parallel()
	devices := newDevices(t, key(1))
	g := newGuard(t, Config{Devices: devices})
	g.fail(5, from("alice", 1))
	g.succeed(known("alice", 2, devices.Issue("alice", "")))
	g.locked(from("alice", 1), "account", time.Minute)
	if err := g.Unlock(t.Context(), Who{Account: "alice"}); err != nil {
		t.Fatal(err)
	}
	g.succeed(from("alice", 1))
}
