package lockout

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

// Who comes from many addresses climbs the ladder all the same; what was remembered fades, one
// lockout each Forget.
func TestLocksDoubleUpToTheCapAndFade(t *testing.T) {
	t.Parallel()
	g := newGuard(t, Config{Failures: 3, First: time.Minute, Cap: 5 * time.Minute, Forget: time.Hour})
	for i, minutes := range []int{1, 2, 4, 5, 5, 5} {
		g.fail(3, from("alice", i))
		g.locked(from("alice", i), "account", time.Duration(minutes)*time.Minute)
		g.clock.add(time.Duration(minutes)*time.Minute - time.Microsecond)
		g.locked(from("alice", i), "account", time.Microsecond)
		g.clock.add(time.Microsecond)
	}
	// Four lockouts are remembered: as many as make the longest lock, and one.
	g.stands(from("alice", 0), State{Attempts: 3, Lockouts: 4})
	g.clock.add(2*time.Hour - time.Microsecond)
	g.stands(from("alice", 0), State{Attempts: 3, Lockouts: 3})
	g.clock.add(time.Microsecond)
	g.stands(from("alice", 0), State{Attempts: 3, Lockouts: 2})
	g.fail(3, from("alice", 0))
	g.locked(from("alice", 0), "account", 4*time.Minute)
	g.clock.add(4*time.Minute + 3*time.Hour)
	g.fail(3, from("alice", 0))
	g.locked(from("alice", 0), "account", time.Minute)
}

// The memory is not that of the lock: it is there when the lock is over, and its time begins then,
// however short Forget is.
func TestALockoutIsRememberedWhenTheLockHasEnded(t *testing.T) {
	t.Parallel()
	g := newGuard(t, Config{Failures: 1, First: time.Hour, Cap: 100 * time.Hour, Forget: time.Minute})
	for _, hours := range []int{1, 2, 4, 8} {
		g.fail(1, from("alice", 1))
		d := time.Duration(hours) * time.Hour
		g.locked(from("alice", 1), "account", d)
		g.clock.add(d)
	}
	g.clock.add(4 * time.Minute)
	g.fail(1, from("alice", 1))
	g.locked(from("alice", 1), "account", time.Hour)
}

func TestAttemptsWhileLockedCostNothing(t *testing.T) {
	t.Parallel()
	g := newGuard(t, Config{})
	g.fail(5, from("alice", 1))
	before := g.rows()
	for i := range 10 {
		g.clock.add(time.Second)
		g.locked(from("alice", i), "account", time.Minute-time.Duration(i+1)*time.Second)
	}
	if after := g.rows(); after != before {
		t.Errorf("attempts while locked have written:\n%s\nwas\n%s", after, before)
	}
	g.clock.add(50 * time.Second)
	g.stands(from("alice", 2), State{Attempts: 5, Lockouts: 1})
}

// rows is all that is stored.
func (g *guard) rows() string {
	g.t.Helper()
	var text string
	if err := g.pool.QueryRow(g.t.Context(), `SELECT coalesce(string_agg(b::text, E'\n' ORDER BY b.name, b.key), '') FROM weir_balance b WHERE name LIKE 'signIn%'`).Scan(&text); err != nil {
		g.t.Fatal(err)
	}
	return text
}

func TestAttemptsWhileLockedExtendTheLockIfAskedFor(t *testing.T) {
	t.Parallel()
	g := newGuard(t, Config{Failures: 2, ExtendWhileLocked: true})
	for _, d := range []time.Duration{time.Minute, 2 * time.Minute} {
		g.fail(2, from("alice", 1))
		for range 5 {
			g.clock.add(30 * time.Second)
			g.locked(from("alice", 1), "account", d) // begun anew
		}
		g.clock.add(d)
		g.stands(from("alice", 1), State{Attempts: 2, Lockouts: int(d / time.Minute)})
	}
}

// Failures fade one by one, and who stays below the rate is not locked.
func TestFailuresAreForgottenOneByOne(t *testing.T) {
	t.Parallel()
	g := newGuard(t, Config{Failures: 4, Window: time.Hour})
	g.fail(3, from("alice", 1))
	g.stands(from("alice", 2), State{Attempts: 1})
	g.clock.add(15 * time.Minute)
	g.stands(from("alice", 2), State{Attempts: 2})
	g.fail(1, from("alice", 1))
	for range 10 {
		g.clock.add(15 * time.Minute)
		g.fail(1, from("alice", 1))
	}
	g.fail(1, from("alice", 1))
	g.locked(from("alice", 1), "account", time.Minute)
}

func TestASuccessForgivesTheAccountsFailures(t *testing.T) {
	t.Parallel()
	g := newGuard(t, Config{})
	alice := from("alice", 1)
	g.fail(4, alice)
	g.succeed(alice) // the last attempt: it has locked, and lifts that
	g.stands(from("alice", 2), State{Attempts: 5})
	for range 20 {
		g.succeed(alice)
	}
	g.stands(from("alice", 2), State{Attempts: 5})
	g.fail(5, alice)
	g.clock.add(time.Minute)
	g.fail(4, alice)
	g.succeed(alice) // past lockouts stay remembered
	g.stands(from("alice", 2), State{Attempts: 5, Lockouts: 1})
}

// While an attempt is checked that would be the last, the account is locked; nobody else is checked
// beside it.
func TestTheLastAttemptLocksBeforeItIsChecked(t *testing.T) {
	t.Parallel()
	g := newGuard(t, Config{Failures: 2})
	g.fail(1, from("alice", 1))
	a, err := g.Begin(t.Context(), from("alice", 1))
	if err != nil {
		t.Fatal(err)
	}
	g.locked(from("alice", 2), "account", time.Minute)
	g.success(a)
	g.succeed(from("alice", 2))
	g.stands(from("alice", 2), State{Attempts: 2})
}

// A success that comes long after, when another lock has come and gone, takes back its own lockout
// only.
func TestASlowSuccessTakesBackItsOwnLockoutOnly(t *testing.T) {
	t.Parallel()
	g := newGuard(t, Config{Failures: 1})
	a, err := g.Begin(t.Context(), from("alice", 1))
	if err != nil {
		t.Fatal(err)
	}
	g.clock.add(time.Minute)
	g.fail(1, from("alice", 2))
	g.locked(from("alice", 2), "account", 2*time.Minute)
	g.stands(from("alice", 2), State{LockedUntil: g.clock.now().Add(2 * time.Minute), Lockouts: 2})
	g.success(a)
	g.stands(from("alice", 2), State{Attempts: 1, Lockouts: 1})
}

// success gives an attempt back in a transaction of the test's.
func (g *guard) success(a *Attempt) {
	g.t.Helper()
	if err := pgx.BeginFunc(g.t.Context(), g.pool, func(tx pgx.Tx) error {
		return a.Succeeded(g.t.Context(), tx)
	}); err != nil {
		g.t.Fatal(err)
	}
}

func TestASuccessThatRollsBackIsAFailure(t *testing.T) {
	t.Parallel()
	g := newGuard(t, Config{Failures: 2})
	a, err := g.Begin(t.Context(), from("alice", 1))
	if err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	err = pgx.BeginFunc(t.Context(), g.pool, func(tx pgx.Tx) error {
		if err := a.Succeeded(t.Context(), tx); err != nil {
			return err
		}
		return broken
	})
	if !errors.Is(err, broken) {
		t.Fatal(err)
	}
	g.stands(from("alice", 2), State{Attempts: 1})
}

// However an attempt ends but by a success, it counts.
func TestAnAttemptWithoutAnAnswerCounts(t *testing.T) {
	t.Parallel()
	g := newGuard(t, Config{Failures: 10})
	alice := from("alice", 1)
	broken := errors.New("broken")
	if ok, err := g.Attempt(t.Context(), alice, func(context.Context) (bool, error) {
		return true, broken
	}); ok || !errors.Is(err, broken) {
		t.Errorf("an error of the check: %v, %v", ok, err)
	}
	func() {
		defer func() { _ = recover() }()
		_, _ = g.Attempt(t.Context(), alice, func(context.Context) (bool, error) { panic("broken") })
	}()
	ctx, cancel := context.WithCancel(t.Context())
	if ok, err := g.Attempt(ctx, alice, func(context.Context) (bool, error) {
		cancel()
		return true, nil
	}); ok || !errors.Is(err, context.Canceled) {
		t.Errorf("a context that ends: %v, %v", ok, err)
	}
	if _, err := g.Begin(t.Context(), alice); err != nil { // and then the process ends
		t.Fatal(err)
	}
	g.stands(from("alice", 2), State{Attempts: 6})
}

// What is charged must not roll back with anything: inside of a transaction on the same pool there
// is no attempt.
func TestNoAttemptRollsBackWithItsCaller(t *testing.T) {
	t.Parallel()
	g := newGuard(t, Config{})
	broken := errors.New("broken")
	err := g.limiter.InTx(t.Context(), g.pool, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := g.Attempt(ctx, from("alice", 1), right); !errors.Is(err, ratelimit.ErrNested) {
			t.Errorf("got %v, want it refused", err)
		}
		// With a context that does not tell, it is another transaction.
		if _, err := g.Attempt(t.Context(), from("alice", 1), wrong); err != nil {
			t.Error(err)
		}
		return broken
	})
	if !errors.Is(err, broken) {
		t.Fatal(err)
	}
	g.stands(from("alice", 2), State{Attempts: 4})
}

// While an attempt is checked no row is locked and no connection held: the only one of the pool
// serves others.
func TestACheckHoldsNothing(t *testing.T) {
	t.Parallel()
	g := newGuard(t, Config{}, func(c *pgxpool.Config) { c.MaxConns = 1 })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ok, err := g.Attempt(ctx, from("alice", 1), func(ctx context.Context) (bool, error) {
		if in := g.pool.Stat().AcquiredConns(); in != 0 {
			t.Errorf("%d connections are held", in)
		}
		return g.Attempt(ctx, from("alice", 1), right)
	})
	if !ok || err != nil {
		t.Errorf("got %v, %v", ok, err)
	}
}

// Without the database nothing is checked, and nobody is told that he is locked.
func TestWithoutTheDatabaseNothingIsChecked(t *testing.T) {
	t.Parallel()
	g := newGuard(t, Config{})
	if _, err := g.pool.Exec(t.Context(), `ALTER TABLE weir_balance RENAME TO gone`); err != nil {
		t.Fatal(err)
	}
	ok, err := g.Attempt(t.Context(), from("alice", 1), func(context.Context) (bool, error) {
		t.Error("checked")
		return true, nil
	})
	if ok || err == nil || errors.Is(err, ratelimit.ErrDenied) {
		t.Errorf("got %v, %v", ok, err)
	}
}

// An error while giving back lets nobody in.
func TestASuccessThatCannotBeRecordedIsNone(t *testing.T) {
	t.Parallel()
	g := newGuard(t, Config{})
	ok, err := g.Attempt(t.Context(), from("alice", 1), func(ctx context.Context) (bool, error) {
		_, err := g.pool.Exec(ctx, `ALTER TABLE weir_balance RENAME TO gone`)
		return true, err
	})
	if ok || err == nil {
		t.Errorf("got %v, %v", ok, err)
	}
}

func TestUnlockForgetsEverything(t *testing.T) {
	t.Parallel()
	g := newGuard(t, Config{Failures: 2, AddressFailures: 4})
	for range 2 {
		g.fail(2, from("alice", 1))
		g.clock.add(time.Minute)
	}
	g.locked(from("alice", 2), "account", time.Minute)
	g.locked(from("bob", 1), "address", time.Minute)
	if err := g.Unlock(t.Context(), Who{Account: "alice"}); err != nil {
		t.Fatal(err)
	}
	g.stands(Who{Account: "alice"}, State{Attempts: 2})
	g.succeed(from("alice", 2))
	g.locked(from("bob", 1), "address", time.Minute) // is another matter
	if err := g.Unlock(t.Context(), Who{Address: address(1)}); err != nil {
		t.Fatal(err)
	}
	g.stands(Who{Address: address(1)}, State{Attempts: 4})
	g.succeed(from("bob", 1))
	g.fail(2, from("alice", 2))
	g.locked(from("alice", 2), "account", time.Minute)
}

func TestStateTellsTheStrictest(t *testing.T) {
	t.Parallel()
	g := newGuard(t, Config{Failures: 2, AddressFailures: 3})
	g.fail(2, from("alice", 1))
	g.stands(from("alice", 1), State{LockedUntil: g.clock.now().Add(time.Minute), Lockouts: 1})
	g.stands(from("bob", 1), State{Attempts: 1})
	g.stands(Who{Address: address(1)}, State{Attempts: 1})
}

// An account that does not exist is none of this package's business; whatever is typed in is
// counted, and not kept.
func TestNamesOfAnyShapeAreCountedAndNotKept(t *testing.T) {
	t.Parallel()
	g := newGuard(t, Config{Failures: 1, AddressFailures: -1})
	for _, account := range []string{"hunter2", "a\x00b", "\xff", strings.Repeat("a", 100_000),
		strings.Repeat("a", 100_001), " "} {
		g.fail(1, Who{Account: account})
		g.locked(Who{Account: account}, "account", time.Minute)
	}
	if rows := g.rows(); strings.Contains(rows, "hunter2") || strings.Contains(rows, "aaaa") || len(rows) > 12*300 {
		t.Errorf("stored: %s", rows)
	}
}

func TestALockedErrorIsADenial(t *testing.T) {
	t.Parallel()
	g := newGuard(t, Config{Failures: 1})
	g.fail(1, from("alice", 1))
	_, err := g.Begin(t.Context(), from("alice", 1))
	var denied *ratelimit.DeniedError
	if !errors.Is(err, ratelimit.ErrDenied) || !errors.As(err, &denied) ||
		denied.RetryAfter() != time.Minute || denied.Limit != "signIn.failures.account" {
		t.Errorf("got %v", err)
	}
	if want := "lockout: the account is locked for another 1m0s, until 2026-03-01T12:01:00Z"; err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
}

// The two pauses of a lock are set by two readings of the clock, and end so far apart: what comes
// in between climbs the ladder.
func TestALockThatEndsAMomentBeforeItsMemoryGoesOn(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it sets a column as Citus does not")
	g := newGuard(t, Config{Failures: 1, Cap: 4 * time.Minute})
	for lockouts, d := range []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute} {
		g.fail(1, from("alice", 1))
		g.locked(from("alice", 1), "account", d)
		if _, err := g.pool.Exec(t.Context(), `UPDATE weir_balance SET paused_until = paused_until + interval '1 ms' WHERE name LIKE '%.lockouts.%'`); err != nil {
			t.Fatal(err)
		}
		g.clock.add(d)
		g.stands(from("alice", 2), State{Attempts: 1, Lockouts: lockouts + 1})
	}
}
