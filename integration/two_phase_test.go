package integration

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// Each runs a transaction that takes twice and writes a row in between.
var takersWithRows = map[string]func(t *testing.T, l *ratelimit.Limiter, pool *pgxpool.Pool,
	r ratelimit.Request) error{
	"InTx": func(t *testing.T, l *ratelimit.Limiter, pool *pgxpool.Pool, r ratelimit.Request) error {
		return l.InTx(t.Context(), pool, takesWithRow(l, r))
	},
	"InTx of a limiter without Citus": func(t *testing.T, l *ratelimit.Limiter, pool *pgxpool.Pool,
		r ratelimit.Request) error {
		return rig.Limiter(t, ratelimit.Config{}).InTx(t.Context(), pool, takesWithRow(l, r))
	},
	"InTx of transactions that name no connection": func(t *testing.T, l *ratelimit.Limiter, pool *pgxpool.Pool,
		r ratelimit.Request) error {
		return l.InTx(t.Context(), unconnected{pool}, takesWithRow(l, r))
	},
	"InSQLTx": func(t *testing.T, l *ratelimit.Limiter, pool *pgxpool.Pool, r ratelimit.Request) error {
		db := stdlib.OpenDBFromPool(pool)
		defer func() { _ = db.Close() }()
		return l.InSQLTx(t.Context(), db, nil, takesWithRowSQL(l, r))
	},
	"InSQLTx of a limiter without Citus": func(t *testing.T, l *ratelimit.Limiter, pool *pgxpool.Pool,
		r ratelimit.Request) error {
		db := stdlib.OpenDBFromPool(pool)
		defer func() { _ = db.Close() }()
		return rig.Limiter(t, ratelimit.Config{}).InSQLTx(t.Context(), db, nil, takesWithRowSQL(l, r))
	},
	"SendBatch": func(t *testing.T, l *ratelimit.Limiter, pool *pgxpool.Pool, r ratelimit.Request) error {
		_, err := l.SendBatch(t.Context(), pool, func(b *pgx.Batch) error {
			b.Queue(`INSERT INTO message (id) VALUES (1)`)
			return nil
		}, r, r)
		return err
	},
	"a transaction of pgx": func(t *testing.T, l *ratelimit.Limiter, pool *pgxpool.Pool, r ratelimit.Request) error {
		return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			return takesWithRow(l, r)(t.Context(), tx)
		})
	},
	"a transaction of database/sql": func(t *testing.T, l *ratelimit.Limiter, pool *pgxpool.Pool,
		r ratelimit.Request) error {
		db := stdlib.OpenDBFromPool(pool)
		defer func() { _ = db.Close() }()
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		if err := takesWithRowSQL(l, r)(t.Context(), tx); err != nil {
			return err
		}
		return tx.Commit()
	},
}

// unconnected begins transactions that do not say on which connection they run, as a wrapper may.
type unconnected struct{ pool *pgxpool.Pool }

func (b unconnected) BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error) {
	tx, err := b.pool.BeginTx(ctx, opts)
	if err != nil {
		return nil, err
	}
	return unnamed{tx}, nil
}

type unnamed struct{ pgx.Tx }

func (unnamed) Conn() *pgx.Conn { return nil }

func takesWithRow(l *ratelimit.Limiter, r ratelimit.Request) func(context.Context, pgx.Tx) error {
	return func(ctx context.Context, tx pgx.Tx) error {
		if err := l.Consume(ctx, tx, r); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `INSERT INTO message (id) VALUES (1)`); err != nil {
			return err
		}
		if _, err := l.CheckRateLimit(ctx, tx, r); err != nil {
			return err
		}
		return l.Consume(ctx, tx, r)
	}
}

func takesWithRowSQL(l *ratelimit.Limiter, r ratelimit.Request) func(context.Context, *sql.Tx) error {
	return func(ctx context.Context, tx *sql.Tx) error {
		if err := l.InSQL(tx).Consume(ctx, r); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO message (id) VALUES (1)`); err != nil {
			return err
		}
		if _, err := l.InSQL(tx).CheckRateLimit(ctx, r); err != nil {
			return err
		}
		return l.InSQL(tx).Consume(ctx, r)
	}
}

// For Citus a transaction that the limiter has begun requests two-phase commit once, before COMMIT,
// whatever Colocated says. In one that a limiter without Citus has begun, each call that writes
// requests it, and so it does in one of the caller's own, unless Colocated is set.
func TestWhereTwoPhaseCommitIsRequested(t *testing.T) {
	t.Parallel()
	pool := pgtest.Coordinator(t)
	rig.Exec(t, pool, `CREATE TABLE message (id int)`)
	r := ratelimit.MustDefine("k", ratelimit.TokenBucket{Rate: 100, Period: rig.Never}).For("k")
	for name, take := range takersWithRows {
		for _, colocated := range []bool{false, true} {
			want, own := 1, strings.HasPrefix(name, "a transaction")
			switch {
			case own && colocated:
				want = 0
			case own || strings.HasSuffix(name, "without Citus"): // with each of two takes
				want = 2
			}
			t.Run(fmt.Sprintf("%s, colocated %v", name, colocated), func(t *testing.T) {
				rig.Exec(t, pool, `TRUNCATE wrote`)
				l := rig.Limiter(t, ratelimit.Config{Citus: true, Colocated: colocated})
				if err := take(t, l, pool, r); err != nil {
					t.Fatal(err)
				}
				var n int
				const count = `SELECT count(*) FROM wrote WHERE what = 'request'`
				if err := pool.QueryRow(t.Context(), count).Scan(&n); err != nil {
					t.Fatal(err)
				}
				if n != want {
					t.Errorf("two-phase commit was requested %d times, want %d", n, want)
				}
			})
		}
	}
}

// If the COMMIT of a batch fails, nothing is taken, and the caller gets the error. A transaction that
// requests two-phase commit before COMMIT is no exception.
func TestABatchWhoseCommitFailsTakesNothing(t *testing.T) {
	t.Parallel()
	pool := pgtest.Coordinator(t)
	rig.Exec(t, pool, `CREATE TABLE sender (id int PRIMARY KEY)`)
	rig.Exec(t, pool, `CREATE TABLE message (sender int REFERENCES sender DEFERRABLE INITIALLY DEFERRED)`)
	limit := ratelimit.MustDefine("batches", ratelimit.TokenBucket{Rate: 10, Period: rig.Never})
	for _, citus := range []bool{false, true} {
		t.Run(fmt.Sprintf("Citus=%v", citus), func(t *testing.T) {
			l, r := rig.Limiter(t, ratelimit.Config{Citus: citus}), limit.For(fmt.Sprint(citus))
			called := false
			res, err := l.SendBatch(t.Context(), pool, func(b *pgx.Batch) error {
				b.Queue(`INSERT INTO message VALUES (1)`).Exec(func(pgconn.CommandTag) error {
					called = true
					return nil
				})
				return nil
			}, r)
			if rig.SQLState(err) != "23503" || res.OK || called || errors.Is(err, ratelimit.ErrOutcomeUnknown) {
				t.Errorf("granted %v, callback called %v, %v: want the error of the foreign key", res.OK, called, err)
			}
			wantValue(t, l, pool, r, 10)
		})
	}
}

// If the request for two-phase commit fails in a trip of its own, COMMIT was not sent. So the error
// is known: nothing was committed, and a conflict runs again. A request that was sent with COMMIT has
// an error that may be COMMIT's, as Citus says XX000 for a node that it lost then.
func TestARequestForTwoPhaseCommitThatFailsIsNoLostCommit(t *testing.T) {
	t.Parallel()
	pool := pgtest.Coordinator(t)
	rig.Exec(t, pool, `CREATE TABLE message (id int)`)
	rig.Exec(t, pool, `CREATE TABLE fault AS SELECT ''::text AS state`)
	rig.Exec(t, pool, `CREATE SEQUENCE request`)
	rig.Exec(t, pool, `CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF nextval('request') = 1 THEN RAISE 'the first request fails' USING ERRCODE = (SELECT state FROM fault); END IF;
		RETURN NULL; END $$`)
	rig.Exec(t, pool, `CREATE TRIGGER fail BEFORE DELETE ON weir_two_phase FOR EACH STATEMENT EXECUTE FUNCTION fail()`)
	limit := ratelimit.MustDefine("requested", ratelimit.TokenBucket{Rate: 100, Period: rig.Never})
	db := stdlib.OpenDBFromPool(pool)
	defer func() { _ = db.Close() }()
	l := rig.Limiter(t, ratelimit.Config{Citus: true})
	for name, run := range map[string]func(r ratelimit.Request, runs *int) error{
		"InTx": func(r ratelimit.Request, runs *int) error {
			return l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
				*runs++
				return takesWithRow(l, r)(ctx, tx)
			})
		},
		"InTx that BEGINs alone": func(r ratelimit.Request, runs *int) error {
			return l.InTx(t.Context(), tenantOf{pool}, func(ctx context.Context, tx pgx.Tx) error {
				*runs++
				return takesWithRow(l, r)(ctx, tx)
			})
		},
		"InSQLTx": func(r ratelimit.Request, runs *int) error {
			return l.InSQLTx(t.Context(), db, nil, func(ctx context.Context, tx *sql.Tx) error {
				*runs++
				return takesWithRowSQL(l, r)(ctx, tx)
			})
		},
	} {
		for state, wantRuns := range map[string]int{"XX000": 1, "57P01": 1, "23514": 1, "40001": 2} {
			t.Run(name+", "+state, func(t *testing.T) {
				rig.Exec(t, pool, `TRUNCATE message`)
				rig.Exec(t, pool, `UPDATE fault SET state = '`+state+`'`)
				rig.Exec(t, pool, `ALTER SEQUENCE request RESTART`)
				r, runs := limit.For(name+state), 0
				err := run(r, &runs)
				left, rows := 100.0, 0
				if wantRuns == 2 {
					left, rows = 98, 1
				}
				unknown := name == "InTx" && (state == "XX000" || state == "57P01")
				if (err == nil) != (rows == 1) || errors.Is(err, ratelimit.ErrOutcomeUnknown) != unknown {
					t.Errorf("got %v, want an outcome that is unknown: %v", err, unknown)
				}
				if err != nil && rig.SQLState(err) != state {
					t.Errorf("%v has lost its cause", err)
				}
				if runs != wantRuns {
					t.Errorf("it ran %d times, want %d", runs, wantRuns)
				}
				var n int
				if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM message`).Scan(&n); err != nil || n != rows {
					t.Errorf("%d rows (%v), want %d", n, err, rows)
				}
				wantValue(t, rig.Limiter(t, ratelimit.Config{}), pool, r, left)
			})
		}
	}
}
