package lockout

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
)

// However many guess at once, through however many processes, as many are checked in each lock as
// Failures says: not one more.
func TestParallelGuessesCannotPassTogether(t *testing.T) {
	t.Parallel()
	cfg := Config{Failures: 5, AddressFailures: -1}
	g := newGuard(t, cfg)
	processes := []*Lockout{g.Lockout, g.another(cfg)}
	for round, d := range []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute} {
		var checked, denied atomic.Int64
		var wg sync.WaitGroup
		for i := range 64 {
			wg.Go(func() {
				_, err := processes[i%2].Attempt(t.Context(), Who{Account: "alice"},
					func(context.Context) (bool, error) {
						checked.Add(1)
						return false, nil
					})
				var locked *LockedError
				switch {
				case errors.As(err, &locked):
					denied.Add(1)
					if locked.RetryAfter() != d {
						t.Errorf("locked for %v, want %v", locked.RetryAfter(), d)
					}
				case err != nil:
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if checked.Load() != 5 || denied.Load() != 59 {
			t.Errorf("round %d: %d guesses were checked and %d denied", round, checked.Load(), denied.Load())
		}
		g.clock.add(d)
	}
}

// Nor do guesses at many accounts from one address; and those who find at the same time that
// nothing is left lock it once.
func TestParallelGuessesOfAnAddressLockItOnce(t *testing.T) {
	t.Parallel()
	cfg := Config{Failures: 5, AddressFailures: 8}
	g := newGuard(t, cfg)
	processes := []*Lockout{g.Lockout, g.another(cfg)}
	for _, d := range []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute} {
		var checked atomic.Int64
		var wg sync.WaitGroup
		for i := range 64 {
			wg.Go(func() {
				ok, err := processes[i%2].Attempt(t.Context(), from(name(i), 1), func(context.Context) (bool, error) {
					checked.Add(1)
					return false, nil
				})
				var locked *LockedError
				if ok || err != nil && (!errors.As(err, &locked) || locked.Whose != "address" ||
					locked.RetryAfter() != d) {
					t.Errorf("got %v, want the address locked for %v", err, d)
				}
			})
		}
		wg.Wait()
		if checked.Load() != 8 {
			t.Errorf("%d guesses were checked, want 8", checked.Load())
		}
		g.clock.add(d)
	}
}

// Right and wrong attempts at few accounts from few addresses, all at once: no deadlock, no error,
// and what is left at the end is what the failures have left.
func TestAttemptsOfAllKindsAtOnce(t *testing.T) {
	t.Parallel()
	cfg := Config{Failures: 1000, AddressFailures: 1000}
	g := newGuard(t, cfg)
	processes := []*Lockout{g.Lockout, g.another(cfg)}
	var wg sync.WaitGroup
	for i := range 120 {
		wg.Go(func() {
			check := wrong
			if i%3 == 0 {
				check = right
			}
			if ok, err := processes[i%2].Attempt(t.Context(), from(name(i%4), i%5),
				check); err != nil || ok != (i%3 == 0) {
				t.Errorf("%d: %v, %v", i, ok, err)
			}
		})
	}
	wg.Wait()
	for n := range 5 {
		g.stands(Who{Address: address(n)}, State{Attempts: 1000 - 16}) // of its 24 attempts 8 were right
	}
}

// A success in a SERIALIZABLE transaction meets others: that runs again, and in the end it is given
// back once.
func TestASuccessInATransactionThatRunsAgain(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "its conflicts are those of SERIALIZABLE, which is not the default there")
	g := newGuard(t, Config{})
	g.fail(2, from("alice", 1))
	a, err := g.Begin(t.Context(), from("alice", 1))
	if err != nil {
		t.Fatal(err)
	}
	runs := 0
	err = g.limiter.InTx(t.Context(), g.pool, func(ctx context.Context, tx pgx.Tx) error {
		if runs++; runs == 1 {
			if _, err := tx.Exec(ctx, `SELECT 1`); err != nil { // the snapshot
				return err
			}
			g.fail(1, from("alice", 1))
		}
		return a.Succeeded(ctx, tx)
	})
	if err != nil || runs < 2 {
		t.Fatalf("%d runs: %v", runs, err)
	}
	g.stands(Who{Account: "alice"}, State{Attempts: 5})
	g.stands(Who{Address: address(1)}, State{Attempts: 47})
}

// Who was denied before another has locked the address, and comes to lock it after, finds it
// locked. His denial was read, and locked nothing, as his process had seen the account locked
// before.
func TestAnAddressThatAnotherLocksMeanwhileIsLockedOnce(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it watches the locks of one server")
	cfg := Config{AddressFailures: 1}
	g := newGuard(t, cfg, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = t.Name() })
	for i := range 5 {
		g.fail(1, from("alice", 10+i))
	}
	g.fail(1, from("bob", 1))
	other := g.another(cfg)
	if _, err := other.Begin(t.Context(), from("alice", 2)); err == nil {
		t.Fatal("alice is not locked")
	}

	tx, err := g.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, changed, err := g.escalate(t.Context(), tx,
		subject{g.address, addressKey(address(1))}); err != nil || !changed {
		t.Fatal("not locked:", err)
	}
	result := make(chan error, 1)
	go func() {
		_, err := other.Begin(t.Context(), from("alice", 1))
		result <- err
	}()
	for waits := 0; waits == 0; time.Sleep(time.Millisecond) {
		if err := g.pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND wait_event_type = 'Lock'`, t.Name()).Scan(&waits); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	var locked *LockedError
	if err := <-result; !errors.As(err, &locked) || locked.RetryAfter() != time.Minute {
		t.Errorf("got %v", err)
	}
	g.stands(Who{Address: address(1)}, State{LockedUntil: g.clock.now().Add(time.Minute), Lockouts: 1})
}
