package integration

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// However a callback ends, its connection is given back, or closed if it is no longer good.
func TestAPoolOfOneConnectionOutlivesEveryEnd(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it reads the statistics of one server")
	pool := pgtest.Pool(t, func(c *pgxpool.Config) {
		c.MaxConns, c.ConnConfig.RuntimeParams["application_name"] = 1, t.Name()
	})
	rig.Exec(t, pool, `CREATE TABLE done (n bigint)`)
	admin := pgtest.Bare(t)
	l := rig.Limiter(t, ratelimit.Config{})
	k := ratelimit.MustDefine("k", ratelimit.TokenBucket{Rate: 10, Period: rig.Never}).For("k")
	nothing := func(context.Context, pgx.Tx) error { return nil }
	kill := func() {
		rig.Exec(t, admin, fmt.Sprintf(`SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = left('%s', 63)`, t.Name()))
	}
	rateLimit := func(ctx context.Context, tx pgx.Tx) error {
		_, err := l.RateLimit(ctx, tx, k)
		return err
	}
	var none error
	oops := errors.New("oops")
	for _, before := range []struct {
		name string
		do   func(context.Context, pgx.Tx) error
	}{
		{"nothing", nothing},
		{"a take", rateLimit},
		{"an Exec", firstUses["Exec"]},
		{"a take and a savepoint", func(ctx context.Context, tx pgx.Tx) error {
			if err := rateLimit(ctx, tx); err != nil {
				return err
			}
			_, err := tx.Begin(ctx)
			return err
		}},
	} {
		for name, end := range map[string]func(context.Context, context.CancelFunc, pgx.Tx) error{
			"error": func(context.Context, context.CancelFunc, pgx.Tx) error { return oops },
			"panic": func(context.Context, context.CancelFunc, pgx.Tx) error { panic(oops) },
			"exit":  func(context.Context, context.CancelFunc, pgx.Tx) error { runtime.Goexit(); return nil },
			"denial": func(ctx context.Context, _ context.CancelFunc, tx pgx.Tx) error {
				res, err := l.RateLimit(ctx, tx, k.Count(10), k.Count(0)) // more than there will be left
				if err != nil {
					return err
				}
				if res.OK {
					return oops
				}
				return res.Err()
			},
			"cancelled": func(_ context.Context, cancel context.CancelFunc, _ pgx.Tx) error { cancel(); return none },
			"cancelled, take": func(ctx context.Context, cancel context.CancelFunc, tx pgx.Tx) error {
				cancel()
				return rateLimit(ctx, tx)
			},
			"cancelled, large object": func(ctx context.Context, cancel context.CancelFunc, tx pgx.Tx) error {
				cancel()
				return firstUses["LargeObjects"](ctx, tx)
			},
			"killed":         func(context.Context, context.CancelFunc, pgx.Tx) error { kill(); return oops },
			"killed, hidden": func(context.Context, context.CancelFunc, pgx.Tx) error { kill(); return none },
			"killed, take": func(ctx context.Context, _ context.CancelFunc, tx pgx.Tx) error {
				kill()
				return rateLimit(ctx, tx)
			},
			"killed, large object": func(ctx context.Context, _ context.CancelFunc, tx pgx.Tx) error {
				kill()
				return firstUses["LargeObjects"](ctx, tx)
			},
			"commits": func(ctx context.Context, _ context.CancelFunc, tx pgx.Tx) error {
				return errors.Join(tx.Commit(ctx), oops)
			},
			"rolls back": func(ctx context.Context, _ context.CancelFunc, tx pgx.Tx) error { return tx.Rollback(ctx) },
			"open rows": func(ctx context.Context, _ context.CancelFunc, tx pgx.Tx) error {
				_, err := tx.Query(ctx, `SELECT generate_series(1, 1000)`)
				return errors.Join(err, oops)
			},
		} {
			what := before.name + ", " + name
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			done := make(chan struct{})
			go func() {
				defer close(done)
				defer func() {
					if p := recover(); p != nil && p != any(oops) {
						t.Errorf("%s: panic: %v", what, p)
					}
				}()
				err := l.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
					if err := before.do(ctx, tx); err != nil {
						t.Errorf("%s: %v", what, err)
					}
					return end(ctx, cancel, tx)
				})
				unused := before.name == "nothing" && name == "killed, hidden" // nothing was there to be lost
				if (err == nil) != unused || errors.Is(err,
					ratelimit.ErrOutcomeUnknown) != (name == "killed, hidden" && !unused) {
					t.Errorf("%s: %v", what, err)
				}
			}()
			<-done
			cancel()
			// what is broken is closed in the background
			until(t, func() bool { return pool.Stat().AcquiredConns() == 0 })
			_, _ = pool.Exec(t.Context(), `SELECT`) // finds out if it was killed while nobody used it
			ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
			left := 9.0
			if name == "commits" && (before.name == "a take" || before.name == "a take and a savepoint") {
				left--
			}
			if err := l.InTx(ctx, pool, rateLimit); err != nil {
				t.Errorf("%s: the next: %v", what, err)
			}
			cancel()
			wantValue(t, l, pool, k, left)
			if err := l.Autocommit(pool).ResetRateLimit(t.Context(), k); err != nil {
				t.Error(err)
			}
		}
	}
}

// A transaction that was kept after its end refuses everything: its connection may be in use by
// somebody else.
func TestATransactionThatWasKeptIsClosed(t *testing.T) {
	t.Parallel()
	pool, l := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 1 }), rig.Limiter(t, ratelimit.Config{})
	rig.Exec(t, pool, `CREATE TABLE done (n bigint)`)
	k := ratelimit.MustDefine("k", ratelimit.TokenBucket{Rate: 10, Period: rig.Never}).For("k")
	for _, used := range []bool{false, true} {
		var kept pgx.Tx
		err := l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) (err error) {
			kept = tx
			if used {
				_, err = l.RateLimit(ctx, tx, k)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		for name, use := range firstUses {
			if name == "Conn" || name == "LargeObjects" { // have no way to refuse, as in pgx
				continue
			}
			if err := use(t.Context(), kept); !errors.Is(err, pgx.ErrTxClosed) {
				t.Errorf("used %v: %s: %v", used, name, err)
			}
		}
		var b pgx.Batch
		b.Queue(`SELECT 1`)
		answers := kept.SendBatch(t.Context(), &b)
		_, execErr := answers.Exec()
		_, queryErr := answers.Query()
		rows, _ := kept.Query(t.Context(), `SELECT 1`)
		_, valuesErr := rows.Values()
		_, takeErr := l.RateLimit(t.Context(), kept, k)
		for i, err := range []error{
			execErr, queryErr, answers.QueryRow().Scan(), rows.Err(), rows.Scan(), valuesErr, takeErr,
			kept.Commit(t.Context()), kept.Rollback(t.Context()),
		} {
			if !errors.Is(err, pgx.ErrTxClosed) {
				t.Errorf("used %v: %d: %v", used, i, err)
			}
		}
		if rows.Close(); rows.Next() || rows.Conn() != nil || rows.RawValues() != nil ||
			rows.FieldDescriptions() != nil || rows.CommandTag().String() != "" {
			t.Error("an answer, to nothing that was asked")
		}
	}
	wantValue(t, l, pool, k, 9)
}

// A Beginner that is not of pgx gets its connection back if what Citus needs before COMMIT fails.
func TestAConnectionOfAnotherBeginnerComesBack(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "there the statement works")
	pool, l := written(t, func(c *pgxpool.Config) { c.MaxConns = 1 }), rig.Limiter(t, ratelimit.Config{Citus: true})
	err := l.InTx(t.Context(), plainly{pool}, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO message (id) VALUES (1)`)
		return err
	})
	if rig.SQLState(err) != "42P01" || errors.Is(err, ratelimit.ErrOutcomeUnknown) {
		t.Errorf("got %v, want that weir_two_phase is missing", err)
	}
	if n := pool.Stat().AcquiredConns(); n != 0 {
		t.Fatalf("%d connections were not given back", n)
	}
	if n := messages(t, pool); n != 0 {
		t.Errorf("%d messages", n)
	}
}
