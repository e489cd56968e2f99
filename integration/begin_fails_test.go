package integration

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/limits/statements"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// Errors are those of a BEGIN that goes ahead of the callback, which cannot hide them.
func TestErrorsOfBeginAreToldAsSuch(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "callers queue on one server only")
	pool := pgtest.Pool(t, func(c *pgxpool.Config) {
		c.MaxConns, c.ConnConfig.RuntimeParams["lock_timeout"] = 1, "50ms"
	})
	admin, err := pgxpool.New(t.Context(), pgtest.URL(t, pool))
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	rig.Exec(t, admin, `CREATE TABLE done (n bigint)`) // for which it may wait
	k := ratelimit.MustDefine("k", ratelimit.TokenBucket{Rate: 1000, Period: rig.Never}).For("k")
	lock := lockOf(t, admin, k)
	blocker := rig.Begin(t, admin, pgx.ReadCommitted)
	if _, err := blocker.Exec(t.Context(), `SELECT pg_advisory_xact_lock($1)`, lock); err != nil {
		t.Fatal(err)
	}
	defer rig.Commit(t, blocker)

	rateLimit := func(l *ratelimit.Limiter) func(context.Context, pgx.Tx) error {
		return func(ctx context.Context, tx pgx.Tx) error {
			_, err := l.RateLimit(ctx, tx, k)
			return err
		}
	}
	uses := map[string]func(context.Context, pgx.Tx) error{"RateLimit": nil}
	for name, use := range firstUses {
		uses[name] = use
	}
	for name, use := range uses {
		for _, hide := range []bool{false, true} {
			l := rig.Limiter(t, ratelimit.Config{}) // that knows of no contention
			if name == "RateLimit" {
				use = rateLimit(l)
			}
			fails := func(ctx context.Context, tx pgx.Tx) error {
				err := use(ctx, tx)
				if again := use(ctx, tx); err == nil || again == nil {
					t.Errorf("%s: %v, and again: %v", name, err, again)
				}
				if hide {
					return nil
				}
				return fmt.Errorf("mine: %w", err)
			}
			is := func(err error, want string) {
				t.Helper()
				if err == nil || !strings.HasPrefix(err.Error(), want) || errors.Is(err, ratelimit.ErrOutcomeUnknown) {
					t.Errorf("%s, hidden %v: got %v, want %s", name, hide, err, want)
				}
			}
			is(l.InTxOptions(t.Context(), pool, pgx.TxOptions{IsoLevel: "as you like it"}, fails),
				"ratelimit: begin: ERROR: ")

			var pid int
			if err := pool.QueryRow(t.Context(), `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
				t.Fatal(err)
			}
			is(l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
				rig.Exec(t, admin, fmt.Sprintf(`SELECT pg_terminate_backend(%d, 10000)`, pid))
				return fails(ctx, tx)
			}), "ratelimit: begin: FATAL: ")

			ctx, cancel := context.WithCancel(t.Context())
			is(l.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
				cancel()
				return fails(ctx, tx)
			}), "ratelimit: begin: ")

			runs := 0
			is(l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
				if runs++; runs == 2 {
					return fails(ctx, tx)
				}
				if _, err := tx.Exec(ctx, `SELECT 1`); err != nil {
					return err
				}
				rig.Take(t, l.Autocommit(admin), k)
				return rateLimit(l)(ctx, tx)
			}), "ratelimit: queue for a contended limit: ERROR: ")
		}
	}
	until(t, func() bool { return pool.Stat().AcquiredConns() == 0 })
	var rows int
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM done`).Scan(&rows); err != nil || rows != 0 {
		t.Errorf("%d rows of failed transactions, %v", rows, err)
	}
}

// A first take that fails before it is sent leaves what it would have left after BEGIN.
func TestAFirstTakeThatCannotBePrepared(t *testing.T) {
	t.Parallel()
	x := ratelimit.MustDefine("x", ratelimit.TokenBucket{Rate: 10, Period: rig.Never})
	for _, mode := range modes {
		for _, requests := range [][]ratelimit.Request{{x.For("a")}, {x.For("a"), x.For("b")}} {
			t.Run(fmt.Sprintf("%s/%d", strings.ReplaceAll(mode.String(), " ", ""), len(requests)), func(t *testing.T) {
				t.Parallel()
				pool, l := pgtest.Bare(t, func(c *pgxpool.Config) {
					c.ConnConfig.DefaultQueryExecMode = mode
				}), rig.Limiter(t, ratelimit.Config{})
				rig.Exec(t, pool, `CREATE TABLE done (n bigint)`)
				err := l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
					if _, err := l.RateLimit(ctx, tx, requests...); rig.SQLState(err) != "42P01" ||
						!strings.Contains(err.Error(), "schema.Migrate") {
						t.Errorf("got %v, want that nothing was migrated", err)
					}
					if err := firstUses["Exec"](ctx, tx); rig.SQLState(err) != "25P02" {
						t.Errorf("got %v, want a transaction that has failed", err)
					}
					return nil
				})
				if err == nil || !strings.Contains(err.Error(), "did not return its error") {
					t.Error(err)
				}
			})
		}
	}
}

// A limiter that is given a context of its own, which has ended, is one that the callback may do
// without.
func TestAFirstTakeWhoseContextHasEnded(t *testing.T) {
	t.Parallel()
	pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
	rig.Exec(t, pool, `CREATE TABLE done (n bigint)`)
	k := ratelimit.MustDefine("k", ratelimit.TokenBucket{Rate: 10, Period: rig.Never}).For("k")
	err := l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		short, cancel := context.WithCancel(ctx)
		cancel()
		if _, err := l.RateLimit(short, tx, k); !errors.Is(err, context.Canceled) ||
			!strings.Contains(err.Error(), `take limit "k"`) {
			t.Errorf("got %v", err)
		}
		return firstUses["Exec"](ctx, tx)
	})
	var rows int
	if err := errors.Join(err, pool.QueryRow(t.Context(),
		`SELECT count(*) FROM done`).Scan(&rows)); err != nil || rows != 1 {
		t.Errorf("%d rows, %v", rows, err)
	}
	wantValue(t, l, pool, k, 10)
}

// A take that waits for its row is what fails, and not the BEGIN that went with it.
func TestAFirstTakeThatWaitsInVain(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it watches the locks of one server")
	pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
	k := ratelimit.MustDefine("k", ratelimit.TokenBucket{Rate: 10, Period: rig.Never}).For("k")
	holder := rig.Begin(t, pool, pgx.ReadCommitted)
	takeOK(t, first(l.RateLimit(t.Context(), holder, k)))
	for _, sub := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		outer := ctx
		if sub {
			outer = t.Context()
		}
		err := l.InTx(outer, pool, func(inner context.Context, tx pgx.Tx) error {
			if !sub {
				ctx = inner
			}
			go func() {
				defer cancel()
				waitsForALock(t, pool)
			}()
			_, err := l.RateLimit(ctx, tx, k)
			return err
		})
		cancel()
		if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), `take limit "k"`) {
			t.Errorf("got %v", err)
		}
	}
	rig.Commit(t, holder)
	wantValue(t, l, pool, k, 9)
}

func TestOptionsOfATransactionThatBeginsWithATake(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "the default level is another one there")
	pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
	k := ratelimit.MustDefine("k", ratelimit.TokenBucket{Rate: 10, Period: rig.Never}).For("k")
	for _, tc := range []struct {
		opts pgx.TxOptions
		want string
	}{
		{pgx.TxOptions{}, "serializable off off"},
		{pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, "repeatable read off off"},
		{pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite,
			DeferrableMode: pgx.NotDeferrable}, "read committed off off"},
		{pgx.TxOptions{IsoLevel: pgx.ReadUncommitted, AccessMode: pgx.ReadOnly}, "read uncommitted on off"},
		{pgx.TxOptions{AccessMode: pgx.ReadOnly, DeferrableMode: pgx.Deferrable}, "serializable on on"},
		{pgx.TxOptions{BeginQuery: "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"}, "repeatable read on off"},
	} {
		err := l.InTxOptions(t.Context(), pool, tc.opts, func(ctx context.Context, tx pgx.Tx) error {
			if _, err := l.Value(ctx, tx, k); err != nil {
				return err
			}
			var got string
			err := tx.QueryRow(ctx, `SELECT concat_ws(' ', current_setting('transaction_isolation'),
				current_setting('transaction_read_only'), current_setting('transaction_deferrable'))`).Scan(&got)
			if got != tc.want {
				t.Errorf("%+v: %q, want %q", tc.opts, got, tc.want)
			}
			return err
		})
		if err != nil {
			t.Errorf("%+v: %v", tc.opts, err)
		}
	}

	err := l.InTxOptions(t.Context(), pool, pgx.TxOptions{AccessMode: pgx.ReadOnly},
		func(ctx context.Context, tx pgx.Tx) error {
			_, err := l.RateLimit(ctx, tx, k)
			return err
		})
	if rig.SQLState(err) != "25006" || !strings.Contains(err.Error(), "use the primary") {
		t.Errorf("read-only: %v", err)
	}

	for _, savepoint := range []bool{false, true} {
		err := l.InTxOptions(t.Context(), pool, pgx.TxOptions{CommitQuery: "ROLLBACK"},
			func(ctx context.Context, tx pgx.Tx) error {
				takeOK(t, first(l.RateLimit(ctx, tx, k)))
				if !savepoint {
					return nil
				}
				return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
					takeOK(t, first(l.RateLimit(ctx, tx, k)))
					return nil
				})
			})
		if !errors.Is(err, pgx.ErrTxCommitRollback) {
			t.Errorf("CommitQuery, savepoint %v: %v", savepoint, err)
		}
	}
	wantValue(t, l, pool, k, 10)
}

// A first take that was denied rolls its transaction back and looks again. If it cannot look, there
// is no transaction, and nothing that the callback does then takes effect.
func TestAFirstTakeThatCannotBeginAgain(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "shards are looked at with other statements there")
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 1 })
	rig.Exec(t, pool, `CREATE TABLE done (n bigint)`)
	k := ratelimit.MustDefine("k", ratelimit.TokenBucket{Rate: 10, Period: rig.Never}, ratelimit.Shards(2)).For("k")
	l := rig.Limiter(t, ratelimit.Config{MaxAttempts: 1})
	for range 2 { // the second call knows the shards that the first has made
		takeOK(t, first(l.Autocommit(pool).RateLimit(t.Context(), k)))
	}
	rig.Exec(t, pool, `UPDATE weir_balance SET value = 0 WHERE shard > 0`) // as another process might
	rig.Exec(t, pool, forget(`%array_agg(shard)%`))
	oops := errors.New("oops")
	err := l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := l.RateLimit(ctx, tx, k); rig.SQLState(err) != "26000" {
			t.Errorf("got %v, want that the look fails", err)
		}
		if err := firstUses["Exec"](ctx, tx); rig.SQLState(err) != "26000" {
			t.Errorf("got %v, want that there is no transaction", err)
		}
		return oops
	})
	if rig.SQLState(err) != "26000" {
		t.Errorf("got %v, want the error of the look", err)
	}
	if n := rowsOf(t, pool, "done"); n != 0 {
		t.Errorf("%d rows of a transaction that failed", n)
	}
}

// If the statements with which a transaction queues for a row cannot be prepared, it does not queue.
func TestAQueueThatCannotBePrepared(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "on Citus no transaction queues")
	pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
	rig.Exec(t, pool, `CREATE TABLE done (n bigint)`)
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	texts := statements.New("", false)
	lock, _, _ := texts.Queue(1)
	name := sha256.Sum256([]byte(lock)) // pgx's name for it, which is then taken
	if _, err := conn.Exec(t.Context(), fmt.Sprintf(`PREPARE stmtcache_%x AS SELECT 1`, name[:24])); err != nil {
		t.Fatal(err)
	}
	k := ratelimit.MustDefine("k", ratelimit.TokenBucket{Rate: 10, Period: rig.Never}).For("k")
	runs := 0
	err = l.InTx(t.Context(), conn, func(ctx context.Context, tx pgx.Tx) error {
		runs++
		if err := firstUses["Exec"](ctx, tx); err != nil {
			return err
		}
		if runs == 1 {
			rig.Take(t, l.Autocommit(pool), k)
		}
		return l.Consume(ctx, tx, k)
	})
	if err != nil || runs != 2 {
		t.Fatalf("%d runs: %v", runs, err)
	}
	wantValue(t, l, pool, k, 8)
}
