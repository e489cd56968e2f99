package databasesql

import (
	"context"
	"database/sql"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverdatabasesql"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const never = 10_000 * time.Hour

type sendArgs struct {
	N int `json:"n" river:"unique"`
}

func (sendArgs) Kind() string { return "send" }

// fixture is a database with Weir's tables and River's, and a client over database/sql that
// inserts.
type fixture struct {
	pool    *pgxpool.Pool
	db      *sql.DB
	limiter *ratelimit.Limiter
	sched   *scheduler.Scheduler
	jobs    *scheduler.SQLJobs
}

func setUp(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{pool: pgtest.Pool(t)}
	f.db = stdlib.OpenDBFromPool(f.pool)
	t.Cleanup(func() { _ = f.db.Close() })
	migrator, err := rivermigrate.New(riverpgxv5.New(f.pool), &rivermigrate.Config{Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	if err := pgtest.Alone(t.Context(), f.pool, func() error { // each version is a transaction: it goes on after it
		_, err := migrator.Migrate(t.Context(), rivermigrate.DirectionUp, nil)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if f.limiter, err = ratelimit.New(ratelimit.Config{Citus: pgtest.Citus()}); err != nil {
		t.Fatal(err)
	}
	f.sched = scheduler.New(f.limiter, scheduler.Config{})
	client, err := river.NewClient(riverdatabasesql.New(f.db), f.sched.Configure(f.pool, f.config(nil)))
	if err != nil {
		t.Fatal(err)
	}
	f.jobs = f.sched.SQLJobs(client)
	return f
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// config is that of a client which works if it has workers.
func (f *fixture) config(workers *river.Workers) *river.Config {
	return &river.Config{
		Logger:  quiet(),
		Schema:  f.pool.Config().ConnConfig.RuntimeParams["search_path"],
		Workers: workers,
	}
}

// insert inserts a job in a transaction of its own, which ends with an error if end is one.
func (f *fixture) insert(
	t *testing.T, n int, opts *river.InsertOpts, end error, requests ...ratelimit.Request,
) (*scheduler.Inserted, error) {
	t.Helper()
	var in *scheduler.Inserted
	err := f.limiter.InSQLTx(t.Context(), f.db, nil, func(ctx context.Context, tx *sql.Tx) (err error) {
		if in, err = f.jobs.InsertTx(ctx, tx, sendArgs{n}, opts, requests...); err != nil {
			return err
		}
		return end
	})
	return in, err
}

// want fails the test unless so many tokens and jobs are there.
func (f *fixture) want(t *testing.T, r ratelimit.Request, tokens float64, jobs int) {
	t.Helper()
	s, err := f.limiter.Autocommit(f.pool).Value(t.Context(), r)
	if err != nil || s.Value < tokens-1e-9 || s.Value > tokens+0.01 {
		t.Errorf("%v tokens left (%v), want %v", s.Value, err, tokens)
	}
	var n int
	if err := f.pool.QueryRow(t.Context(), `SELECT count(*) FROM river_job`).Scan(&n); err != nil || n != jobs {
		t.Errorf("%d jobs (%v), want %d", n, err, jobs)
	}
}
