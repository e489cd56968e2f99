package scheduler_test

import (
	"context"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

func TestMain(m *testing.M) { pgtest.Waiting(m, 24) }

type sendArgs struct {
	N int `json:"n"`
}

func (sendArgs) Kind() string { return "send" }

// payer has its jobs pay so, by their numbers.
func payer(p scheduler.Pays) int { return int(p) * 1_000_000 }

func (a sendArgs) Pays() scheduler.Pays { return scheduler.Pays(max(0, a.N) / 1_000_000) }

type laterArgs struct{}

func (laterArgs) Kind() string { return "later" }

func (laterArgs) InsertOpts() river.InsertOpts {
	return river.InsertOpts{ScheduledAt: time.Now().Add(1000 * time.Hour), Queue: "patient"}
}

type unknownArgs struct{}

func (unknownArgs) Kind() string { return "unknown" }

type worker struct {
	river.WorkerDefaults[sendArgs]
	worked chan int
}

func (w *worker) Work(_ context.Context, job *river.Job[sendArgs]) error {
	w.worked <- job.Args.N
	return nil
}

const never = 10_000 * time.Hour

type fixture struct {
	pool    *pgxpool.Pool
	limiter *ratelimit.Limiter
	client  *river.Client[pgx.Tx]
	jobs    *scheduler.Jobs
	worked  chan int
}

func setUp(t testing.TB, cfg scheduler.Config) *fixture {
	t.Helper()
	return setUpOn(t, pgtest.Pool(t), cfg)
}

func setUpOn(t testing.TB, pool *pgxpool.Pool, cfg scheduler.Config) *fixture {
	t.Helper()
	f := &fixture{pool: pool, worked: make(chan int, 100)}
	migrateRiver(t, f.pool)
	var err error
	workers := river.NewWorkers()
	river.AddWorker(workers, &worker{worked: f.worked})
	river.AddWorker(workers, river.WorkFunc(func(context.Context, *river.Job[laterArgs]) error { return nil }))
	f.client, err = river.NewClient(riverpgxv5.New(f.pool), &river.Config{
		Logger:  quiet(),
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 10}},
		Workers: workers,
		Schema:  f.pool.Config().ConnConfig.RuntimeParams["search_path"],
	})
	if err != nil {
		t.Fatal(err)
	}
	if f.limiter, err = ratelimit.New(ratelimit.Config{Citus: pgtest.Citus()}); err != nil {
		t.Fatal(err)
	}
	f.jobs = scheduler.New(f.limiter, cfg).Jobs(f.client)
	return f
}

// migrateRiver makes River's tables. On a Citus cluster tests do that one after the other: migrations
// that run side by side can end in a distributed deadlock.
func migrateRiver(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	migrate := func() error { // each version is a transaction: after a deadlock with others it goes on
		_, err := migrator.Migrate(t.Context(), rivermigrate.DirectionUp, nil)
		return err
	}
	if pgtest.Citus() {
		err = pgtest.Alone(t.Context(), pool, migrate)
	} else {
		err = migrate()
	}
	if err != nil {
		t.Fatal(err)
	}
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func (f *fixture) start(t *testing.T) {
	t.Helper()
	if err := f.client.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.client.StopAndCancel(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// insert enqueues in a transaction of its own.
func (f *fixture) insert(
	t *testing.T, args river.JobArgs, opts *river.InsertOpts, requests ...ratelimit.Request,
) *scheduler.Inserted {
	t.Helper()
	var in *scheduler.Inserted
	err := f.limiter.InTx(t.Context(), f.pool, func(ctx context.Context, tx pgx.Tx) (err error) {
		in, err = f.jobs.InsertTx(ctx, tx, args, opts, requests...)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return in
}

func (f *fixture) want(t *testing.T, r ratelimit.Request, tokens float64, jobs int) {
	t.Helper()
	s, err := f.limiter.Autocommit(f.pool).Value(t.Context(), r)
	if err != nil || s.Value < tokens-1e-9 || s.Value > tokens+0.01 {
		t.Errorf("%v tokens left (%v), want %v", s.Value, err, tokens)
	}
	var n int
	if err := f.pool.QueryRow(t.Context(), `SELECT count(*) FROM river_job`).Scan(&n); err != nil ||
		n != jobs && jobs >= 0 {
		t.Errorf("%d jobs (%v), want %d", n, err, jobs)
	}
}
