package lockout

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/ratelimit"
)

func TestABadConfigIsRefused(t *testing.T) {
	t.Parallel()
	g := newGuard(t, Config{})
	for want, cfg := range map[string]Config{
		"lockout.Config.Failures is -1":            {Failures: -1},
		"lockout.Config.Failures is 1000001":       {Failures: mostFailures + 1},
		"lockout.Config.AddressFailures":           {AddressFailures: mostFailures + 1},
		"lockout.Config.Window is 999ms":           {Window: 999 * time.Millisecond},
		"lockout.Config.Window is -1h0m0s":         {Window: -time.Hour},
		"lockout.Config.First is 999µs":            {First: 999 * time.Microsecond},
		"lockout.Config.First is 1.000000001s":     {First: time.Second + 1},
		"lockout.Config.First is 8784h0m0.000001s": {First: longest + time.Microsecond},
		"lockout.Config.Cap is 59s":                {Cap: 59 * time.Second},
		"lockout.Config.Cap is 8784h0m0.000001s":   {Cap: longest + time.Microsecond},
		"lockout.Config.Forget is 1ms":             {Forget: time.Millisecond},
		"name":                                     {Name: strings.Repeat("a", 250)},
		"NUL":                                      {Name: "a\x00"},
	} {
		if _, err := New(g.limiter, g.pool, cfg); !errors.Is(err, ratelimit.ErrInvalid) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %v, want it refused for %s", cfg, err, want)
		}
	}
	if _, err := New(nil, g.pool, Config{}); !errors.Is(err, ratelimit.ErrInvalid) {
		t.Errorf("without a limiter: %v", err)
	}
	if _, err := New(g.limiter, nil, Config{}); !errors.Is(err, ratelimit.ErrInvalid) {
		t.Errorf("without a pool: %v", err)
	}
	for _, cfg := range []Config{
		{First: 2 * time.Hour},
		{Failures: 1, AddressFailures: 1, Window: time.Second, First: time.Millisecond, Cap: longest, Forget: longest},
		{Failures: mostFailures, Window: time.Second},
		{First: longest, Cap: longest, Window: longest, Forget: longest},
	} {
		if _, err := New(g.limiter, g.pool, cfg); err != nil {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

func TestABadCallIsRefused(t *testing.T) {
	t.Parallel()
	g := newGuard(t, Config{})
	_, noAccount := g.Begin(t.Context(), Who{Address: address(1)})
	_, noAddress := g.Attempt(t.Context(), Who{Account: "alice"}, right)
	_, noCheck := g.Attempt(t.Context(), from("alice", 1), nil)
	_, nobody := g.State(t.Context(), Who{})
	zero := pgx.BeginFunc(t.Context(), g.pool, func(tx pgx.Tx) error { return new(Attempt).Succeeded(t.Context(), tx) })
	for name, err := range map[string]error{
		"no account": noAccount, "no address": noAddress, "no check": noCheck, "nobody": nobody,
		"nobody to unlock": g.Unlock(t.Context(), Who{}),
		"the zero Attempt": zero, "no Attempt": (*Attempt)(nil).Succeeded(t.Context(), nil),
	} {
		if !errors.Is(err, ratelimit.ErrInvalid) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	g.stands(from("alice", 1), State{Attempts: 5})
}

// At the ends of what is allowed the ladder is as long as it should be, and exact.
func TestLongLadders(t *testing.T) {
	t.Parallel()
	g := newGuard(t, Config{Failures: 1, AddressFailures: -1, First: time.Millisecond, Cap: longest,
		Window: longest, Forget: longest})
	alice := Who{Account: "alice"}
	total := 0
	for d := time.Millisecond; ; d *= 2 {
		g.fail(1, alice)
		g.locked(alice, "account", min(d, longest))
		g.clock.add(min(d, longest))
		total++
		g.stands(alice, State{Attempts: 1, Lockouts: total})
		if d >= longest {
			break
		}
	}
	g.fail(1, alice)
	g.locked(alice, "account", longest)
}

// Numbers that change while somebody is locked keep the lock, and what is remembered.
func TestChangedNumbersKeepTheLock(t *testing.T) {
	t.Parallel()
	g := newGuard(t, Config{Failures: 5, Window: time.Hour})
	g.fail(5, from("alice", 1))
	g.Lockout = g.another(Config{Failures: 2, Window: 10 * time.Hour, Cap: time.Minute})
	g.locked(from("alice", 1), "account", time.Minute)
	g.Lockout = g.another(Config{Failures: 10, Window: 10 * time.Minute})
	g.locked(from("alice", 1), "account", time.Minute)
	g.clock.add(time.Minute)
	g.fail(10, from("alice", 1))
	g.locked(from("alice", 1), "account", 2*time.Minute)
}

// What other numbers make of failures that were counted before is what Config's documentation says.
func TestOtherNumbersCountFailuresAsDocumented(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		failures int
		cfg      Config
		attempts int
	}{
		"the same":         {1, Config{}, 4},
		"more failures":    {1, Config{Failures: 10}, 8},
		"fewer failures":   {1, Config{Failures: 2}, 1},
		"a longer Window":  {1, Config{Window: 2 * time.Hour}, 2},
		"a shorter Window": {4, Config{Window: 10 * time.Minute}, 5},
	} {
		g := newGuard(t, Config{AddressFailures: -1})
		g.fail(c.failures, from("alice", 1))
		g.succeed(from("carol", 1))
		c.cfg.AddressFailures = -1
		g.Lockout = g.another(c.cfg)
		st, err := g.State(t.Context(), from("alice", 1))
		if err != nil || st.Attempts != c.attempts || st.Lockouts != 0 {
			t.Errorf("%s: %+v, %v, want %d attempts", name, st, err, c.attempts)
		}
		g.stands(from("carol", 1), State{Attempts: g.cfg.Failures})
	}
}

// A past lockout counts as long as it takes to be forgotten.
func TestAnotherForgetCountsLockoutsAsDocumented(t *testing.T) {
	t.Parallel()
	cfg := Config{Failures: 1, AddressFailures: -1, Forget: 2 * time.Hour}
	g := newGuard(t, cfg)
	for _, minutes := range []time.Duration{1, 2} {
		g.fail(1, from("alice", 1))
		g.clock.add(minutes * time.Minute)
	}
	for forget, lockouts := range map[time.Duration]int{1: 4, 2: 2, 4: 1} {
		cfg.Forget = forget * time.Hour
		g.Lockout = g.another(cfg)
		g.stands(from("alice", 1), State{Attempts: 1, Lockouts: lockouts})
	}
}

// A much longer Window locks an account with a recent failure once. An address with a success only
// has fewer attempts, until the added time has passed.
func TestAMuchLongerWindowLocksOnce(t *testing.T) {
	t.Parallel()
	g := newGuard(t, Config{})
	g.fail(1, from("alice", 1))
	g.succeed(from("carol", 2))
	g.Lockout = g.another(Config{Window: 24 * time.Hour})
	g.stands(Who{Account: "alice"}, State{})
	g.stands(Who{Address: address(2)}, State{Attempts: 2})
	g.locked(from("alice", 3), "account", time.Minute)
	g.clock.add(time.Minute)
	g.stands(Who{Account: "alice"}, State{Attempts: 5, Lockouts: 1})
	g.clock.add(23 * time.Hour)
	g.stands(Who{Address: address(2)}, State{Attempts: 50})
	g.fail(4, from("alice", 3))
	g.stands(Who{Account: "alice"}, State{Attempts: 1, Lockouts: 1})
}

// What is remembered does not depend on how much another ladder remembers, nor on whether nothing
// is remembered in a row or in none.
func TestAnotherLadderRemembersAsMuch(t *testing.T) {
	t.Parallel()
	alice := Who{Account: "alice"}
	for what, other := range map[string]Config{
		"longer":     {Failures: 1, AddressFailures: -1, Cap: 24 * time.Hour},
		"shorter":    {Failures: 1, AddressFailures: -1, Cap: 2 * time.Minute},
		"for longer": {Failures: 1, AddressFailures: -1, Forget: 48 * time.Hour},
	} {
		for lockouts, after := range map[int]time.Duration{1: 0, 0: 24 * time.Hour} {
			g := newGuard(t, Config{Failures: 1, AddressFailures: -1})
			g.fail(1, alice)
			g.clock.add(time.Minute + after)
			g.stands(alice, State{Attempts: 1, Lockouts: lockouts})
			g.Lockout = g.another(other)
			g.stands(alice, State{Attempts: 1, Lockouts: lockouts})
			g.fail(1, alice)
			g.locked(alice, "account", time.Minute<<lockouts)
			if t.Failed() {
				t.Fatal(what)
			}
		}
	}
}

func TestNamesKeepCountsApart(t *testing.T) {
	t.Parallel()
	g := newGuard(t, Config{Failures: 1})
	g.fail(1, from("alice", 1))
	g.Lockout = g.another(Config{Name: "pin", Failures: 1})
	g.succeed(from("alice", 1))
}
