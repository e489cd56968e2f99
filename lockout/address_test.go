package lockout

import (
	"context"
	"net/netip"
	"testing"
	"time"
)

func TestAnAddressIsLockedOutOfAllAccounts(t *testing.T) {
	t.Parallel()
	g := newGuard(t, Config{AddressFailures: 20})
	for round, d := range []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute} {
		for i := range 20 {
			g.fail(1, from(name(100*round+i), 1))
		}
		g.locked(from("alice", 1), "address", d)
		g.clock.add(d / 2)
		g.locked(from("alice", 1), "address", d/2) // does not extend
		g.stands(Who{Account: "alice"}, State{Attempts: 5})
		g.succeed(from("alice", 2))
		g.clock.add(d / 2)
	}
	g.succeed(from("alice", 1))
}

// A denial for the account costs the address nothing.
func TestALockedAccountCostsTheAddressNothing(t *testing.T) {
	t.Parallel()
	g := newGuard(t, Config{AddressFailures: 20})
	g.fail(5, from("alice", 1))
	for range 50 {
		g.locked(from("alice", 2), "account", time.Minute)
	}
	g.stands(Who{Address: address(2)}, State{Attempts: 20})
}

// Who signs in to an account of his own between guesses at others' is locked as if he did not.
func TestSuccessesDoNotForgiveAnAddress(t *testing.T) {
	t.Parallel()
	g := newGuard(t, Config{AddressFailures: 10})
	for i := range 10 {
		g.stands(Who{Address: address(1)}, State{Attempts: 10 - i})
		g.fail(1, from(name(i), 1))
		if i < 9 {
			g.succeed(from("mallory", 1))
		}
	}
	g.locked(from("mallory", 1), "address", time.Minute)
}

// Nor by successes that were begun before the lock and end after it.
func TestAnAttemptFromBeforeAnAddressWasLockedIsNotGivenBackAfterIt(t *testing.T) {
	t.Parallel()
	g := newGuard(t, Config{AddressFailures: 10})
	var begun []*Attempt
	for i := range 4 {
		a, err := g.Begin(t.Context(), from("mallory"+name(i), 1))
		if err != nil {
			t.Fatal(err)
		}
		begun = append(begun, a)
	}
	for i := range 6 {
		g.fail(1, from(name(i), 1))
	}
	g.locked(from("bob", 1), "address", time.Minute)
	g.clock.add(time.Minute)
	for i := range 10 {
		if i < len(begun) {
			g.success(begun[i])
		}
		g.fail(1, from(name(i), 1))
	}
	g.locked(from("bob", 1), "address", 2*time.Minute)
}

// Many people behind one address, who sign in at once, are as many attempts while they are checked,
// and none after.
func TestManySignInsFromOneAddress(t *testing.T) {
	t.Parallel()
	g := newGuard(t, Config{AddressFailures: 10})
	var begun []*Attempt
	for i := range 10 {
		a, err := g.Begin(t.Context(), from(name(i), 1))
		if err != nil {
			t.Fatal(err)
		}
		begun = append(begun, a)
	}
	g.stands(Who{Address: address(1)}, State{Attempts: 0})
	for _, a := range begun {
		g.success(a)
	}
	g.stands(Who{Address: address(1)}, State{Attempts: 10})
}

func TestAddressesDoNotMatterIfTheyAreNotCounted(t *testing.T) {
	t.Parallel()
	g := newGuard(t, Config{AddressFailures: -1})
	for i := range 100 {
		g.fail(1, Who{Account: name(i)})
	}
	g.fail(5, from("alice", 1))
	g.locked(Who{Account: "alice"}, "account", time.Minute)
	if _, err := g.State(t.Context(), Who{Address: address(1)}); err == nil {
		t.Error("an address that is not counted has a state")
	}
}

func TestAddressesCountWholeOrByTheNetworkOfASubscriber(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"192.0.2.1":                   "192.0.2.1",
		"::ffff:192.0.2.1":            "192.0.2.1",
		"2001:db8:1:2:3:4:5:6":        "2001:db8:1:2::/64",
		"2001:db8:1:2:ffff::1%enp0s1": "2001:db8:1:2::/64",
		"2001:db8:1:3::":              "2001:db8:1:3::/64",
		"::1":                         "::/64",
	} {
		if got := addressKey(netip.MustParseAddr(address)); got != want {
			t.Errorf("%s counts as %s, want %s", address, got, want)
		}
	}
	g := newGuard(t, Config{AddressFailures: 1})
	g.fail(1, Who{Account: "alice", Address: netip.MustParseAddr("2001:db8::1")})
	g.locked(Who{Account: "bob", Address: netip.MustParseAddr("2001:db8::2:1")}, "address", time.Minute)
	g.succeed(Who{Account: "bob", Address: netip.MustParseAddr("2001:db8:0:1::1")})
}

// An address that comes again when a failure has been forgotten, and not before, is not locked at
// all.
func TestAnAddressThatWaitsIsNotLocked(t *testing.T) {
	t.Parallel()
	g := newGuard(t, Config{AddressFailures: 4, Window: time.Hour})
	for i := range 4 {
		g.fail(1, from(name(i), 1))
	}
	g.clock.add(15 * time.Minute)
	g.fail(1, from("alice", 1))
	g.stands(Who{Address: address(1)}, State{})
}

// An extended lock of an address, too, begins anew.
func TestALockedAddressIsExtendedIfAskedFor(t *testing.T) {
	t.Parallel()
	g := newGuard(t, Config{AddressFailures: 1, ExtendWhileLocked: true})
	g.fail(1, from("alice", 1))
	for range 3 {
		g.locked(from("bob", 1), "address", time.Minute)
		g.clock.add(59 * time.Second)
	}
	g.clock.add(time.Second)
	if ok, err := g.Attempt(context.WithoutCancel(t.Context()), from("bob", 1), right); !ok || err != nil {
		t.Errorf("after the lock: %v, %v", ok, err)
	}
}
