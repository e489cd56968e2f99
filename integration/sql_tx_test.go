package integration

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// sqlDB is a database, also as database/sql has it.
func sqlDB(t *testing.T, opts ...func(*pgxpool.Config)) (*sql.DB, *pgxpool.Pool) {
	t.Helper()
	pool := pgtest.Pool(t, opts...)
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = db.Close() })
	return db, pool
}

func TestTokensRollBackWithTheTransactionOfDatabaseSQL(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "the default level is another one there")
	db, pool := sqlDB(t)
	l := rig.Limiter(t, ratelimit.Config{})
	limit := ratelimit.MustDefine("rollback sql", ratelimit.TokenBucket{Rate: 10, Period: rig.Never})
	oops := errors.New("oops")
	take := func(n float64, end error) error {
		return l.InSQLTx(t.Context(), db, nil, func(ctx context.Context, tx *sql.Tx) error {
			if err := l.InSQL(tx).Consume(ctx, limit.For("k").Count(n)); err != nil {
				return err
			}
			var level string
			if err := tx.QueryRowContext(ctx, `SHOW transaction_isolation`).
				Scan(&level); err != nil || level != "serializable" {
				t.Errorf("the level is %s: %v", level, err)
			}
			return end
		})
	}
	if err := take(10, oops); !errors.Is(err, oops) {
		t.Fatal(err)
	}
	wantValue(t, l, pool, limit.For("k"), 10)
	if err := take(4, nil); err != nil {
		t.Fatal(err)
	}
	if err := take(8, nil); !errors.Is(err, ratelimit.ErrDenied) {
		t.Errorf("got %v, want a denial", err)
	}
	wantValue(t, l, pool, limit.For("k"), 6)
	if n := pool.Stat().AcquiredConns(); n > 1 { // database/sql keeps some
		t.Errorf("%d connections were not given back", n)
	}
}

// A conflict runs all of it again, wherever it comes from, and whatever the callback makes of one
// of the limiter's.
func TestAConflictRunsTheTransactionOfDatabaseSQLAgain(t *testing.T) {
	pgtest.OneServer(t, "its conflicts are those of SERIALIZABLE, which is not the default there")
	t.Parallel()
	limit := ratelimit.MustDefine("conflict sql", ratelimit.TokenBucket{Rate: 10, Period: rig.Never})
	for name, test := range map[string]struct {
		caller  bool // the conflict is in a statement of the caller's
		make    func(error) error
		wrapped bool // a wrapper hides pgx's connection
	}{
		"OfOurs":       {make: func(err error) error { return err }},
		"OfTheCallers": {caller: true, make: func(err error) error { return fmt.Errorf("update: %w", err) }},
		"HiddenByAnError": {make: func(err error) error {
			return fmt.Errorf("cannot: %s", err) //nolint:errorlint // the point
		}},
		"HiddenByNil":   {make: func(error) error { return nil }},
		"WrappedDriver": {make: func(err error) error { return err }, wrapped: true},
		"WrappedAndAnError": {make: func(err error) error {
			return fmt.Errorf("cannot: %s", err) //nolint:errorlint // the point
		}, wrapped: true},
		"WrappedAndNil":      {make: func(error) error { return nil }, wrapped: true},
		"WrappedAndCallers ": {caller: true, make: func(err error) error { return err }, wrapped: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, pool := sqlDB(t)
			if test.wrapped {
				db = sql.OpenDB(wrapper{stdlib.GetPoolConnector(pool)})
				t.Cleanup(func() { _ = db.Close() })
			}
			l := rig.Limiter(t, ratelimit.Config{})
			rig.Exec(t, pool, `CREATE TABLE counter (n int); INSERT INTO counter VALUES (0)`)
			rig.Take(t, l.Autocommit(pool), limit.For("k"))
			runs := 0
			err := l.InSQLTx(t.Context(), db, nil, func(ctx context.Context, tx *sql.Tx) error {
				runs++
				if _, err := tx.ExecContext(ctx, `SELECT 1`); err != nil {
					return err
				}
				if runs == 1 && test.caller {
					rig.Exec(t, pool, `UPDATE counter SET n = n + 1`)
				} else if runs == 1 {
					rig.Take(t, l.Autocommit(pool), limit.For("k"))
				}
				if _, err := tx.ExecContext(ctx, `UPDATE counter SET n = n + 1`); err != nil {
					return test.make(err)
				}
				if err := l.InSQL(tx).Consume(ctx, limit.For("k")); err != nil {
					return test.make(err)
				}
				return nil
			})
			if err != nil || runs != 2 {
				t.Fatalf("ran %d times, then %v", runs, err)
			}
			want := 7.0
			if test.caller {
				want = 8
			}
			wantValue(t, l, pool, limit.For("k"), want)
		})
	}
}

// wrapper is a driver that wraps pgx's, and forwards what a transaction needs.
type wrapper struct{ driver.Connector }

func (w wrapper) Connect(ctx context.Context) (driver.Conn, error) {
	c, err := w.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return wrapped{c.(*stdlib.Conn)}, nil
}

type wrapped struct{ *connOfPgx }

type connOfPgx = stdlib.Conn

func (wrapped) Conn() {} // hides that of pgx

// Two transactions of which each reads what the other writes conflict at COMMIT.
func TestAConflictAtCommitRunsTheTransactionOfDatabaseSQLAgain(t *testing.T) {
	pgtest.OneServer(t, "its conflicts are those of SERIALIZABLE, which is not the default there")
	t.Parallel()
	db, pool := sqlDB(t)
	l := rig.Limiter(t, ratelimit.Config{})
	limit := ratelimit.MustDefine("skew sql", ratelimit.TokenBucket{Rate: 10, Period: rig.Never})
	rig.Exec(t, pool, `CREATE TABLE doctor (name text PRIMARY KEY, on_call bool NOT NULL);
		INSERT INTO doctor VALUES ('alice', true), ('bob', true);
		INSERT INTO doctor SELECT i::text, false FROM generate_series(1, 1000) i; ANALYZE doctor`)
	swap := func(ctx context.Context, tx *sql.Tx, reads, writes string) error {
		if _, err := tx.ExecContext(ctx, `SELECT * FROM doctor WHERE name = $1`, reads); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `UPDATE doctor SET on_call = false WHERE name = $1`, writes)
		return err
	}
	runs := 0
	err := l.InSQLTx(t.Context(), db, nil, func(ctx context.Context, tx *sql.Tx) error {
		runs++
		if err := l.InSQL(tx).Consume(ctx, limit.For("k").Count(2)); err != nil {
			return err
		}
		if err := swap(ctx, tx, "alice", "bob"); err != nil {
			return err
		}
		if runs > 1 {
			return nil
		}
		other, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelSerializable})
		if err != nil {
			return err
		}
		if err := swap(t.Context(), other, "bob", "alice"); err != nil {
			return err
		}
		return other.Commit()
	})
	if err != nil || runs != 2 {
		t.Fatalf("ran %d times, then %v", runs, err)
	}
	wantValue(t, l, pool, limit.For("k"), 8)
}

// Callers of one row fail none of each other, and get no more than there is.
func TestConcurrentTransactionsOfDatabaseSQLNeverGetMoreThanTheLimit(t *testing.T) {
	t.Parallel()
	limit := ratelimit.MustDefine("concurrent sql", ratelimit.TokenBucket{Rate: 40, Period: rig.Never})
	for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable} {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			app := fmt.Sprintf("concurrent sql, %d", level)
			db, pool := sqlDB(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = app })
			l := rig.Limiter(t, ratelimit.Config{})
			rig.Exec(t, pool, `CREATE TABLE took (by int)`)
			const callers, calls = 8, 8
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			var all sync.WaitGroup
			for i := range callers {
				all.Go(func() {
					for range calls {
						err := l.InSQLTx(ctx, db, &sql.TxOptions{Isolation: level},
							func(ctx context.Context, tx *sql.Tx) error {
								if err := l.InSQL(tx).Consume(ctx, limit.For("k")); err != nil {
									return err
								}
								_, err := tx.ExecContext(ctx, `INSERT INTO took VALUES ($1)`, i)
								return err
							})
						if err != nil && !errors.Is(err, ratelimit.ErrDenied) {
							t.Errorf("caller %d: %v", i, err)
						}
					}
				})
			}
			all.Wait()
			var took int
			if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM took`).Scan(&took); err != nil || took != 40 {
				t.Errorf("%d were granted, want 40: %v", took, err)
			}
			wantValue(t, l, pool, limit.For("k"), 0)
			if pgtest.Citus() {
				return // nobody queues there, and other tests hold locks of their own in the same database
			}
			var locks int
			if err := pool.QueryRow(t.Context(), `SELECT count(*) `+queueLocks+` AND q.pid IN (
				SELECT pid FROM pg_stat_activity WHERE application_name = $1)`, app).
				Scan(&locks); err != nil || locks != 0 {
				t.Errorf("%d locks of the queue are left: %v", locks, err)
			}
		})
	}
}

// lostOnce returns a callback whose first run loses k to somebody else, after what before does.
func lostOnce(t *testing.T, l *ratelimit.Limiter, other *pgxpool.Pool, k ratelimit.Request, runs *int,
	before func(context.Context, *sql.Tx) error) func(context.Context, *sql.Tx) error {
	return func(ctx context.Context, tx *sql.Tx) error {
		if *runs++; *runs == 1 {
			if err := before(ctx, tx); err != nil {
				return err
			}
			rig.Take(t, l.Autocommit(other), k)
		}
		return l.InSQL(tx).Consume(ctx, k)
	}
}

// another returns a pool of its own for the schema of a pool.
func another(t *testing.T, pool *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	other, err := pgxpool.New(t.Context(), pgtest.URL(t, pool))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(other.Close)
	return other
}

// A connection that has lost what the queue has prepared on it fails no transaction.
func TestAQueueWhosePreparedStatementIsLostFailsNoTransactionOfDatabaseSQL(t *testing.T) {
	pgtest.OneServer(t, "callers queue on one server only")
	t.Parallel()
	db, pool := sqlDB(t, func(c *pgxpool.Config) { c.MaxConns = 1 })
	l, other := rig.Limiter(t, ratelimit.Config{}), another(t, pool)
	k := ratelimit.MustDefine("queue sql", ratelimit.TokenBucket{Rate: 10, Period: rig.Never}).For("k")
	rig.Take(t, l.Autocommit(other), k)
	for _, before := range []string{`SELECT 1`, forget(`%advisory%`)} {
		runs := 0
		err := l.InSQLTx(t.Context(), db, nil, lostOnce(t, l, other, k, &runs, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, before)
			return err
		}))
		if err != nil || runs != 2 {
			t.Errorf("after %s: %d runs, then %v", before, runs, err)
		}
	}
	wantValue(t, l, other, k, 5)
}
