package scheduler_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

func TestWhoPaysAgain(t *testing.T) {
	t.Parallel()
	fails := func(context.Context, *river.Job[sendArgs]) error { return errors.New("once more") }
	snoozes := func(context.Context, *river.Job[sendArgs]) error { return river.JobSnooze(0) }
	pauses := func(context.Context, *river.Job[sendArgs]) error {
		return &scheduler.PauseError{For: time.Millisecond, Requests: []ratelimit.Request{budget.For("k")}}
	}
	for name, tc := range map[string]struct {
		pays  scheduler.Pays
		first func(context.Context, *river.Job[sendArgs]) error
		want  float64 // tokens charged
	}{
		"ARetry":                   {scheduler.PerAttempt, fails, 200},
		"NoSnooze":                 {scheduler.PerAttempt, snoozes, 100},
		"NoPause":                  {scheduler.PerAttempt, pauses, 100},
		"NoRetryOfAJobPaidOnce":    {scheduler.PerJob, fails, 100},
		"NoSnoozeOfAJobPaidOnce":   {scheduler.PerJob, snoozes, 100},
		"ARetryWhereEachStartPays": {scheduler.PerStart, fails, 200},
		"ASnoozeWhereEachDoes":     {scheduler.PerStart, snoozes, 200},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, sched, j := exact(t)
			var ids []string
			j.work = func(ctx context.Context, job *river.Job[sendArgs]) error {
				r, _ := scheduler.ReservationOf(job.JobRow)
				ids = append(ids, r.ID.String())
				if len(ids) == 1 {
					return tc.first(ctx, job)
				}
				return j.settles(func(int) ratelimit.Request { return budget.For("k").Count(10) })(ctx, job)
			}
			jobs := sched.Jobs(j.client(t, sched))
			id := f.insertBy(t, jobs, sendArgs{payer(tc.pays)}, budget.For("k").Count(100)).Job.Job.ID
			j.await(t, 2)
			eventually(t, "it is completed", func() bool { return f.job(t, id).State == rivertype.JobStateCompleted })
			f.wantLeft(t, budget.For("k"), 1000-tc.want+90)
			if same := ids[0] == ids[1]; same != (tc.want == 100) {
				t.Errorf("the reservations are %v", ids)
			}
		})
	}
}

// A retry waits for its tokens, ahead of those who came later.
func TestARetryWaitsForItsTokens(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	limit := ratelimit.MustDefine("retried", ratelimit.TokenBucket{Rate: 10, Period: 3 * time.Second})
	var failed time.Time
	j.work = func(ctx context.Context, job *river.Job[sendArgs]) error {
		if job.Args.N == 0 && job.Attempt == 1 {
			if err := f.pool.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&failed); err != nil {
				return err
			}
			return errors.New("once more")
		}
		return nil
	}
	jobs, began := sched.Jobs(j.client(t, sched)), f.now(t)
	for i := range 3 {
		f.insertBy(t, jobs, sendArgs{i}, limit.For("k").Count(10).OrReserve())
	}
	starts := j.await(t, 4)
	order := [4]int{starts[0].n, starts[1].n, starts[2].n, starts[3].n}
	if early := failed.Sub(began) < time.Second; early && order != [4]int{0, 0, 1, 2} &&
		order != [4]int{0, 1, 0, 2} {
		t.Errorf("started in the order %v", order)
	}
	for _, s := range starts[1:] {
		if s.n == 0 && s.attempt != 2 {
			t.Errorf("it is at attempt %d", s.attempt)
		}
		if s.n == 0 && s.at.Sub(began) < 2900*time.Millisecond {
			t.Errorf("it started again after %v: 20 tokens at 10 in three seconds, from 10", s.at.Sub(began))
		}
	}
	if last := starts[3].at.Sub(began); last < 8900*time.Millisecond {
		t.Errorf("40 tokens at 10 in three seconds, from 10, within %v", last)
	}
}

// An attempt that a stop interrupts has used its tokens: the next one begins when as many have come.
func TestAnInterruptedAttemptIsRepeatedWhenItsTokensHaveCome(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	const period = 3 * time.Second
	limit := ratelimit.MustDefine("interrupted",
		ratelimit.TokenBucket{Rate: 1, Period: period, Capacity: ratelimit.Tokens(1)})
	j.work = func(ctx context.Context, _ *river.Job[sendArgs]) error {
		if len(j.await(t, 1)) == 1 {
			<-ctx.Done()
		}
		return ctx.Err()
	}
	f.insertBy(t, f.jobs, sendArgs{0}, limit.For("k").OrReserve())
	client := j.client(t, sched)
	first := j.await(t, 1)[0]
	stop(t, client)
	j.client(t, sched)
	if second := j.await(t, 2)[1]; second.at.Sub(first.place()) < period {
		t.Errorf("it started again %v after it took the only token, of which one comes in %v",
			second.at.Sub(first.place()), period)
	}
}

// A job that pays once is fetched before its tokens have come, and rescued: its client had died before
// it could put it off. It waits for them still.
func TestARescuedJobThatPaysOnceWaitsForItsTokens(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	limit := ratelimit.MustDefine("rescuedOnce",
		ratelimit.TokenBucket{Rate: 1, Period: 5 * time.Second, Capacity: ratelimit.Tokens(0)})
	in := f.insertBy(t, f.jobs, sendArgs{payer(scheduler.PerJob)}, limit.For("k").OrReserve())
	f.exec(t, `UPDATE river_job SET state = 'available', attempt = 1, attempted_by = '{dead}', scheduled_at = now()`)
	j.client(t, sched)
	if s := j.await(t, 1)[0]; s.at.Before(in.RunAt) || s.attempt != 2 {
		t.Errorf("attempt %d started %v early", s.attempt, in.RunAt.Sub(s.at))
	}
}

// Who wants a cancelled job to be worked after all pays for it again: what it took has been given
// back.
func TestACancelledJobThatIsRetriedPaysAgain(t *testing.T) {
	t.Parallel()
	for name, pays := range map[string]scheduler.Pays{"PerAttempt": scheduler.PerAttempt, "PerJob": scheduler.PerJob} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, sched, j := exact(t)
			j.work = j.settles(func(int) ratelimit.Request { return budget.For("k").Count(30) })
			jobs := sched.Jobs(f.client)
			id := f.insertBy(t, jobs, sendArgs{payer(pays)}, budget.For("k").Count(100)).Job.Job.ID
			f.inRC(t, func(tx pgx.Tx) error {
				_, err := jobs.CancelTx(t.Context(), tx, id)
				return err
			})
			f.wantLeft(t, budget.For("k"), 1000)
			if _, err := f.client.JobRetry(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			j.client(t, sched)
			eventually(t, "it is completed", func() bool { return f.job(t, id).State == rivertype.JobStateCompleted })
			f.wantLeft(t, budget.For("k"), 970)
		})
	}
}

// A job that has taken from limits in the shadow only has nothing to settle, to give back or to pay
// again.
func TestAJobInTheShadowOnlyIsAnyJob(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	dry := ratelimit.MustDefine("dry", ratelimit.TokenBucket{Rate: 10, Period: never}, ratelimit.Shadow())
	jobs := sched.Jobs(f.client)
	cancelled := f.insertBy(t, jobs, sendArgs{0}, dry.For("k").OrReserve()).Job.Job
	if r, ok := scheduler.ReservationOf(cancelled); ok {
		t.Errorf("it has a reservation: %v", r)
	}
	f.inRC(t, func(tx pgx.Tx) error {
		_, err := jobs.CancelTx(t.Context(), tx, cancelled.ID)
		return err
	})
	j.work = func(_ context.Context, job *river.Job[sendArgs]) error {
		if job.Attempt == 1 {
			return errors.New("once more")
		}
		return nil
	}
	id := f.insertBy(t, jobs, sendArgs{1}, dry.For("k").OrReserve()).Job.Job.ID
	j.client(t, sched)
	eventually(t, "its second attempt is completed", func() bool {
		return f.job(t, id).State == rivertype.JobStateCompleted
	})
}
