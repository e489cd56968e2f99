package scheduler_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// reservedAndLimited has two jobs take a token each of what InsertTx asks for, of which 10 exist.
// One starts at once. With a period in which nothing flows in, the other one is put off: it waits
// for the limit of its worker.
func reservedAndLimited(
	t *testing.T, name string, period time.Duration, work func(context.Context, *river.Job[sendArgs]) error,
) (f *fixture, jobs *scheduler.Jobs, j *journal, id int64, reserved, limited ratelimit.Request) {
	t.Helper()
	f, sched, j := exact(t)
	reserved = ratelimit.MustDefine(name+" reserved",
		ratelimit.TokenBucket{Rate: 1, Period: never, Capacity: ratelimit.Tokens(10)}).For("k")
	limited = ratelimit.MustDefine(name+" limited",
		ratelimit.TokenBucket{Rate: 1, Period: period, Capacity: ratelimit.Tokens(1)}).Global()
	j.limited(func(int) []ratelimit.Request { return []ratelimit.Request{limited} })
	j.work = work
	jobs = sched.Jobs(j.client(t, sched))
	f.insertBy(t, jobs, sendArgs{0}, reserved)
	j.await(t, 1)
	return f, jobs, j, f.insertBy(t, jobs, sendArgs{1}, reserved).Job.Job.ID, reserved, limited
}

// While a job waits for the limit of its worker, it also waits for the pauses of what InsertTx took.
func TestAJobThatWaitsForItsWorkersLimitWaitsForAPauseOfWhatItReserved(t *testing.T) {
	t.Parallel()
	untilInTime(t, func(t *testing.T) bool {
		f, _, j, id, reserved, _ := reservedAndLimited(t, t.Name(), 10*time.Second, nil)
		eventually(t, "it is put off", func() bool { return woken(t, f.job(t, id)) >= 1 })
		if err := f.limiter.Autocommit(f.pool).Pause(t.Context(), time.Hour, reserved); err != nil {
			t.Fatal(err)
		}
		if len(j.await(t, 1)) > 1 || time.Until(f.job(t, id).ScheduledAt) < time.Second {
			return false // it has started before the pause, or may have
		}
		eventually(t, "it waits for the end of the pause", func() bool {
			job := f.job(t, id)
			return job.State == rivertype.JobStateScheduled && time.Until(job.ScheduledAt) > 30*time.Minute
		})
		if n := len(j.await(t, 1)); n != 1 {
			t.Errorf("%d starts in the pause, want 1", n)
		}
		if err := f.limiter.Autocommit(f.pool).Resume(t.Context(), reserved); err != nil {
			t.Fatal(err)
		}
		j.await(t, 2)
		return true
	})
}

// A job that is cancelled while it waits for the limit of its worker gives back all that it took.
func TestAJobThatIsCancelledGivesBackWhatItReservedAndWhatItsWorkerTook(t *testing.T) {
	t.Parallel()
	f, jobs, _, id, reserved, limited := reservedAndLimited(t, t.Name(), never, nil)
	eventually(t, "it has taken", func() bool { return f.left(t, limited) < -0.5 })
	eventually(t, "it is put off", func() bool { return f.job(t, id).State == rivertype.JobStateScheduled })
	f.wantLeft(t, reserved, 8)
	f.wantLeft(t, limited, -1)
	f.inRC(t, func(tx pgx.Tx) error {
		_, err := jobs.CancelTx(t.Context(), tx, id)
		return err
	})
	f.wantLeft(t, reserved, 9)
	f.wantLeft(t, limited, 0)
}

// A further attempt pays again for what InsertTx took, whether or not the one before it had to wait
// for the limit of its worker. A snooze does not.
func TestARetryOfALimitedWorkerPaysForWhatItReserved(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		first  error
		period time.Duration // in which a token flows into the limit of the worker
		want   float64
	}{
		"Retry":         {errors.New("once more"), 3 * time.Second, 7},
		"RetryAtOnce":   {errors.New("once more"), time.Microsecond, 7},
		"Snooze":        {river.JobSnooze(0), 3 * time.Second, 8},
		"SnoozedAtOnce": {river.JobSnooze(0), time.Microsecond, 8},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int64
			f, _, j, id, reserved, _ := reservedAndLimited(t, t.Name(), c.period,
				func(_ context.Context, job *river.Job[sendArgs]) error {
					if job.Args.N == 1 && calls.Add(1) == 1 {
						return c.first
					}
					return nil
				})
			j.await(t, 3)
			f.ended(t, id)
			f.wantLeft(t, reserved, c.want)
		})
	}
}

// An attempt that a stop has interrupted has paid, whether or not River counts it, and whether or not
// it had to wait for the limit of its worker: the next one pays again for what InsertTx took.
func TestAnInterruptedAttemptOfALimitedWorkerHasPaid(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		period    time.Duration // in which a token flows into the limit of the worker
		uncounted bool
	}{
		"Waited":          {3 * time.Second, false},
		"WaitedUncounted": {3 * time.Second, true},
		"AtOnce":          {time.Microsecond, false},
		"AtOnceUncounted": {time.Microsecond, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, sched, j := exact(t)
			reserved := ratelimit.MustDefine(t.Name()+" reserved",
				ratelimit.TokenBucket{Rate: 1, Period: never, Capacity: ratelimit.Tokens(10)}).For("k")
			limited := ratelimit.MustDefine(t.Name()+" limited",
				ratelimit.TokenBucket{Rate: 1, Period: c.period, Capacity: ratelimit.Tokens(1)}).Global()
			if err := f.limiter.Autocommit(f.pool).Consume(t.Context(), limited); err != nil {
				t.Fatal(err)
			}
			j.limited(func(int) []ratelimit.Request { return []ratelimit.Request{limited} })
			j.work = func(ctx context.Context, _ *river.Job[sendArgs]) error {
				if len(j.await(t, 1)) == 1 {
					<-ctx.Done()
				}
				return ctx.Err()
			}
			id := f.insertBy(t, f.jobs, sendArgs{0}, reserved).Job.Job.ID
			client := j.client(t, sched)
			j.await(t, 1)
			stop(t, client)
			if c.uncounted {
				f.exec(t, `UPDATE river_job SET attempt = attempt - 1`)
			}
			j.client(t, sched)
			f.completedOf(t, id)
			// It is put off once before each attempt at most. The client that was stopped may have
			// fetched it once more meanwhile, and paid.
			if n := f.fetched(t, id); n > 4 || n > 2 && c.period < time.Second {
				t.Logf("it was fetched %v times", n)
				return
			}
			if n := len(j.await(t, 2)); n != 2 {
				t.Errorf("%d starts", n)
			}
			f.wantLeft(t, reserved, 8)
		})
	}
}
