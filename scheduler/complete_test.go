package scheduler_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// The completion and the settlement commit together: an attempt whose transaction is rolled back
// has done neither, and pays for itself, and the next does both.
func TestCompleteTxCompletesAndSettles(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	jobs := sched.Jobs(f.client)
	undo := errors.New("undo")
	j.work = func(ctx context.Context, job *river.Job[sendArgs]) error {
		return pgx.BeginFunc(ctx, f.pool, func(tx pgx.Tx) error {
			if err := sched.CompleteTx(ctx, tx, job.JobRow, budget.For("k").CountInt(30)); err != nil {
				return err
			}
			if job.Attempt == 1 {
				return undo
			}
			return nil
		})
	}
	j.client(t, sched)
	id := f.insertBy(t, jobs, sendArgs{1}, budget.For("k").Count(100)).Job.Job.ID
	eventually(t, "the job is completed", func() bool { return f.job(t, id).State == rivertype.JobStateCompleted })
	if job := f.job(t, id); job.Attempt != 2 || len(job.Errors) != 1 ||
		!strings.Contains(job.Errors[0].Error, undo.Error()) {
		t.Errorf("attempt %d, errors %+v", job.Attempt, job.Errors)
	}
	f.wantLeft(t, budget.For("k"), 1000-100-30)
}

// The balances, for which others wait, are locked last: a settlement that is refused finds the job
// completed already. Rolled back, nothing has happened.
func TestCompleteTxSettlesLast(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	jobs := sched.Jobs(f.client)
	done := make(chan error, 1)
	j.work = func(ctx context.Context, job *river.Job[sendArgs]) error {
		tx, err := f.pool.Begin(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback(ctx) }()
		err = sched.CompleteTx(ctx, tx, job.JobRow, wait.For("another"))
		var state string
		if !errors.Is(err, ratelimit.ErrInvalid) {
			err = errors.Join(errors.New("a limit that it has not taken from is not refused"), err)
		} else if err = tx.QueryRow(ctx, `SELECT state FROM river_job WHERE id = $1`, job.ID).
			Scan(&state); err == nil && state != "completed" {
			err = errors.New("when it was settled the job was " + state)
		}
		done <- err
		return river.JobCancel(errors.New("enough"))
	}
	j.client(t, sched)
	id := f.insertBy(t, jobs, sendArgs{1}, budget.For("k").Count(100)).Job.Job.ID
	if err := <-done; err != nil {
		t.Error(err)
	}
	eventually(t, "River has the job as its worker left it", func() bool {
		return f.job(t, id).State == rivertype.JobStateCancelled
	})
	f.wantLeft(t, budget.For("k"), 900)
}

// listArgs are no object in JSON.
type listArgs []int

func (listArgs) Kind() string { return "list" }

// A job of any arguments that has taken nothing is only completed, though its worker says what was
// used.
func TestCompleteTxOfAJobThatHasTakenNothing(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	client := j.client(t, sched, func(cfg *river.Config) {
		river.AddWorker(cfg.Workers, river.WorkFunc(func(ctx context.Context, job *river.Job[listArgs]) error {
			return errors.Join(river.JobCancel(errors.New("changes nothing")),
				pgx.BeginFunc(ctx, f.pool, func(tx pgx.Tx) error {
					return sched.CompleteTx(ctx, tx, job.JobRow, budget.For("k").Count(30))
				}))
		}))
	})
	in, err := client.Insert(t.Context(), listArgs{1, 2}, nil)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the job is completed", func() bool {
		return f.job(t, in.Job.ID).State == rivertype.JobStateCompleted
	})
	f.wantLeft(t, budget.For("k"), 1000)
}

// Outside of a worker there is no River client to complete the job, so nothing is settled either.
func TestCompleteTxOutsideOfAWorker(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	job := f.insert(t, sendArgs{1}, nil, budget.For("k").Count(100)).Job.Job
	job.State = rivertype.JobStateRunning
	f.inTx(t, func(ctx context.Context, tx pgx.Tx) error {
		if err := scheduler.New(f.limiter, scheduler.Config{}).CompleteTx(ctx, tx, job,
			budget.For("k").Count(30)); err == nil {
			t.Error("it was completed")
		}
		return nil
	})
	f.wantLeft(t, budget.For("k"), 900)
}

// Every request may wait, one with Within no longer than it says. What is denied is an error,
// inserts nothing and takes nothing.
func TestReserveTx(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	tokens := ratelimit.MustDefine("reserveTokens", ratelimit.TokenBucket{Rate: 1, Period: never,
		Capacity: ratelimit.Tokens(100), MaxReserved: ratelimit.Tokens(50)})
	calls := ratelimit.MustDefine("reserveCalls",
		ratelimit.TokenBucket{Rate: 1, Period: never, MaxReserved: ratelimit.Tokens(5)})
	ctx := t.Context()
	reserve := func(requests ...ratelimit.Request) (in *scheduler.Inserted, err error) {
		err = f.limiter.InTx(ctx, f.pool, func(ctx context.Context, tx pgx.Tx) error {
			in, err = f.jobs.ReserveTx(ctx, tx, sendArgs{1}, nil, requests...)
			return err
		})
		return in, err
	}
	if in, err := reserve(tokens.For("k").Count(60), calls.For("k")); err != nil || !in.OK ||
		!in.RunAt.IsZero() || in.Job == nil {
		t.Fatalf("%+v, %v", in, err)
	}
	in, err := reserve(tokens.For("k").Count(60), calls.For("k")) // neither is there yet
	if err != nil || in.RunAt.IsZero() || in.Job.Job.State != rivertype.JobStateScheduled {
		t.Fatalf("%+v, %v", in, err)
	}
	for name, request := range map[string]ratelimit.Request{
		"more than MaxReserved": tokens.For("k").Count(60),
		"Within":                calls.For("k").Within(0),
	} {
		in, err := reserve(request)
		var denied *ratelimit.DeniedError
		if !errors.As(err, &denied) || in.OK || in.Job != nil || in.RetryAt.IsZero() {
			t.Errorf("%s: %+v, %v", name, in, err)
		}
	}
	if _, err := reserve(); !errors.Is(err, ratelimit.ErrInvalid) {
		t.Errorf("without requests: %v", err)
	}
	var n int
	if err := f.pool.QueryRow(ctx, `SELECT count(*) FROM river_job`).Scan(&n); err != nil || n != 2 {
		t.Errorf("%d jobs, %v", n, err)
	}
	f.wantLeft(t, tokens.For("k"), -20)
	f.wantLeft(t, calls.For("k"), -1)
}
