package integration

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// The interleavings here are made on explicit connections: no luck is involved.

type answer struct {
	res ratelimit.Result
	err error
}

// waiting starts a take that has to wait for another transaction, and returns when it does.
func waiting(t testing.TB, pool *pgxpool.Pool, tx pgx.Tx, take func() (ratelimit.Result, error)) <-chan answer {
	t.Helper()
	pid := tx.Conn().PgConn().PID()
	done := make(chan answer, 1)
	go func() {
		res, err := take()
		done <- answer{res, err}
	}()
	until(t, func() bool {
		var blocked bool
		if err := pool.QueryRow(t.Context(), `SELECT cardinality(pg_blocking_pids($1)) > 0`, pid).
			Scan(&blocked); err != nil {
			t.Fatal(err)
		}
		return blocked
	})
	return done
}

// until polls a condition.
func until(t testing.TB, ok func() bool) {
	t.Helper()
	deadline := time.After(hung)
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("what was waited for did not come about within %v", hung)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func TestTwoFirstUsesOfAKey(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it watches the locks of one server")
	limit := ratelimit.MustDefine("first", ratelimit.TokenBucket{Rate: 10, Period: rig.Never})
	for _, level := range rig.Levels {
		for _, c := range []struct {
			name          string
			first, second float64
			granted       bool
		}{
			{"BothFit", 4, 5, true},
			{"TheFirstTakesAll", 10, 1, false},
		} {
			t.Run(string(level)+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
				one, two := rig.Begin(t, pool, level), rig.Begin(t, pool, level)
				if res, err := l.RateLimit(t.Context(), one, limit.For("k").Count(c.first)); err != nil || !res.OK {
					t.Fatal(res, err)
				}
				done := waiting(t, pool, two, func() (ratelimit.Result, error) {
					return l.RateLimit(t.Context(), two, limit.For("k").Count(c.second))
				})
				rig.Commit(t, one)
				got := <-done
				if level != pgx.ReadCommitted {
					if rig.SQLState(got.err) != "40001" {
						t.Fatalf("got %+v and %v, want a serialization failure", got.res, got.err)
					}
					return
				}
				if got.err != nil || got.res.OK != c.granted {
					t.Fatalf("got %+v and %v, want granted %v", got.res, got.err, c.granted)
				}
				left := 10 - c.first
				if c.granted {
					left -= c.second
				} else if !got.res.RetryAt.After(got.res.At) {
					t.Errorf("denied with RetryAt %v, which is not after %v", got.res.RetryAt, got.res.At)
				}
				if v := got.res.Outcomes[0].Value; v < left || v > left+0.01 {
					t.Errorf("reported %v tokens left, want %v: what the other transaction left", v, left)
				}
			})
		}
	}
}

func TestFirstUseIsGrantedWhenTheOtherRollsBack(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it watches the locks of one server")
	limit := ratelimit.MustDefine("first", ratelimit.TokenBucket{Rate: 10, Period: rig.Never})
	for _, level := range rig.Levels {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
			one, two := rig.Begin(t, pool, level), rig.Begin(t, pool, level)
			if res, err := l.RateLimit(t.Context(), one, limit.For("k").Count(10)); err != nil || !res.OK {
				t.Fatal(res, err)
			}
			done := waiting(t, pool, two, func() (ratelimit.Result, error) {
				return l.RateLimit(t.Context(), two, limit.For("k").Count(10))
			})
			if err := one.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := <-done; got.err != nil || !got.res.OK {
				t.Fatalf("got %+v and %v, want granted", got.res, got.err)
			}
		})
	}
}

// A take reads the clock, then waits for the row. What flows in while it waits is not lost: where
// the tokens exist by the time that it has the row, it is granted and not denied with a time that
// has passed.
func TestTokensThatComeWhileWaitingForTheRowAreGranted(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it watches the locks of one server")
	pool := pgtest.Pool(t)
	clock := rig.Clock()
	l := rig.Limiter(t, ratelimit.Config{Clock: clock.Now})
	limit := ratelimit.MustDefine("wait", ratelimit.TokenBucket{Rate: 1, Period: time.Second})
	one, two := rig.Begin(t, pool, pgx.ReadCommitted), rig.Begin(t, pool, pgx.ReadCommitted)
	if res, err := l.RateLimit(t.Context(), one, limit.For("k")); err != nil || !res.OK {
		t.Fatal(res, err)
	}
	done := waiting(t, pool, two, func() (ratelimit.Result, error) {
		return l.RateLimit(t.Context(), two, limit.For("k"))
	})
	clock.Add(1500 * time.Millisecond)
	rig.Commit(t, one)
	if got := <-done; got.err != nil || !got.res.OK {
		t.Fatalf("got %+v and %v, want granted: the token came while it waited", got.res, got.err)
	}
}

func TestATakeThatWaitedForAResetIsGranted(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it watches the locks of one server")
	pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
	limit := ratelimit.MustDefine("reset", ratelimit.TokenBucket{Rate: 10, Period: rig.Never})
	zero := rig.Begin(t, pool, pgx.ReadCommitted)
	if res, err := l.RateLimit(t.Context(), zero, limit.For("k").Count(10)); err != nil || !res.OK {
		t.Fatal(res, err)
	}
	rig.Commit(t, zero)

	one, two := rig.Begin(t, pool, pgx.ReadCommitted), rig.Begin(t, pool, pgx.ReadCommitted)
	if err := l.ResetRateLimit(t.Context(), one, limit.For("k")); err != nil {
		t.Fatal(err)
	}
	done := waiting(t, pool, two, func() (ratelimit.Result, error) {
		return l.RateLimit(t.Context(), two, limit.For("k").Count(4))
	})
	rig.Commit(t, one)
	if got := <-done; got.err != nil || !got.res.OK || got.res.Outcomes[0].Value > 6.01 {
		t.Fatalf("got %+v and %v, want granted with 6 left", got.res, got.err)
	}
}

// Above READ COMMITTED a transaction that has read before must not decide on what it read.
func TestAnOldSnapshotFailsRatherThanTakingTwice(t *testing.T) {
	t.Parallel()
	limit := ratelimit.MustDefine("old", ratelimit.TokenBucket{Rate: 3, Period: rig.Never})
	for _, level := range rig.Levels[1:] {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
			a := l.Autocommit(pool)
			if _, err := a.RateLimit(t.Context(), limit.For("k").Count(0)); err != nil {
				t.Fatal(err)
			}
			old := rig.Begin(t, pool, level)
			if res, err := l.CheckRateLimit(t.Context(), old, limit.For("k").Count(3)); err != nil || !res.OK {
				t.Fatal(res, err)
			}
			if res, err := a.RateLimit(t.Context(), limit.For("k").Count(3)); err != nil || !res.OK {
				t.Fatal(res, err)
			}
			if res, err := l.RateLimit(t.Context(), old, limit.For("k").Count(3)); rig.SQLState(err) != "40001" ||
				!strings.Contains(err.Error(), "as InTx does") {
				t.Fatalf("got %+v and %v, want a serialization failure, and what to do", res, err)
			}
		})
	}
}

// Two transactions that take in opposite order, in two calls each, deadlock. Postgres ends one of
// them, and InTx runs that again: to the callers nothing happened.
func TestADeadlockBetweenCallsIsRunAgain(t *testing.T) {
	t.Parallel()
	limit := ratelimit.MustDefine("deadlock", ratelimit.TokenBucket{Rate: 10, Period: rig.Never})
	for _, level := range rig.Levels {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
			meet := make(chan struct{}, 2)
			both := make(chan struct{})
			go func() { <-meet; <-meet; close(both) }()
			take := func(first, second string) error {
				run := 0
				return l.InTxOptions(t.Context(), pool, pgx.TxOptions{IsoLevel: level},
					func(ctx context.Context, tx pgx.Tx) error {
						run++
						if _, err := l.RateLimit(ctx, tx, limit.For(first)); err != nil {
							return err
						}
						if run == 1 {
							meet <- struct{}{}
							<-both
						}
						_, err := l.RateLimit(ctx, tx, limit.For(second))
						return err
					})
			}
			errs := make(chan error, 2)
			go func() { errs <- take("a", "b") }()
			go func() { errs <- take("b", "a") }()
			for range 2 {
				if err := <-errs; err != nil {
					t.Error(err)
				}
			}
			for _, key := range []string{"a", "b"} {
				if s, err := l.Autocommit(pool).Value(t.Context(), limit.For(key)); err != nil ||
					s.Value < 8 || s.Value > 8.01 {
					t.Errorf("key %s: %v tokens left (%v), want 8", key, s.Value, err)
				}
			}
		})
	}
}

// A denied take holds its row until the transaction ends, and no longer.
func TestADenialHoldsItsRowNoLongerThanItsTransaction(t *testing.T) {
	t.Parallel()
	pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
	limit := ratelimit.MustDefine("held", ratelimit.TokenBucket{Rate: 1, Period: rig.Never})
	if _, err := l.Autocommit(pool).RateLimit(t.Context(), limit.For("k")); err != nil {
		t.Fatal(err)
	}
	tx := rig.Begin(t, pool, pgx.ReadCommitted)
	if res, err := l.RateLimit(t.Context(), tx, limit.For("k")); err != nil || res.OK {
		t.Fatal(res, err)
	}
	if !locked(t, pool, "k") {
		t.Error("the first denial, which could not be foreseen, should have locked its row")
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if locked(t, pool, "k") {
		t.Error("the row is still locked")
	}
}

func locked(t testing.TB, pool *pgxpool.Pool, key string) bool {
	t.Helper()
	var n int
	err := pool.QueryRow(t.Context(), `SELECT count(*) FROM (SELECT 1 FROM weir_balance WHERE key = $1 FOR UPDATE SKIP LOCKED) AS free`, key).Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n == 0
}

func TestATakeIsUndoneWithItsSavepoint(t *testing.T) {
	t.Parallel()
	limit := ratelimit.MustDefine("savepoint", ratelimit.TokenBucket{Rate: 10, Period: rig.Never})
	pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
	err := l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := l.RateLimit(ctx, tx, limit.For("k")); err != nil {
			return err
		}
		undo := errors.New("undo")
		err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
			if _, err := l.RateLimit(ctx, tx, limit.For("k").Count(5)); err != nil {
				return err
			}
			return undo
		})
		if !errors.Is(err, undo) {
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if s, err := l.Autocommit(pool).Value(t.Context(), limit.For("k")); err != nil || s.Value < 9 || s.Value > 9.01 {
		t.Errorf("%v tokens left (%v), want 9", s.Value, err)
	}
}
