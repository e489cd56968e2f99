package integration

import (
	"context"
	"database/sql"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// A conflict that Postgres does not know of, as of a balance that was pruned, cannot be hidden either.
func TestAConflictOfOursCannotBeHidden(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "on a cluster each node has a snapshot of its own")
	db, pool := sqlDB(t)
	l := rig.Limiter(t, ratelimit.Config{})
	rule := ratelimit.TokenBucket{Rate: 10, Period: rig.Never}
	key, shadow := ratelimit.MustDefine("real", rule), ratelimit.MustDefine("trial", rule, ratelimit.Shadow())
	for name, inTx := range map[string]func(k string, fn func(context.Context, ratelimit.Verbs) error) error{
		"InTx": func(_ string, fn func(context.Context, ratelimit.Verbs) error) error {
			return l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error { return fn(ctx, l.In(tx)) })
		},
		"InSQLTx": func(_ string, fn func(context.Context, ratelimit.Verbs) error) error {
			return l.InSQLTx(t.Context(), db, nil, func(ctx context.Context, tx *sql.Tx) error { return fn(ctx, l.InSQL(tx)) })
		},
	} {
		rig.Take(t, l.Autocommit(pool), shadow.For(name))
		runs := 0
		err := inTx(name, func(ctx context.Context, v ratelimit.Verbs) error {
			if _, err := v.Value(ctx, key.For("other")); err != nil { // the transaction has its snapshot
				return err
			}
			if runs++; runs == 1 {
				rig.Exec(t, pool, `DELETE FROM weir_balance`) // as Prune does
			}
			for range 2 { // the second time there are too few
				_, _ = v.RateLimit(ctx, key.For(name), shadow.For(name).Count(6))
			}
			return nil
		})
		if err != nil || runs != 2 {
			t.Errorf("%s: %v after %d runs, want two", name, err, runs)
		}
		wantLeft(t, l.Autocommit(pool), key.For(name), 8)
	}
}

// Without MaxAttempts InTx goes on until ctx ends. That is a conflict, too.
func TestGivingUpWhenTheTimeIsOverIsAConflict(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	l := rig.Limiter(t, ratelimit.Config{})
	rig.Exec(t, pool, `CREATE TABLE counter (n int)`)
	rig.Exec(t, pool, `INSERT INTO counter VALUES (0)`)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	runs := 0
	err := l.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT 1`); err != nil {
			return err
		}
		rig.Exec(t, pool, `UPDATE counter SET n = n + 1`)
		_, err := tx.Exec(ctx, `UPDATE counter SET n = n + 1`)
		if runs++; runs == 3 {
			cancel()
		}
		return err
	})
	var gaveUp *ratelimit.ConflictError
	if !errors.As(err, &gaveUp) || gaveUp.Attempts != 3 || !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want a ConflictError of 3 attempts that also says that the context was canceled", err)
	}
}

// The Observer gets an event for a transaction whose callback does not return.
func TestATransactionThatPanicsIsObserved(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	for name, end := range map[string]func(){"panic": func() { panic("mine") }, "Goexit": runtime.Goexit} {
		var seen watcher
		l := rig.Limiter(t, ratelimit.Config{Observer: &seen})
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			defer func() { _ = recover() }()
			_ = l.InTx(t.Context(), pool, func(context.Context, pgx.Tx) error {
				end()
				return nil
			})
		}()
		<-ended
		if len(seen.transacted) != 1 || seen.transacted[0].Err == nil {
			t.Errorf("%s: %+v, want one transaction with an error", name, seen.transacted)
		}
	}
}

// committing panics when COMMIT is sent, as a tracer of the program's may.
type committing struct{}

func (committing) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	if strings.EqualFold(d.SQL, "commit") {
		panic(errMine)
	}
	return ctx
}

func (committing) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func TestAPanicAtCommitRollsBack(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	cfg := pool.Config().ConnConfig.Copy()
	cfg.Tracer = committing{}
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	l := rig.Limiter(t, ratelimit.Config{})
	key := ratelimit.MustDefine("panics", ratelimit.TokenBucket{Rate: 10, Period: rig.Never}).For("k")
	err = caught(func() error {
		return l.InTx(t.Context(), conn, func(ctx context.Context, tx pgx.Tx) error {
			return rig.Granted(l.RateLimit(ctx, tx, key))
		})
	})
	if !errors.Is(err, errMine) {
		t.Errorf("%v, want that the panic goes on", err)
	}
	if status := conn.PgConn().TxStatus(); status != 'I' && !conn.IsClosed() {
		t.Errorf("the connection is left in a transaction: %c", status)
	}
	wantLeft(t, l.Autocommit(pool), key, 10)
}

// A savepoint while rows are open is refused, and the transaction goes on.
func TestASavepointBesideOpenRowsIsRefused(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	l := rig.Limiter(t, ratelimit.Config{})
	key := ratelimit.MustDefine("savepoint", ratelimit.TokenBucket{Rate: 10, Period: rig.Never}).For("k")
	err := l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		if err := rig.Granted(l.RateLimit(ctx, tx, key)); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `SELECT generate_series(1, 10)`)
		if err != nil {
			return err
		}
		if _, err := tx.Begin(ctx); err == nil {
			t.Error("a savepoint beside open rows")
		}
		rows.Close()
		return rig.Granted(l.RateLimit(ctx, tx, key))
	})
	if err != nil {
		t.Error(err)
	}
	wantLeft(t, l.Autocommit(pool), key, 8)
}

// If a callback ends the transaction by a statement, InTx returns an error, as it does after Rollback.
func TestATransactionThatIsEndedByAStatementIsAnError(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	l := rig.Limiter(t, ratelimit.Config{})
	key := ratelimit.MustDefine("ended", ratelimit.TokenBucket{Rate: 10, Period: rig.Never}).For("k")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := l.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
		if err := rig.Granted(l.RateLimit(ctx, tx, key)); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `ROLLBACK`)
		return err
	})
	if !errors.Is(err, pgx.ErrTxClosed) {
		t.Errorf("%v, want ErrTxClosed", err)
	}
	wantLeft(t, l.Autocommit(pool), key, 10)
}
