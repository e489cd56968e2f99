package databasesql

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverdatabasesql"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// Every request may wait. A denial is an error, inserts nothing and takes nothing.
func TestReserveTxOfDatabaseSQL(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	k := ratelimit.MustDefine("reserved",
		ratelimit.TokenBucket{Rate: 10, Period: never, MaxReserved: ratelimit.Tokens(5)}).For("k")
	reserve := func(n int, requests ...ratelimit.Request) (in *scheduler.Inserted, err error) {
		err = f.limiter.InSQLTx(t.Context(), f.db, nil, func(ctx context.Context, tx *sql.Tx) error {
			in, err = f.jobs.ReserveTx(ctx, tx, sendArgs{n}, nil, requests...)
			return err
		})
		return in, err
	}
	if in, err := reserve(1, k.Count(8)); err != nil || !in.RunAt.IsZero() ||
		in.Job.Job.State != rivertype.JobStateAvailable {
		t.Fatalf("got %+v and %v, want a job that can start", in, err)
	}
	if in, err := reserve(2, k.Count(6)); err != nil || in.RunAt.IsZero() ||
		in.Job.Job.State != rivertype.JobStateScheduled {
		t.Fatalf("got %+v and %v, want a job for when its tokens exist", in, err)
	}
	in, err := reserve(3, k.Count(6))
	var denied *ratelimit.DeniedError
	if !errors.As(err, &denied) || denied.MaxReserved != 5 || in.OK || in.Job != nil {
		t.Errorf("got %+v and %v, want a denial", in, err)
	}
	if _, err := reserve(4); !errors.Is(err, ratelimit.ErrInvalid) {
		t.Errorf("without requests: %v", err)
	}
	f.want(t, k, -4, 2)
}

// worker is the function of a worker, and the configuration of a client that runs it.
func (f *fixture) worker(do func(context.Context, *river.Job[sendArgs]) error) *river.Config {
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(do))
	cfg := f.config(workers)
	cfg.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 10}}
	cfg.FetchPollInterval = 100 * time.Millisecond
	cfg.RetryPolicy = atOnce{}
	return cfg
}

type atOnce struct{}

func (atOnce) NextRetry(*rivertype.JobRow) time.Time { return time.Now() }

// workSQL works jobs with a client over database/sql until the test ends.
func (f *fixture) workSQL(t *testing.T, sched *scheduler.Scheduler, cfg *river.Config) {
	t.Helper()
	client, err := river.NewClient(riverdatabasesql.New(f.db), sched.Configure(f.pool, cfg))
	if err != nil {
		t.Fatal(err)
	}
	work(t, client)
}

// workPgx is workSQL with a client over pgx.
func (f *fixture) workPgx(t *testing.T, sched *scheduler.Scheduler, cfg *river.Config) {
	t.Helper()
	client, err := river.NewClient(riverpgxv5.New(f.pool), sched.Configure(f.pool, cfg))
	if err != nil {
		t.Fatal(err)
	}
	work(t, client)
}

// wantState waits until the job has the state.
func (f *fixture) wantState(t *testing.T, id int64, want rivertype.JobState) (attempt int) {
	t.Helper()
	var got rivertype.JobState
	for deadline := time.Now().Add(time.Minute); got != want; time.Sleep(10 * time.Millisecond) {
		if err := f.pool.QueryRow(t.Context(), `SELECT state, attempt FROM river_job WHERE id = $1`,
			id).Scan(&got, &attempt); err != nil {
			t.Fatal(err)
		}
		if got != want && time.Now().After(deadline) {
			t.Fatalf("the job is %s after a minute, want %s", got, want)
		}
	}
	return attempt
}

// inTx runs do in a transaction.
func inTx(ctx context.Context, db *sql.DB, do func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := do(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// The completion and the settlement commit together: an attempt that rolls back has done neither
// and stays charged, and the next attempt does both.
func TestCompleteSQLTxCompletesAndSettles(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	k := ratelimit.MustDefine("completed", ratelimit.TokenBucket{Rate: 1000, Period: never}).For("k")
	undo := errors.New("undo")
	f.workSQL(t, f.sched, f.worker(func(ctx context.Context, job *river.Job[sendArgs]) error {
		return inTx(ctx, f.db, func(tx *sql.Tx) error {
			if err := f.sched.CompleteSQLTx(ctx, tx, job.JobRow, k.CountInt(30)); err != nil {
				return err
			}
			if job.Attempt == 1 {
				return undo
			}
			return nil
		})
	}))
	in, err := f.insert(t, 1, nil, nil, k.Count(100))
	if err != nil || in.Err() != nil {
		t.Fatalf("got %+v and %v", in, err)
	}
	if n := f.wantState(t, in.Job.Job.ID, rivertype.JobStateCompleted); n != 2 {
		t.Errorf("completed by attempt %d, want 2", n)
	}
	f.want(t, k, 1000-100-30, 1)
}

// The tenant of a queued job is charged for what the job has used, and no longer for the estimate.
func TestCompleteSQLTxChargesTheTenant(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	limit := ratelimit.MustDefine("line",
		ratelimit.TokenBucket{Rate: 1000, Period: time.Hour, MaxReserved: ratelimit.Tokens(100)})
	sched := scheduler.New(f.limiter, scheduler.Config{Lines: []scheduler.Line{{Limit: limit}}})
	corrections := make(chan float64, 1)
	f.workSQL(t, sched, f.worker(func(ctx context.Context, job *river.Job[sendArgs]) error {
		return inTx(ctx, f.db, func(tx *sql.Tx) error {
			if err := sched.CompleteSQLTx(ctx, tx, job.JobRow, limit.Global().Count(30)); err != nil {
				return err
			}
			var cost float64
			row := tx.QueryRowContext(ctx, `SELECT cost FROM weir_turn WHERE job = $1 AND tenant = 'ann'`, job.ID)
			if err := row.Scan(&cost); err != nil {
				return err
			}
			corrections <- cost
			return nil
		})
	}))
	queues, err := river.NewClient(riverpgxv5.New(f.pool), sched.Configure(f.pool, f.config(nil)))
	if err != nil {
		t.Fatal(err)
	}
	var id int64
	err = pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error {
		job, err := sched.Jobs(queues).QueueTx(t.Context(), tx, sendArgs{1}, nil,
			scheduler.Tenant{Key: "ann"}, limit.Global().Count(100))
		if err == nil {
			id = job.Job.ID
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	f.wantState(t, id, rivertype.JobStateCompleted)
	if got := <-corrections; got != 30-100 {
		t.Errorf("the tenant's charge is corrected by %v, want %v", got, 30-100)
	}
}

// Outside of a worker nothing is completed or settled, and neither is it in a worker whose River
// client has the other driver. The error then names the method that fits.
func TestCompleteTxNeedsAWorkerOfItsDriver(t *testing.T) {
	t.Parallel()
	k := ratelimit.MustDefine("other driver", ratelimit.TokenBucket{Rate: 1000, Period: never}).For("k")
	type complete func(context.Context, *fixture, *rivertype.JobRow) error
	bySQL := func(ctx context.Context, f *fixture, job *rivertype.JobRow) error {
		return inTx(ctx, f.db, func(tx *sql.Tx) error { return f.sched.CompleteSQLTx(ctx, tx, job, k.Count(30)) })
	}
	byPgx := func(ctx context.Context, f *fixture, job *rivertype.JobRow) error {
		return pgx.BeginFunc(ctx, f.pool, func(tx pgx.Tx) error {
			return f.sched.CompleteTx(ctx, tx, job, k.Count(30))
		})
	}
	for name, c := range map[string]struct {
		do   complete
		work func(*fixture, *testing.T, *scheduler.Scheduler, *river.Config)
		fits string
	}{
		"Pgx":         {byPgx, (*fixture).workSQL, "Scheduler.CompleteSQLTx"},
		"DatabaseSQL": {bySQL, (*fixture).workPgx, "Scheduler.CompleteTx"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setUp(t)
			in, err := f.insert(t, 1, nil, nil, k.Count(100))
			if err != nil || in.Err() != nil {
				t.Fatalf("got %+v and %v", in, err)
			}
			job := *in.Job.Job
			job.State = rivertype.JobStateRunning
			if err := c.do(t.Context(), f, &job); err == nil {
				t.Error("it was completed outside of a worker")
			}
			result := make(chan error, 1)
			c.work(f, t, f.sched, f.worker(func(ctx context.Context, job *river.Job[sendArgs]) error {
				result <- c.do(ctx, f, job.JobRow)
				return nil
			}))
			if err := <-result; err == nil || !strings.Contains(err.Error(), c.fits) {
				t.Errorf("got %v, want an error that names %s", err, c.fits)
			}
			f.want(t, k, 900, 1)
		})
	}
}
