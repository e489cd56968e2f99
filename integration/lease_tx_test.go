package integration

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
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/weirtest"
)

// handful returns a lease with tokens in hand, of a limit of 1000 of which nothing flows in, and
// with nothing under way. The clock stands still, so that nothing is given back meanwhile.
func handful(
	t *testing.T, l *ratelimit.Limiter, pool *pgxpool.Pool, clock *weirtest.Clock, k string,
) (*ratelimit.Lease, ratelimit.Request) {
	t.Helper()
	limit := ratelimit.MustDefine("handful", ratelimit.FixedWindow{Rate: 1000, Period: rig.Never})
	key := limit.For(k)
	s := lease(t, l, pool, key, ratelimit.LeaseConfig{})
	leaseOK(t, s, 1, true)
	clock.Add(time.Millisecond)
	leaseOK(t, s, 1, true)
	if left := value(t, l, pool, key); left > 950 {
		t.Fatalf("%v are left: next to nothing is in hand", left)
	}
	return s, key
}

// closedExactly closes a lease and wants exactly so much to be left. By a clock that stands still,
// a Close without an error has given back everything.
func closedExactly(
	t *testing.T, s *ratelimit.Lease, l *ratelimit.Limiter, pool *pgxpool.Pool, r ratelimit.Request, want float64,
) error {
	t.Helper()
	if err := s.Close(t.Context()); err != nil {
		return err
	}
	if left := value(t, l, pool, r); left != want {
		t.Errorf("%v are left, want %v", left, want)
	}
	return nil
}

var errMine = errors.New("mine")

// What a transaction takes from memory is in hand again if it does not commit, and then comes back
// when the lease is closed.
func TestALeasesTokensRollBackWithTheTransaction(t *testing.T) {
	t.Parallel()
	ways := []struct {
		name string
		kept float64 // of 10, twice
		want error
		end  func(ctx context.Context, tx pgx.Tx) error
	}{
		{"commits", 20, nil, func(context.Context, pgx.Tx) error { return nil }},
		{"error", 0, errMine, func(context.Context, pgx.Tx) error { return errMine }},
		{"panic", 0, errMine, func(context.Context, pgx.Tx) error { panic(errMine) }},
		{"failed statement", 0, pgx.ErrTxCommitRollback, func(ctx context.Context, tx pgx.Tx) error {
			_, _ = tx.Exec(ctx, `SELECT 1/0`)
			return nil
		}},
		{"ended by the callback", 20, pgx.ErrTxClosed, func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) }},
		{"savepoint", 20, nil, func(ctx context.Context, tx pgx.Tx) error {
			return errIs(errMine, pgx.BeginFunc(ctx, tx, func(pgx.Tx) error { return errMine }))
		}},
	}
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			pool, clock := pgtest.Pool(t), rig.Clock()
			l := rig.Limiter(t, ratelimit.Config{Clock: clock.Now})
			inTime(t, func(k string) error {
				s, key := handful(t, l, pool, clock, k)
				err := caught(func() error {
					return l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
						for range 2 {
							if res, err := s.TakeInTx(ctx, tx, 10); err != nil || !res.OK || res.At.IsZero() {
								t.Errorf("%+v, %v", res, err)
							}
						}
						return w.end(ctx, tx)
					})
				})
				if !errors.Is(err, w.want) {
					t.Errorf("%v, want %v", err, w.want)
				}
				return closedExactly(t, s, l, pool, key, 998-w.kept)
			})
		})
	}
}

func errIs(want, err error) error {
	if errors.Is(err, want) {
		return nil
	}
	return err
}

func caught(fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = p.(error)
		}
	}()
	return fn()
}

// Nothing commits that has not begun.
func TestALeasesTokensAreInHandAgainIfTheTransactionCannotBegin(t *testing.T) {
	t.Parallel()
	pool, clock := pgtest.Pool(t), rig.Clock()
	l := rig.Limiter(t, ratelimit.Config{Clock: clock.Now})
	inTime(t, func(k string) error {
		s, key := handful(t, l, pool, clock, k)
		err := l.InTxOptions(t.Context(), pool, pgx.TxOptions{IsoLevel: "as you like it"},
			func(ctx context.Context, tx pgx.Tx) error {
				if res, err := s.TakeInTx(ctx, tx, 10); err != nil || !res.OK {
					t.Errorf("%+v, %v", res, err)
				}
				_, err := tx.Exec(ctx, `SELECT 1`)
				return err
			})
		if err == nil {
			t.Fatal("it has begun")
		}
		return closedExactly(t, s, l, pool, key, 998)
	})
}

// A transaction that runs again takes once.
func TestALeasesTokensAreTakenOnceByATransactionThatRunsAgain(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "its conflicts are those of SERIALIZABLE, which is not the default there")
	pool, clock := pgtest.Pool(t), rig.Clock()
	l := rig.Limiter(t, ratelimit.Config{Clock: clock.Now})
	rig.Exec(t, pool, `CREATE TABLE contested (n integer); INSERT INTO contested VALUES (0)`)
	inTime(t, func(k string) error {
		s, key := handful(t, l, pool, clock, k)
		runs := 0
		err := l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
			runs++
			if res, err := s.TakeInTx(ctx, tx, 10); err != nil || !res.OK {
				t.Errorf("%+v, %v", res, err)
			}
			var n int
			if err := tx.QueryRow(ctx, `SELECT n FROM contested`).Scan(&n); err != nil {
				return err
			}
			if runs < 3 {
				if _, err := pool.Exec(ctx, `UPDATE contested SET n = n + 1`); err != nil {
					return err
				}
			}
			_, err := tx.Exec(ctx, `UPDATE contested SET n = n + 1`)
			return err
		})
		if err != nil || runs != 3 {
			t.Fatalf("%d runs: %v", runs, err)
		}
		return closedExactly(t, s, l, pool, key, 988)
	})
}

// Whatever takes at the same time, in transactions and without, tokens handed out and tokens left
// are all that there were.
func TestTheBooksOfALeaseBalance(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]ratelimit.Limit{
		"one row": ratelimit.MustDefine("books", ratelimit.FixedWindow{Rate: 3000, Period: rig.Never}),
		"shards":  ratelimit.MustDefine("books", ratelimit.FixedWindow{Rate: 3000, Period: rig.Never}, ratelimit.Shards(4)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, clock := pgtest.Pool(t), rig.Clock() // that stands still, so that nothing is too late to be put back
			l := rig.Limiter(t, ratelimit.Config{Clock: clock.Now})
			inTime(t, func(k string) error {
				s := lease(t, l, pool, limit.For(k), ratelimit.LeaseConfig{Block: 50})
				var wg sync.WaitGroup
				var handed atomic.Int64
				for caller := range 8 {
					wg.Go(func() {
						for call := range 60 {
							n := 1 + (caller+call)%5
							want := error(nil)
							if call%3 == 0 {
								want = errMine
							}
							granted := false
							take := func(ctx context.Context, tx pgx.Tx) (err error) {
								var res ratelimit.Result
								if tx == nil {
									res, err = s.Take(ctx, float64(n))
								} else if res, err = s.TakeInTx(ctx, tx, float64(n)); err == nil && call%2 == 0 {
									_, err = tx.Exec(ctx, `SELECT 1`)
								}
								granted = res.OK
								return errors.Join(err, want)
							}
							var err error
							if caller%2 == 0 {
								want = nil
								err = take(t.Context(), nil)
							} else {
								err = l.InTx(t.Context(), pool, take)
							}
							if !errors.Is(err, want) {
								t.Errorf("%v, want %v", err, want)
							}
							if granted && want == nil {
								handed.Add(int64(n))
							}
						}
					})
				}
				wg.Wait()
				leaseOK(t, s, 3000, false) // it waits for a fetch under way, and there is none after it
				if err := s.Close(t.Context()); err != nil {
					return err
				}
				if left := value(t, l, pool, limit.For(k)); float64(handed.Load())+left != 3000 || handed.Load() < 500 {
					t.Errorf("%d were handed out and %v are left, of 3000", handed.Load(), left)
				}
				return nil
			})
		})
	}
}

// If the connection is lost at COMMIT, what was taken stays taken: it may have committed.
func TestALeasesTokensStayTakenIfTheOutcomeIsUnknown(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "nodes may hold the rows of a lost transaction for longer than a lease waits to give back")
	cut := &cutter{}
	pool, clock := pgtest.Pool(t, cut.through), rig.Clock()
	l := rig.Limiter(t, ratelimit.Config{Clock: clock.Now})
	inTime(t, func(k string) error {
		s, key := handful(t, l, pool, clock, k)
		cut.arm("after")
		err := l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
			if res, err := s.TakeInTx(ctx, tx, 10); err != nil || !res.OK {
				t.Errorf("%+v, %v", res, err)
			}
			_, err := tx.Exec(ctx, `SELECT 1`)
			return err
		})
		if !errors.Is(err, ratelimit.ErrOutcomeUnknown) {
			t.Fatal(err)
		}
		return closedExactly(t, s, l, pool, key, 988)
	})
}

// A transaction that holds the only connection needs no second one, whatever is in hand; what it
// takes from the row rolls back with it. Take, which would wait for one, is refused.
func TestALeaseNeedsNoSecondConnectionInATransaction(t *testing.T) {
	t.Parallel()
	pool, clock := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 1 }), rig.Clock()
	l := rig.Limiter(t, ratelimit.Config{Clock: clock.Now})
	limit := ratelimit.MustDefine("single", ratelimit.FixedWindow{Rate: 1000, Period: rig.Never})
	s := lease(t, l, pool, limit.For("k"), ratelimit.LeaseConfig{})
	for _, want := range []error{errMine, nil} {
		err := l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
			for range 10 {
				until(t, func() bool { // a block that was fetched meanwhile may not be in hand yet
					res, err := s.TakeInTx(ctx, tx, 100)
					if err != nil || res.Outcomes != nil {
						t.Fatalf("%+v, %v", res, err)
					}
					return res.OK
				})
			}
			if res, err := s.TakeInTx(ctx, tx, 1); err != nil || res.OK || res.RetryAt.IsZero() {
				t.Errorf("%+v, %v", res, err)
			}
			if _, err := s.Take(ctx, 1); !errors.Is(err, ratelimit.ErrNested) {
				t.Errorf("%v, want that it is nested", err)
			}
			return want
		})
		if !errors.Is(err, want) {
			t.Fatal(err)
		}
		// A block may be fetched as soon as the connection is free.
		if left := value(t, l, pool, limit.For("k")); want != nil && left != 1000 && left != 900 ||
			want == nil && left != 0 {
			t.Errorf("%v are left after %v", left, want)
		}
	}
}

// A transaction takes from the hand without a round trip, and one that does nothing else has none
// at all.
func TestALeaseTakesFromTheHandWithoutATrip(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it counts trips, of which two-phase commit takes more")
	var trips trips
	pool, clock := pgtest.Pool(t, trips.through), rig.Clock()
	l := rig.Limiter(t, ratelimit.Config{Clock: clock.Now})
	s, _ := handful(t, l, pool, clock, "k")
	n := trips.of(func() {
		err := l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
			for range 10 {
				if res, err := s.TakeInTx(ctx, tx, 1); err != nil || !res.OK {
					t.Errorf("%+v, %v", res, err)
				}
				leaseOK(t, s, 1, true)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
	if n != 0 {
		t.Errorf("%d trips", n)
	}
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := s.TakeInTx(t.Context(), tx, 1); !errors.Is(err, ratelimit.ErrInvalid) {
		t.Errorf("in a transaction that does not tell how it ends: %v", err)
	}
}
