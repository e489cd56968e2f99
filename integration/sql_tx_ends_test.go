package integration

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// afterBegin does something once a BEGIN was answered.
type afterBegin struct{ do func() }

type isBegin struct{}

func (*afterBegin) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, isBegin{}, strings.HasPrefix(d.SQL, "begin"))
}

func (a *afterBegin) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if a.do != nil && ctx.Value(isBegin{}) == true {
		a.do()
	}
}

// If its context ends as soon as BEGIN was answered, database/sql rolls back on its own. The
// transaction must not use the connection beside that, not even to queue.
func TestAContextThatEndsAtBeginSendsNothingMoreInDatabaseSQL(t *testing.T) {
	pgtest.OneServer(t, "callers queue on one server only")
	t.Parallel()
	tracer := &afterBegin{}
	db, pool := sqlDB(t, func(c *pgxpool.Config) { c.MaxConns, c.ConnConfig.Tracer = 1, tracer })
	l, other := rig.Limiter(t, ratelimit.Config{}), another(t, pool)
	k := ratelimit.MustDefine("begin sql", ratelimit.TokenBucket{Rate: 10, Period: rig.Never}).For("k")
	rig.Take(t, l.Autocommit(other), k)
	ctx, cancel := context.WithCancel(t.Context())
	runs := 0
	err := l.InSQLTx(ctx, db, nil, lostOnce(t, l, other, k, &runs, func(ctx context.Context, tx *sql.Tx) error {
		tracer.do = cancel // at the BEGIN of the second run
		_, err := tx.ExecContext(ctx, `SELECT 1`)
		return err
	}))
	tracer.do = nil
	if !errors.Is(err, context.Canceled) || !strings.HasPrefix(err.Error(), "ratelimit: begin: ") || runs != 1 {
		t.Errorf("%d runs, then %v", runs, err)
	}
	if err := db.PingContext(t.Context()); err != nil {
		t.Errorf("the pool of one connection afterwards: %v", err)
	}
}

func TestInSQLTxGivesUpAtItsMaximumAndWithItsContext(t *testing.T) {
	pgtest.OneServer(t, "its conflicts are those of SERIALIZABLE, which is not the default there")
	t.Parallel()
	db, pool := sqlDB(t)
	rig.Exec(t, pool, `CREATE TABLE counter (n int); INSERT INTO counter VALUES (0)`)
	conflict := func(ctx context.Context, tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `SELECT 1`); err != nil {
			return err
		}
		rig.Exec(t, pool, `UPDATE counter SET n = n + 1`)
		_, err := tx.ExecContext(ctx, `UPDATE counter SET n = n + 1`)
		return err
	}
	runs := 0
	err := rig.Limiter(t, ratelimit.Config{MaxAttempts: 3}).InSQLTx(t.Context(), db, nil,
		func(ctx context.Context, tx *sql.Tx) error {
			runs++
			return conflict(ctx, tx)
		})
	var gaveUp *ratelimit.ConflictError
	if !errors.As(err, &gaveUp) || gaveUp.Attempts != 3 || runs != 3 || rig.SQLState(err) != "40001" {
		t.Errorf("ran %d times, then %v", runs, err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	runs = 0
	err = rig.Limiter(t, ratelimit.Config{}).InSQLTx(ctx, db, nil, func(ctx context.Context, tx *sql.Tx) error {
		if runs++; runs == 3 {
			defer cancel()
		}
		return conflict(ctx, tx)
	})
	if !errors.Is(err, context.Canceled) || runs != 3 {
		t.Errorf("ran %d times, then %v", runs, err)
	}
}

// A callback that ignores the end of its context has not committed, and is not told that nobody
// knows.
func TestAContextThatEndsBeforeCommitRollsBackInDatabaseSQL(t *testing.T) {
	t.Parallel()
	db, pool := sqlDB(t)
	l := rig.Limiter(t, ratelimit.Config{})
	limit := ratelimit.MustDefine("cancel sql", ratelimit.TokenBucket{Rate: 10, Period: rig.Never})
	for name, wait := range map[string]func(context.Context, *sql.Tx, func()) error{
		"InAStatement": func(ctx context.Context, tx *sql.Tx, cancel func()) error {
			var pid uint32
			if err := tx.QueryRowContext(ctx, `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
				return err
			}
			go whenAsleep(t, pool, pid, cancel)
			_, err := tx.ExecContext(ctx, `SELECT pg_sleep(60)`)
			return err
		},
		"Ignored": func(_ context.Context, tx *sql.Tx, cancel func()) error {
			cancel()
			_, err := tx.Exec(`SELECT 1`)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			err := l.InSQLTx(ctx, db, nil, func(ctx context.Context, tx *sql.Tx) error {
				if err := l.InSQL(tx).Consume(ctx, limit.For(name)); err != nil {
					return err
				}
				return wait(ctx, tx, cancel)
			})
			if !errors.Is(err, context.Canceled) || errors.Is(err, ratelimit.ErrOutcomeUnknown) {
				t.Errorf("got %v, want the end of the context", err)
			}
			wantValue(t, l, pool, limit.For(name), 10)
		})
	}
}

func TestMistakesInTheCallbackOfInSQLTx(t *testing.T) {
	t.Parallel()
	db, pool := sqlDB(t)
	l := rig.Limiter(t, ratelimit.Config{})
	for name, c := range map[string]struct {
		fn   func(ctx context.Context, tx *sql.Tx) error
		want string
	}{
		"Commits":   {func(_ context.Context, tx *sql.Tx) error { return tx.Commit() }, "ended the transaction itself"},
		"RollsBack": {func(_ context.Context, tx *sql.Tx) error { return tx.Rollback() }, "ended the transaction itself"},
		"HidesAFail": {func(ctx context.Context, tx *sql.Tx) error {
			_, _ = tx.ExecContext(ctx, `SELECT 1/0`)
			return nil
		}, "did not return its error"},
		"Constraint": {func(ctx context.Context, tx *sql.Tx) error {
			for _, text := range []string{`CREATE TEMP TABLE p (id int PRIMARY KEY) ON COMMIT DROP`,
				`CREATE TEMP TABLE c (id int REFERENCES p DEFERRABLE INITIALLY DEFERRED) ON COMMIT DROP`, `INSERT INTO c VALUES (1)`} {
				if _, err := tx.ExecContext(ctx, text); err != nil {
					return err
				}
			}
			return nil
		}, "rolled back at COMMIT"},
		"LosesTheConnection": {func(ctx context.Context, tx *sql.Tx) error {
			_, _ = tx.ExecContext(ctx, `SELECT pg_terminate_backend(pg_backend_pid())`)
			return nil
		}, "lost before COMMIT"},
		"Nests": {func(ctx context.Context, _ *sql.Tx) error {
			return l.InSQLTx(ctx, db, nil, func(context.Context, *sql.Tx) error { return nil })
		}, "on the same pool"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := l.InSQLTx(t.Context(), db, nil, c.fn)
			if err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, ratelimit.ErrOutcomeUnknown) {
				t.Errorf("got %v, want it to say %q", err, c.want)
			}
		})
	}
	t.Run("Panics", func(t *testing.T) {
		t.Parallel()
		limit := ratelimit.MustDefine("panic sql", ratelimit.TokenBucket{Rate: 10, Period: rig.Never})
		defer func() {
			if p := recover(); p != "at the disco" {
				t.Errorf("recovered %v", p)
			}
			wantValue(t, l, pool, limit.For("k"), 10)
		}()
		_ = l.InSQLTx(t.Context(), db, nil, func(ctx context.Context, tx *sql.Tx) error {
			if err := l.InSQL(tx).Consume(ctx, limit.For("k")); err != nil {
				t.Error(err)
			}
			panic("at the disco")
		})
	})
	t.Run("NoDatabase", func(t *testing.T) {
		t.Parallel()
		if err := l.InSQLTx(t.Context(), nil, nil, nil); !errors.Is(err, ratelimit.ErrInvalid) {
			t.Errorf("got %v, want ErrInvalid", err)
		}
	})
}
