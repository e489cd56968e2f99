package citus

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/weir-go/weir/internal/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

var jobs = ratelimit.MustDefine("jobs", ratelimit.TokenBucket{Rate: 100, Period: 1000 * time.Hour})

// taker takes a token for a key and writes a job, as one transaction, which fails as it commits.
type taker func(ctx context.Context, l *ratelimit.Limiter, pool *pgxpool.Pool, key string,
	spoil func(exec execer) error) error

// execer sends a statement in the transaction.
type execer func(sql string, args ...any) error

var takers = map[string]taker{
	"InTx": func(ctx context.Context, l *ratelimit.Limiter, pool *pgxpool.Pool, key string,
		spoil func(execer) error) error {
		runs := 0
		return l.InTxOptions(ctx, pool, pgx.TxOptions{IsoLevel: pgx.Serializable},
			func(ctx context.Context, tx pgx.Tx) error {
				if runs++; runs > 1 {
					return errRunAgain
				}
				if err := l.Consume(ctx, tx, jobs.For(key)); err != nil {
					return err
				}
				return spoil(func(sql string, args ...any) error {
					_, err := tx.Exec(ctx, sql, args...)
					return err
				})
			})
	},
	"a transaction of pgx": func(ctx context.Context, l *ratelimit.Limiter, pool *pgxpool.Pool,
		key string, spoil func(execer) error) error {
		return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.Serializable}, func(tx pgx.Tx) error {
			if err := l.Consume(ctx, tx, jobs.For(key)); err != nil {
				return err
			}
			return spoil(func(sql string, args ...any) error {
				_, err := tx.Exec(ctx, sql, args...)
				return err
			})
		})
	},
	"a transaction of database/sql": func(ctx context.Context, l *ratelimit.Limiter,
		pool *pgxpool.Pool, key string, spoil func(execer) error) error {
		db := stdlib.OpenDBFromPool(pool)
		defer func() { _ = db.Close() }()
		tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelSerializable})
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		if err := l.InSQL(tx).Consume(ctx, jobs.For(key)); err != nil {
			return err
		}
		err = spoil(func(sql string, args ...any) error {
			_, err := tx.ExecContext(ctx, sql, args...)
			return err
		})
		if err != nil {
			return err
		}
		return tx.Commit()
	},
}

var errRunAgain = errors.New("it runs again")

// A transaction that reads what another one writes, and the other way round, fails at SERIALIZABLE
// as it commits: the coordinator finds that out after it has had the workers commit. Without
// two-phase commit the tokens are gone then, and the job is not there.
func TestTokensAndTheCoordinatorsRowsAreOneTransaction(t *testing.T) {
	cluster(t)
	t.Parallel()
	for name, take := range takers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, citus := range []bool{true, false} {
				pool := pgtest.Pool(t)
				exec(t, pool, `CREATE TABLE job (id int PRIMARY KEY)`, `CREATE TABLE other (id int PRIMARY KEY)`)
				l := limiter(t, ratelimit.Config{Citus: citus, Portable: true, MaxAttempts: 2})
				err := take(t.Context(), l, pool, "k", func(exec execer) error {
					if err := exec(`SELECT count(*) FROM other`); err != nil {
						return err
					}
					if err := exec(`INSERT INTO job VALUES (1)`); err != nil {
						return err
					}
					return pgx.BeginTxFunc(t.Context(), pool,
						pgx.TxOptions{IsoLevel: pgx.Serializable}, func(tx pgx.Tx) error {
							if _, err := tx.Exec(t.Context(), `SELECT count(*) FROM job`); err != nil {
								return err
							}
							_, err := tx.Exec(t.Context(), `INSERT INTO other VALUES (1)`)
							return err
						})
				})
				var e *pgconn.PgError
				if !errors.Is(err, errRunAgain) && (!errors.As(err, &e) || e.Code != "40001") {
					t.Fatalf("citus %v: got %v, want a failure to serialize", citus, err)
				}
				if n := scan[int](t, pool, `SELECT count(*) FROM job`); n != 0 {
					t.Fatalf("citus %v: %d jobs", citus, n)
				}
				taken := scan[int](t, pool, `SELECT count(*) FROM weir_balance WHERE name = 'jobs' AND value < 100`)
				if want := map[bool]int{true: 0, false: 1}[citus]; taken != want {
					t.Errorf("citus %v: tokens of %d keys are gone with the job, want %d", citus, taken, want)
				}
			}
		})
	}
}
