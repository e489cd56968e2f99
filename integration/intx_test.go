package integration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

func TestTokensRollBackWithTheTransaction(t *testing.T) {
	t.Parallel()
	pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
	limit := ratelimit.MustDefine("rollback", ratelimit.TokenBucket{Rate: 10, Period: rig.Never})
	oops := errors.New("oops")
	err := l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		if res, err := l.RateLimit(ctx, tx, limit.For("k").Count(10)); err != nil || !res.OK {
			return fmt.Errorf("%+v: %w", res, err)
		}
		return oops
	})
	if !errors.Is(err, oops) {
		t.Fatal(err)
	}
	wantValue(t, l, pool, limit.For("k"), 10)
}

// wantValue allows for what little flows in while a test runs.
func wantValue(t testing.TB, l *ratelimit.Limiter, pool ratelimit.Beginner, r ratelimit.Request, want float64) {
	t.Helper()
	err := l.InTxOptions(t.Context(), pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted},
		func(ctx context.Context, tx pgx.Tx) error {
			s, err := l.Value(ctx, tx, r)
			if err == nil && (s.Value < want-1e-9 || s.Value > want+0.01) {
				t.Errorf("%v tokens left, want %v", s.Value, want)
			}
			return err
		})
	if err != nil {
		t.Error(err)
	}
}

// Each attempt decides with a clock of its own, and what an attempt that was rolled back took is
// there for the next one.
func TestAConflictRunsTheWholeTransactionAgain(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "its conflicts are those of SERIALIZABLE, which is not the default there")
	limit := ratelimit.MustDefine("conflict", ratelimit.TokenBucket{Rate: 10, Period: rig.Never})
	for _, where := range []string{"in a statement of ours", "in a statement of the caller's", "at COMMIT"} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
			rig.Exec(t, pool, `CREATE TABLE doctor (name text PRIMARY KEY, on_call bool NOT NULL)`)
			rig.Exec(t, pool, `INSERT INTO doctor VALUES ('alice', true), ('bob', true)`)
			rig.Exec(t, pool, `INSERT INTO doctor SELECT i::text, false FROM generate_series(1, 1000) i`)
			rig.Exec(t, pool, `ANALYZE doctor`)

			// other commits something, once, that the first attempt conflicts with
			other := func(ctx context.Context) error {
				switch where {
				case "in a statement of ours":
					_, err := l.Autocommit(pool).RateLimit(ctx, limit.For("k"))
					return err
				case "in a statement of the caller's":
					_, err := pool.Exec(ctx, `UPDATE doctor SET on_call = NOT on_call WHERE name = 'alice'`)
					return err
				}
				// write skew: each reads what the other writes
				return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.Serializable}, func(tx pgx.Tx) error {
					if _, err := tx.Exec(ctx, `SELECT * FROM doctor WHERE name = 'bob'`); err != nil {
						return err
					}
					_, err := tx.Exec(ctx, `UPDATE doctor SET on_call = false WHERE name = 'alice'`)
					return err
				})
			}
			runs := 0
			var at []time.Time
			err := l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
				runs++
				var alice bool
				if err := tx.QueryRow(ctx, `SELECT on_call FROM doctor WHERE name = 'alice'`).Scan(&alice); err != nil {
					return err
				}
				if runs == 1 {
					// the transaction has its snapshot; a context of ours, as this is no nested use
					if err := other(t.Context()); err != nil {
						return err
					}
				}
				res, err := l.RateLimit(ctx, tx, limit.For("k").Count(2))
				at = append(at, res.At)
				if err != nil {
					return err
				}
				name := "bob"
				if where == "in a statement of the caller's" {
					name = "alice"
				}
				_, err = tx.Exec(ctx, `UPDATE doctor SET on_call = false WHERE name = $1`, name)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if runs != 2 {
				t.Errorf("ran %d times, want 2", runs)
			}
			if !at[len(at)-1].After(at[0]) {
				t.Errorf("the second attempt decided at %v, the first at %v", at[1], at[0])
			}
			left := 8.0
			if where == "in a statement of ours" {
				left--
			}
			wantValue(t, l, pool, limit.For("k"), left)
		})
	}
}

func TestAConflictThatTheCallbackHidesIsStillRunAgain(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "its conflicts are those of SERIALIZABLE, which is not the default there")
	limit := ratelimit.MustDefine("hidden", ratelimit.TokenBucket{Rate: 10, Period: rig.Never})
	for name, hide := range map[string]func(error) error{
		"ByAnotherError": func(err error) error { return fmt.Errorf("cannot: %s", err) }, //nolint:errorlint // the point
		"ByNil":          func(error) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
			rig.Take(t, l.Autocommit(pool), limit.For("k"))
			runs := 0
			err := l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
				runs++
				if _, err := tx.Exec(ctx, `SELECT 1`); err != nil {
					return err
				}
				if runs == 1 {
					rig.Take(t, l.Autocommit(pool), limit.For("k"))
				}
				if _, err := l.RateLimit(ctx, tx, limit.For("k")); err != nil {
					return hide(err)
				}
				return nil
			})
			if err != nil || runs != 2 {
				t.Fatalf("ran %d times, then %v", runs, err)
			}
			wantValue(t, l, pool, limit.For("k"), 7)
		})
	}
}

func TestInTxGivesUpAtItsMaximumAndWithItsContext(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "its conflicts are those of SERIALIZABLE, which is not the default there")
	pool := pgtest.Pool(t)
	rig.Exec(t, pool, `CREATE TABLE counter (n int); INSERT INTO counter VALUES (0)`)
	conflict := func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT 1`); err != nil {
			return err
		}
		if _, err := pool.Exec(t.Context(), `UPDATE counter SET n = n + 1`); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `UPDATE counter SET n = n + 1`)
		return err
	}

	runs := 0
	err := rig.Limiter(t, ratelimit.Config{MaxAttempts: 3}).InTx(t.Context(), pool,
		func(ctx context.Context, tx pgx.Tx) error {
			runs++
			return conflict(ctx, tx)
		})
	var gaveUp *ratelimit.ConflictError
	if !errors.As(err, &gaveUp) || gaveUp.Attempts != 3 || runs != 3 ||
		!errors.Is(err, ratelimit.ErrConflict) || rig.SQLState(err) != "40001" {
		t.Errorf("ran %d times, then %v", runs, err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	runs = 0
	err = rig.Limiter(t, ratelimit.Config{}).InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
		if runs++; runs == 3 {
			defer cancel()
		}
		return conflict(ctx, tx)
	})
	if !errors.Is(err, context.Canceled) || runs != 3 {
		t.Errorf("ran %d times, then %v", runs, err)
	}
}

// Within its deadline no caller is told that others were faster, however often they were.
func TestInTxWithADeadlineGoesOnUntilThen(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "its conflicts are those of SERIALIZABLE, which is not the default there")
	pool := pgtest.Pool(t)
	rig.Exec(t, pool, `CREATE TABLE counter (n integer)`)
	rig.Exec(t, pool, `INSERT INTO counter VALUES (0)`)
	const others = 52 // more than the bound where there is no deadline
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	runs := 0
	err := rig.Limiter(t, ratelimit.Config{}).InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT 1`); err != nil {
			return err
		}
		if runs++; runs <= others {
			rig.Exec(t, pool, `UPDATE counter SET n = n + 1`)
		}
		_, err := tx.Exec(ctx, `UPDATE counter SET n = n + 1`)
		return err
	})
	if err != nil || runs != others+1 {
		t.Errorf("ran %d times, then %v", runs, err)
	}
}

func TestAPanicRollsBackAndGoesOn(t *testing.T) {
	t.Parallel()
	pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
	limit := ratelimit.MustDefine("panic", ratelimit.TokenBucket{Rate: 10, Period: rig.Never})
	made := pool.Stat().NewConnsCount()
	func() {
		defer func() {
			if p := recover(); p != "at the disco" {
				t.Errorf("recovered %v", p)
			}
		}()
		_ = l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
			if _, err := l.RateLimit(ctx, tx, limit.For("k")); err != nil {
				t.Error(err)
			}
			panic("at the disco")
		})
	}()
	wantValue(t, l, pool, limit.For("k"), 10)
	if n := pool.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections were not given back", n)
	}
	if n := pool.Stat().NewConnsCount() - made; n != 0 {
		t.Errorf("%d connections were made in place of one that was not rolled back", n)
	}
}

func TestACancelledContextRollsBack(t *testing.T) {
	t.Parallel()
	pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
	limit := ratelimit.MustDefine("cancel", ratelimit.TokenBucket{Rate: 10, Period: rig.Never})
	ctx, cancel := context.WithCancel(t.Context())
	err := l.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := l.RateLimit(ctx, tx, limit.For("k")); err != nil {
			return err
		}
		go whenAsleep(t, pool, tx.Conn().PgConn().PID(), cancel)
		_, err := tx.Exec(ctx, `SELECT pg_sleep(60)`)
		return err
	})
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	wantValue(t, l, pool, limit.For("k"), 10)
}

// whenAsleep calls cancel when a session sleeps in a statement. A server ignores the request to
// cancel a statement that it has not begun, and then that one would hold its locks to its end.
func whenAsleep(t testing.TB, pool *pgxpool.Pool, pid uint32, cancel func()) {
	defer cancel()
	ctx, stop := context.WithTimeout(context.WithoutCancel(t.Context()), hung)
	defer stop()
	for asleep := false; !asleep; time.Sleep(2 * time.Millisecond) {
		if err := pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE pid = $1 AND wait_event = 'PgSleep')`, pid).Scan(&asleep); err != nil {
			t.Error(err)
			return
		}
	}
}

// Mistakes in the callback are told as such.
func TestMistakesInTheCallback(t *testing.T) {
	t.Parallel()
	pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
	for name, c := range map[string]struct {
		fn   func(ctx context.Context, tx pgx.Tx) error
		want string
	}{
		"Commits": {func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) }, "has committed or rolled back the transaction"},
		"HidesAFailure": {func(ctx context.Context, tx pgx.Tx) error {
			_, _ = tx.Exec(ctx, `SELECT 1/0`)
			return nil
		}, "did not return its error"},
		"DeferredConstraint": {func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `CREATE TEMP TABLE p (id int PRIMARY KEY);
				CREATE TEMP TABLE c (id int REFERENCES p DEFERRABLE INITIALLY DEFERRED); INSERT INTO c VALUES (1)`)
			return err
		}, "rolled back at COMMIT"},
		"LeavesRowsOpen": {func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Query(ctx, `SELECT generate_series(1, 1000)`)
			return err
		}, "has left rows or a batch open"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := l.InTx(t.Context(), pool, c.fn)
			if err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, ratelimit.ErrOutcomeUnknown) {
				t.Errorf("got %v, want it to say %q", err, c.want)
			}
		})
	}
}
