package scheduler_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertest"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
	"github.com/weir-go/weir/weirtest"
)

// Tests of users work jobs with rivertest, in a transaction that they roll back. A job that need
// not wait is worked; one that must is snoozed as in production, unless the test has it worked now.
func TestJobsAreWorkedByRivertest(t *testing.T) {
	t.Parallel()
	asked := func(n float64) []ratelimit.Request { return []ratelimit.Request{budget.For("k").Count(n).OrReserve()} }
	for name, c := range map[string]struct {
		takes   []ratelimit.Request // when it is inserted
		limit   bool                // and when it is worked
		pause   bool
		now     bool
		kind    river.EventKind
		charged float64
	}{
		"Granted":          {asked(100), false, false, false, river.EventKindJobCompleted, 30},
		"GrantedNow":       {asked(100), false, false, true, river.EventKindJobCompleted, 30},
		"Reserved":         {asked(1100), false, false, false, river.EventKindJobSnoozed, 1100},
		"ReservedNow":      {asked(1100), false, false, true, river.EventKindJobCompleted, 30},
		"Paused":           {asked(100), false, true, false, river.EventKindJobSnoozed, 100},
		"PausedNow":        {asked(100), false, true, true, river.EventKindJobCompleted, 30},
		"LimitedNow":       {nil, true, false, true, river.EventKindJobCompleted, 0},
		"LimitedPausedNow": {nil, true, true, true, river.EventKindJobCompleted, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, sched, _ := exact(t)
			if c.pause {
				if err := f.limiter.Autocommit(f.pool).Pause(t.Context(), time.Hour, budget.For("k")); err != nil {
					t.Fatal(err)
				}
			}
			tx, err := f.pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
			called := 0
			worker := river.WorkFunc(func(ctx context.Context, job *river.Job[sendArgs]) error {
				called++
				r, ok := scheduler.ReservationOf(job.JobRow)
				if !ok {
					return nil
				}
				_, err := f.limiter.Settle(ctx, tx, r, budget.For("k").Count(30))
				return err
			})
			if c.limit {
				worker = scheduler.Limit(worker, func(*river.Job[sendArgs]) []ratelimit.Request { return asked(100) })
			}
			driver := riverpgxv5.New(nil) // the recommended one
			cfg := sched.Configure(f.pool, &river.Config{Logger: quiet()})
			var job *rivertype.JobRow
			if c.takes == nil {
				in, err := f.client.InsertTx(t.Context(), tx, sendArgs{1}, nil)
				if err != nil {
					t.Fatal(err)
				}
				job = in.Job
			} else {
				client, err := river.NewClient(driver, cfg)
				if err != nil {
					t.Fatal(err)
				}
				in, err := sched.Jobs(client).InsertTx(t.Context(), tx, sendArgs{1}, nil, c.takes...)
				if err = errors.Join(err, in.Err()); err != nil {
					t.Fatal(err)
				}
				job = in.Job.Job
			}

			ctx := t.Context()
			if c.now {
				ctx = weirtest.WorkNow(ctx)
			}
			result, err := rivertest.NewWorker[sendArgs, pgx.Tx](t, driver, cfg, worker).WorkJob(ctx, t, tx, job)
			if err != nil || result.EventKind != c.kind || called == 1 != (c.kind == river.EventKindJobCompleted) {
				t.Errorf("called %d times: %v %+v", called, err, result)
			}
			s, err := f.limiter.Value(t.Context(), tx, budget.For("k"))
			if err != nil || s.Value < 1000-c.charged-1e-3 || s.Value > 1000-c.charged+1 {
				t.Errorf("%v, %v: want %v charged", s.Value, err, c.charged)
			}
		})
	}
}

// A worker made by Limit that a test calls itself needs no River.
func TestALimitedWorkerIsCalledNow(t *testing.T) {
	t.Parallel()
	want := errors.New("mine")
	worker := scheduler.Limit(river.WorkFunc(func(context.Context, *river.Job[sendArgs]) error { return want }),
		func(*river.Job[sendArgs]) []ratelimit.Request { return []ratelimit.Request{budget.For("k")} })
	job := &river.Job[sendArgs]{JobRow: &rivertype.JobRow{}}
	if err := worker.Work(weirtest.WorkNow(t.Context()), job); !errors.Is(err, want) {
		t.Error(err)
	}
	if err := worker.Work(t.Context(), job); err == nil || errors.Is(err, want) {
		t.Errorf("without it, it says %v", err)
	}
}
