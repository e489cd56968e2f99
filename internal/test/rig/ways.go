package rig

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

// Verbs are the operations as one way of calling them offers them, each in a transaction of its
// own.
type Verbs = ratelimit.Verbs

// Way is one way of calling the library. Whatever holds for one must hold for all.
type Way struct {
	Name     string
	Portable bool // with the statements for engines other than Postgres
	Verbs    func(t testing.TB, l *ratelimit.Limiter, pool *pgxpool.Pool) Verbs
}

// Ways are all of them.
var Ways = []Way{
	{"ReadCommitted", false, inTx(pgx.ReadCommitted)},
	{"RepeatableRead", false, inTx(pgx.RepeatableRead)},
	{"Serializable", false, inTx(pgx.Serializable)},
	{"Portable", true, inTx(pgx.Serializable)},
	{"SendBatch", false, sendBatch(pgx.Serializable)},
	{"Autocommit", false, func(_ testing.TB, l *ratelimit.Limiter, pool *pgxpool.Pool) Verbs {
		return l.Autocommit(pool)
	}},
	{"Coalesced", false, func(t testing.TB, l *ratelimit.Limiter, pool *pgxpool.Pool) Verbs {
		return Coalesce(t, l, pool)
	}},
	{"DatabaseSQL", false, databaseSQL(false)},
	{"InSQLTx", false, databaseSQL(true)},
}

// Levels are the isolation levels.
var Levels = []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}

// Crowded are the ways for tests in which many callers take from the same keys and get no error. On
// Citus they are below SERIALIZABLE: at that level a worker may fail a COMMIT because of a conflict,
// and the coordinator does not say whether it took effect.
func Crowded() (ways []Way) {
	for _, w := range Ways {
		switch {
		case !pgtest.Citus():
		case w.Name == "Serializable", w.Name == "Portable":
			continue
		case w.Name == "SendBatch":
			w.Verbs = sendBatch(pgx.ReadCommitted)
		}
		ways = append(ways, w)
	}
	return ways
}

// CrowdedLevels are the isolation levels for such callers.
func CrowdedLevels() []pgx.TxIsoLevel {
	if pgtest.Citus() {
		return Levels[:2]
	}
	return Levels
}

// EachWay runs the test once for each way, on a fresh schema.
func EachWay(t *testing.T, test func(t *testing.T, v Verbs, pool *pgxpool.Pool)) {
	each(t, Ways, test)
}

// EachCrowded is EachWay for those that are Crowded.
func EachCrowded(t *testing.T, test func(t *testing.T, v Verbs, pool *pgxpool.Pool)) {
	each(t, Crowded(), test)
}

func each(t *testing.T, ways []Way, test func(t *testing.T, v Verbs, pool *pgxpool.Pool)) {
	for _, w := range ways {
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t)
			test(t, w.Verbs(t, Limiter(t, ratelimit.Config{Portable: w.Portable}), pool), pool)
		})
	}
}

// ManyAttempts is Config.MaxAttempts on Citus. Callers of one row do not queue there, so one of them
// may lose more often than the default allows.
const ManyAttempts = 10_000

// Limiter makes a limiter, for Citus if the tests run on it.
func Limiter(t testing.TB, cfg ratelimit.Config) *ratelimit.Limiter {
	t.Helper()
	if pgtest.Citus() {
		cfg.Citus, cfg.MaxAttempts = true, cmp.Or(cfg.MaxAttempts, ManyAttempts)
	}
	l, err := ratelimit.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Coalesce makes coalesced verbs, which are closed when the test ends.
func Coalesce(t testing.TB, l *ratelimit.Limiter, pool *pgxpool.Pool) *ratelimit.Coalesced {
	c := l.Coalesce(pool)
	if t != nil {
		t.Cleanup(c.Close)
	}
	return c
}

// TxVerbs are those of InTx.
type TxVerbs struct {
	owned
	Limiter *ratelimit.Limiter
	pool    *pgxpool.Pool
	level   pgx.TxIsoLevel
}

// Tx returns the verbs of InTx at an isolation level.
func Tx(l *ratelimit.Limiter, pool *pgxpool.Pool, level pgx.TxIsoLevel) TxVerbs {
	v := TxVerbs{nil, l, pool, level}
	v.owned = func(ctx context.Context, fn func(context.Context, Verbs) error) error {
		return v.Do(ctx, func(ctx context.Context, tx pgx.Tx) error { return fn(ctx, l.In(tx)) })
	}
	return v
}

func inTx(level pgx.TxIsoLevel) func(testing.TB, *ratelimit.Limiter, *pgxpool.Pool) Verbs {
	return func(_ testing.TB, l *ratelimit.Limiter, pool *pgxpool.Pool) Verbs { return Tx(l, pool, level) }
}

// Do runs fn in a transaction.
func (v TxVerbs) Do(ctx context.Context, fn func(context.Context, pgx.Tx) error) error {
	return v.Limiter.InTxOptions(ctx, v.pool, pgx.TxOptions{IsoLevel: v.level}, fn)
}

// Renew is Limiter.Renew.
func (v TxVerbs) Renew(ctx context.Context, reservations ...*ratelimit.Reservation) error {
	return v.Do(ctx, func(ctx context.Context, tx pgx.Tx) error { return v.Limiter.Renew(ctx, tx, reservations...) })
}

// batchVerbs are TxVerbs, except that RateLimit goes out together with a statement of the caller's.
type batchVerbs struct {
	TxVerbs
	l    *ratelimit.Limiter
	pool *pgxpool.Pool
}

// sendBatch has all other verbs at an isolation level.
func sendBatch(level pgx.TxIsoLevel) func(testing.TB, *ratelimit.Limiter, *pgxpool.Pool) Verbs {
	return func(_ testing.TB, l *ratelimit.Limiter, pool *pgxpool.Pool) Verbs {
		return batchVerbs{Tx(l, pool, level), l, pool}
	}
}

func (v batchVerbs) RateLimit(ctx context.Context, requests ...ratelimit.Request) (ratelimit.Result, error) {
	return v.l.SendBatch(ctx, v.pool, func(b *pgx.Batch) error {
		b.Queue(`SELECT 1`)
		return nil
	}, requests...)
}

// SQLVerbs are those of database/sql.
type SQLVerbs struct {
	owned
	l      *ratelimit.Limiter
	db     *sql.DB
	reruns bool
}

// SQL returns the verbs of database/sql: those of InSQLTx, or with reruns false those in a
// transaction at READ COMMITTED that the caller begins.
func SQL(l *ratelimit.Limiter, db *sql.DB, reruns bool) SQLVerbs {
	v := SQLVerbs{nil, l, db, reruns}
	v.owned = func(ctx context.Context, fn func(context.Context, Verbs) error) error {
		return v.Do(ctx, func(ctx context.Context, tx *sql.Tx) error { return fn(ctx, l.InSQL(tx)) })
	}
	return v
}

func databaseSQL(reruns bool) func(testing.TB, *ratelimit.Limiter, *pgxpool.Pool) Verbs {
	return func(t testing.TB, l *ratelimit.Limiter, pool *pgxpool.Pool) Verbs {
		db := stdlib.OpenDBFromPool(pool)
		t.Cleanup(func() { _ = db.Close() })
		return SQL(l, db, reruns)
	}
}

// Do runs fn in a transaction.
func (v SQLVerbs) Do(ctx context.Context, fn func(context.Context, *sql.Tx) error) error {
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

func (v SQLVerbs) once(ctx context.Context, fn func(context.Context, *sql.Tx) error) error {
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
