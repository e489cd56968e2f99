package citus

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/weir-go/weir/internal/test/pgtest"
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
	"InTx of a limiter without Citus": func(ctx context.Context, l *ratelimit.Limiter,
		pool *pgxpool.Pool, key string, spoil func(execer) error) error {
		other, err := ratelimit.New(ratelimit.Config{MaxAttempts: 1})
		if err != nil {
			return err
		}
		return other.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
			if err := l.Consume(ctx, tx, jobs.For(key)); err != nil {
				return err
			}
			return spoil(func(sql string, args ...any) error {
				_, err := tx.Exec(ctx, sql, args...)
				return err
			})
		})
	},
	"InSQLTx": func(ctx context.Context, l *ratelimit.Limiter, pool *pgxpool.Pool, key string,
		spoil func(execer) error) error {
		db := stdlib.OpenDBFromPool(pool)
		defer func() { _ = db.Close() }()
		runs, opts := 0, &sql.TxOptions{Isolation: sql.LevelSerializable}
		return l.InSQLTx(ctx, db, opts, func(ctx context.Context, tx *sql.Tx) error {
			if runs++; runs > 1 {
				return errRunAgain
			}
			if err := l.InSQL(tx).Consume(ctx, jobs.For(key)); err != nil {
				return err
			}
			return spoil(func(sql string, args ...any) error {
				_, err := tx.ExecContext(ctx, sql, args...)
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

// configs are those with which tokens and jobs are kept together, and one with which they are not.
// Colocated is about transactions of the caller's own.
func configs(taker string) []ratelimit.Config {
	all := []ratelimit.Config{{Citus: true}, {}}
	if strings.HasPrefix(taker, "In") {
		all = append(all, ratelimit.Config{Citus: true, Colocated: true})
	}
	return all
}

// A transaction that reads what another one writes, and the other way round, fails at SERIALIZABLE
// as it commits: the coordinator finds that out after it has had the workers commit. Without
// two-phase commit the tokens are gone then, and the job is not there.
func TestTokensAndTheCoordinatorsRowsAreOneTransaction(t *testing.T) {
	cluster(t)
	t.Parallel()
	for name, take := range takers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, cfg := range configs(name) {
				cfg.Portable, cfg.MaxAttempts = true, 2
				pool := pgtest.Pool(t)
				exec(t, pool, `CREATE TABLE job (id int PRIMARY KEY)`, `CREATE TABLE other (id int PRIMARY KEY)`)
				l := limiter(t, cfg)
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
					t.Fatalf("%+v: got %v, want a failure to serialize", cfg, err)
				}
				if n := scan[int](t, pool, `SELECT count(*) FROM job`); n != 0 {
					t.Fatalf("%+v: %d jobs", cfg, n)
				}
				taken := scan[int](t, pool, `SELECT count(*) FROM weir_balance WHERE name = 'jobs' AND value < 100`)
				if want := map[bool]int{true: 0, false: 1}[cfg.Citus]; taken != want {
					t.Errorf("%+v: tokens of %d keys are gone with the job, want %d", cfg, taken, want)
				}
			}
		})
	}
}

// Without rows of the coordinator the node with the tokens commits alone: nothing is prepared.
func TestTokensAloneAreNotPrepared(t *testing.T) {
	cluster(t)
	t.Parallel()
	l := limiter(t, ratelimit.Config{Citus: true})
	takes := map[string]func(pool *pgxpool.Pool, rows string) error{
		"InTx": func(pool *pgxpool.Pool, rows string) error {
			return l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
				if err := l.Consume(ctx, tx, jobs.For("k")); err != nil {
					return err
				}
				_, err := tx.Exec(ctx, rows)
				return err
			})
		},
		"InSQLTx": func(pool *pgxpool.Pool, rows string) error {
			db := stdlib.OpenDBFromPool(pool)
			defer func() { _ = db.Close() }()
			return l.InSQLTx(t.Context(), db, nil, func(ctx context.Context, tx *sql.Tx) error {
				if err := l.InSQL(tx).Consume(ctx, jobs.For("k")); err != nil {
					return err
				}
				_, err := tx.ExecContext(ctx, rows)
				return err
			})
		},
	}
	for name, take := range takes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 1 })
			exec(t, pool, `CREATE TABLE job (id serial PRIMARY KEY)`)
			prepared := func(rows string) (ids map[string]bool) {
				if err := take(pool, rows); err != nil {
					t.Fatal(err)
				}
				// Those of this backend, until they are forgotten: once a minute.
				found, err := pool.Query(t.Context(), `SELECT gid FROM pg_dist_transaction WHERE gid LIKE 'citus\_%\_' || pg_backend_pid() || '\_%'`)
				if err != nil {
					t.Fatal(err)
				}
				names, err := pgx.CollectRows(found, pgx.RowTo[string])
				if err != nil {
					t.Fatal(err)
				}
				ids = map[string]bool{}
				for _, id := range names {
					ids[id] = true
				}
				return ids
			}
			before := prepared(`SELECT 1`)
			for id := range prepared(`SELECT 2`) {
				if !before[id] {
					t.Errorf("tokens alone were prepared: %s", id)
				}
			}
			for tries := 1; ; tries++ {
				some := false
				for id := range prepared(`INSERT INTO job DEFAULT VALUES`) {
					some = some || !before[id]
				}
				if some {
					return
				}
				if tries == 10 { // a record may have been forgotten before it was seen
					t.Fatal("tokens with a row of the coordinator were not prepared")
				}
			}
		})
	}
}
