package integration

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

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

// verbs are the operations as one way of calling them offers them, each in a transaction of its
// own.
type verbs interface {
	RateLimit(ctx context.Context, requests ...ratelimit.Request) (ratelimit.Result, error)
	CheckRateLimit(ctx context.Context, requests ...ratelimit.Request) (ratelimit.Result, error)
	ResetRateLimit(ctx context.Context, requests ...ratelimit.Request) error
	GiveBack(ctx context.Context, res ratelimit.Result) error
	Value(ctx context.Context, request ratelimit.Request) (ratelimit.State, error)
	Pause(ctx context.Context, d time.Duration, requests ...ratelimit.Request) error
	Resume(ctx context.Context, requests ...ratelimit.Request) error
	Settle(ctx context.Context, r ratelimit.Reservation, used ...ratelimit.Request) (bool, error)
	Release(ctx context.Context, r ratelimit.Reservation) (bool, error)
}

// way is one way of calling the library. Whatever holds for one must hold for all.
type way struct {
	name     string
	portable bool
	verbs    func(t testing.TB, l *ratelimit.Limiter, pool *pgxpool.Pool) verbs
}

var ways = []way{
	{"ReadCommitted", false, inTx(pgx.ReadCommitted)},
	{"RepeatableRead", false, inTx(pgx.RepeatableRead)},
	{"Serializable", false, inTx(pgx.Serializable)},
	{"Portable", true, inTx(pgx.Serializable)},
	{"SendBatch", false, func(_ testing.TB, l *ratelimit.Limiter, pool *pgxpool.Pool) verbs {
		return batchVerbs{txVerbs{l, pool, pgx.Serializable}}
	}},
	{"Autocommit", false, func(_ testing.TB, l *ratelimit.Limiter, pool *pgxpool.Pool) verbs { return l.Autocommit(pool) }},
	{"Coalesced", false, func(t testing.TB, l *ratelimit.Limiter, pool *pgxpool.Pool) verbs { return coalesce(t, l, pool) }},
	{"DatabaseSQL", false, databaseSQL(false)},
	{"InSQLTx", false, databaseSQL(true)},
}

func databaseSQL(reruns bool) func(testing.TB, *ratelimit.Limiter, *pgxpool.Pool) verbs {
	return func(t testing.TB, l *ratelimit.Limiter, pool *pgxpool.Pool) verbs {
		db := stdlib.OpenDBFromPool(pool)
		t.Cleanup(func() { _ = db.Close() })
		return sqlVerbs{l, db, reruns}
	}
}

func coalesce(t testing.TB, l *ratelimit.Limiter, pool *pgxpool.Pool) *ratelimit.Coalesced {
	c := l.Coalesce(pool)
	if t != nil {
		t.Cleanup(c.Close)
	}
	return c
}

var levels = []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}

// eachWay runs the test once for each way, on a fresh schema.
func eachWay(t *testing.T, test func(t *testing.T, v verbs, pool *pgxpool.Pool)) {
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t)
			test(t, w.verbs(t, limiter(t, ratelimit.Config{Portable: w.portable}), pool), pool)
		})
	}
}

func limiter(t testing.TB, cfg ratelimit.Config) *ratelimit.Limiter {
	t.Helper()
	cfg.Citus = cfg.Citus || pgtest.Citus()
	l, err := ratelimit.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

type txVerbs struct {
	l     *ratelimit.Limiter
	pool  *pgxpool.Pool
	level pgx.TxIsoLevel
}

func inTx(level pgx.TxIsoLevel) func(testing.TB, *ratelimit.Limiter, *pgxpool.Pool) verbs {
	return func(_ testing.TB, l *ratelimit.Limiter, pool *pgxpool.Pool) verbs { return txVerbs{l, pool, level} }
}

func (v txVerbs) do(ctx context.Context, fn func(context.Context, pgx.Tx) error) error {
	return v.l.InTxOptions(ctx, v.pool, pgx.TxOptions{IsoLevel: v.level}, fn)
}

func (v txVerbs) RateLimit(ctx context.Context, requests ...ratelimit.Request) (res ratelimit.Result, err error) {
	err = v.do(ctx, func(ctx context.Context, tx pgx.Tx) error {
		res, err = v.l.RateLimit(ctx, tx, requests...)
		return err
	})
	return res, err
}

func (v txVerbs) CheckRateLimit(ctx context.Context, requests ...ratelimit.Request) (res ratelimit.Result, err error) {
	err = v.do(ctx, func(ctx context.Context, tx pgx.Tx) error {
		res, err = v.l.CheckRateLimit(ctx, tx, requests...)
		return err
	})
	return res, err
}

func (v txVerbs) ResetRateLimit(ctx context.Context, requests ...ratelimit.Request) error {
	return v.do(ctx, func(ctx context.Context, tx pgx.Tx) error { return v.l.ResetRateLimit(ctx, tx, requests...) })
}

func (v txVerbs) GiveBack(ctx context.Context, res ratelimit.Result) error {
	return v.do(ctx, func(ctx context.Context, tx pgx.Tx) error { return v.l.GiveBack(ctx, tx, res) })
}

func (v txVerbs) Value(ctx context.Context, request ratelimit.Request) (s ratelimit.State, err error) {
	err = v.do(ctx, func(ctx context.Context, tx pgx.Tx) error {
		s, err = v.l.Value(ctx, tx, request)
		return err
	})
	return s, err
}

func (v txVerbs) Pause(ctx context.Context, d time.Duration, requests ...ratelimit.Request) error {
	return v.do(ctx, func(ctx context.Context, tx pgx.Tx) error { return v.l.Pause(ctx, tx, d, requests...) })
}

func (v txVerbs) Resume(ctx context.Context, requests ...ratelimit.Request) error {
	return v.do(ctx, func(ctx context.Context, tx pgx.Tx) error { return v.l.Resume(ctx, tx, requests...) })
}

func (v txVerbs) Settle(
	ctx context.Context, r ratelimit.Reservation, used ...ratelimit.Request,
) (settled bool, err error) {
	err = v.do(ctx, func(ctx context.Context, tx pgx.Tx) error {
		settled, err = v.l.Settle(ctx, tx, r, used...)
		return err
	})
	return settled, err
}

func (v txVerbs) Release(ctx context.Context, r ratelimit.Reservation) (released bool, err error) {
	err = v.do(ctx, func(ctx context.Context, tx pgx.Tx) error {
		released, err = v.l.Release(ctx, tx, r)
		return err
	})
	return released, err
}

func (v txVerbs) Renew(ctx context.Context, reservations ...*ratelimit.Reservation) error {
	return v.do(ctx, func(ctx context.Context, tx pgx.Tx) error { return v.l.Renew(ctx, tx, reservations...) })
}

// batchVerbs are those of txVerbs, except that RateLimit goes out together with a statement of the
// caller's.
type batchVerbs struct{ txVerbs }

func (v batchVerbs) RateLimit(ctx context.Context, requests ...ratelimit.Request) (ratelimit.Result, error) {
	return v.l.SendBatch(ctx, v.pool, func(b *pgx.Batch) error {
		b.Queue(`SELECT 1`)
		return nil
	}, requests...)
}

type sqlVerbs struct {
	l      *ratelimit.Limiter
	db     *sql.DB
	reruns bool // by InSQLTx
}

func (v sqlVerbs) do(ctx context.Context, fn func(context.Context, *sql.Tx) error) error {
	if v.reruns {
		return v.l.InSQLTx(ctx, v.db, nil, fn)
	}
	err := v.once(ctx, fn)
	var deadlock *pgconn.PgError
	for pgtest.Citus() && errors.As(err, &deadlock) && deadlock.Code == "40P01" {
		err = v.once(ctx, fn) // Citus has rolled it back to end a deadlock: its caller runs it again
	}
	return err
}

func (v sqlVerbs) once(ctx context.Context, fn func(context.Context, *sql.Tx) error) error {
	tx, err := v.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	if err := fn(ctx, tx); err != nil {
		_ = tx.Rollback()
		return err
	}
	return tx.Commit()
}

func (v sqlVerbs) RateLimit(ctx context.Context, requests ...ratelimit.Request) (res ratelimit.Result, err error) {
	err = v.do(ctx, func(ctx context.Context, tx *sql.Tx) error {
		res, err = v.l.InSQL(tx).RateLimit(ctx, requests...)
		return err
	})
	return res, err
}

func (v sqlVerbs) CheckRateLimit(ctx context.Context, requests ...ratelimit.Request) (res ratelimit.Result, err error) {
	err = v.do(ctx, func(ctx context.Context, tx *sql.Tx) error {
		res, err = v.l.InSQL(tx).CheckRateLimit(ctx, requests...)
		return err
	})
	return res, err
}

func (v sqlVerbs) ResetRateLimit(ctx context.Context, requests ...ratelimit.Request) error {
	return v.do(ctx, func(ctx context.Context, tx *sql.Tx) error {
		return v.l.InSQL(tx).ResetRateLimit(ctx, requests...)
	})
}

func (v sqlVerbs) GiveBack(ctx context.Context, res ratelimit.Result) error {
	return v.do(ctx, func(ctx context.Context, tx *sql.Tx) error { return v.l.InSQL(tx).GiveBack(ctx, res) })
}

func (v sqlVerbs) Value(ctx context.Context, request ratelimit.Request) (s ratelimit.State, err error) {
	err = v.do(ctx, func(ctx context.Context, tx *sql.Tx) error {
		s, err = v.l.InSQL(tx).Value(ctx, request)
		return err
	})
	return s, err
}

func (v sqlVerbs) Pause(ctx context.Context, d time.Duration, requests ...ratelimit.Request) error {
	return v.do(ctx, func(ctx context.Context, tx *sql.Tx) error { return v.l.InSQL(tx).Pause(ctx, d, requests...) })
}

func (v sqlVerbs) Resume(ctx context.Context, requests ...ratelimit.Request) error {
	return v.do(ctx, func(ctx context.Context, tx *sql.Tx) error { return v.l.InSQL(tx).Resume(ctx, requests...) })
}

func (v sqlVerbs) Settle(
	ctx context.Context, r ratelimit.Reservation, used ...ratelimit.Request,
) (settled bool, err error) {
	err = v.do(ctx, func(ctx context.Context, tx *sql.Tx) error {
		settled, err = v.l.InSQL(tx).Settle(ctx, r, used...)
		return err
	})
	return settled, err
}

func (v sqlVerbs) Release(ctx context.Context, r ratelimit.Reservation) (released bool, err error) {
	err = v.do(ctx, func(ctx context.Context, tx *sql.Tx) error {
		released, err = v.l.InSQL(tx).Release(ctx, r)
		return err
	})
	return released, err
}
