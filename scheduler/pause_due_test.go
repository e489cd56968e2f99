package scheduler_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/riverqueue/river"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// A pause is extended again and again while hundreds of jobs are due. The first ones that meet it
// move the others along, so that few are fetched to be put off, and the jobs of another key behind
// them start.
func TestAnExtendedPauseMovesWhatIsDueAlong(t *testing.T) {
	t.Parallel()
	untilInTime(t, func(t *testing.T) bool {
		f, sched, j := exact(t)
		const n, pauses = 300, 3
		limit := ratelimit.MustDefine("extended", ratelimit.TokenBucket{Rate: 1000, Period: time.Hour})
		jobs := sched.Jobs(f.client)
		f.insertTogether(t, jobs, n, limit.For("k"))
		pause := func(d time.Duration) {
			t.Helper()
			if err := f.limiter.Autocommit(f.pool).Pause(t.Context(), d, limit.For("k")); err != nil {
				t.Fatal(err)
			}
		}
		pause(time.Hour)
		j.client(t, sched, workers(2))
		for i := range pauses {
			other := f.insertBy(t, jobs, sendArgs{n + i}, limit.For("other")).Job.Job.ID
			eventually(t, "the job of another key has started", func() bool { return len(j.await(t, 0)) > i })
			if s := j.await(t, i+1)[i]; s.id != other {
				t.Fatalf("job %d has started in the pause", s.n)
			}
			eventually(t, "all others wait for the end of the pause", func() bool {
				return f.count(t, `state = 'scheduled' AND scheduled_at > now() + interval '50 min'`) == n
			})
			pause(time.Duration(i+2) * time.Hour)
			f.exec(t, `UPDATE river_job SET state = 'available', scheduled_at = now() WHERE state = 'scheduled'`)
		}
		eventually(t, "all wait for the end of the last pause", func() bool {
			return f.count(t, `state = 'scheduled' AND scheduled_at > now() + interval '50 min'`) == n
		})
		var fetched int
		if err := f.pool.QueryRow(t.Context(),
			`SELECT coalesce(sum((metadata->>'snoozes')::int), 0) FROM river_job`).Scan(&fetched); err != nil {
			t.Fatal(err)
		}
		t.Logf("put off at their starts: %d of %d", fetched, (pauses+1)*n)
		return fetched > 0 && fetched <= (pauses+1)*n/4 // more, if the machine stalls before the others are moved
	})
}

// No attempt starts in a pause, whether it pays again or not.
func TestAPauseHoldsUpARetry(t *testing.T) {
	t.Parallel()
	for name, pays := range map[string]scheduler.Pays{"PerAttempt": scheduler.PerAttempt,
		"PerJob": scheduler.PerJob, "PerStart": scheduler.PerStart} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, sched, j := exact(t)
			var closed time.Time
			j.work = func(_ context.Context, job *river.Job[sendArgs]) error {
				if job.Attempt == 1 {
					closed = f.now(t)
					if err := f.limiter.Autocommit(f.pool).Pause(context.Background(),
						2*time.Second, budget.For("k")); err != nil {
						t.Error(err)
					}
					return errors.New("once more")
				}
				return nil
			}
			f.insertBy(t, sched.Jobs(j.client(t, sched)), sendArgs{payer(pays)}, budget.For("k").Count(100))
			if s := j.await(t, 2)[1]; s.at.Sub(closed) < 2*time.Second || s.attempt != 2 {
				t.Errorf("attempt %d started %v into the pause", s.attempt, s.at.Sub(closed))
			}
		})
	}
}

// A retry that has paid for all attempts waits only for the end of a pause, and so comes forward when
// the pause is ended. One that is deleted meanwhile has used what it paid for.
func TestResumeBringsForwardARetryThatHasPaid(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	j.work = func(_ context.Context, job *river.Job[sendArgs]) error {
		if job.Attempt > 1 {
			return nil
		}
		j.await(t, 2) // both have begun before the pause
		return errors.Join(errors.New("once more"),
			f.limiter.Autocommit(f.pool).Pause(context.Background(), time.Hour, budget.For("k")))
	}
	jobs := sched.Jobs(j.client(t, sched))
	var params []scheduler.InsertManyParams
	for i := range 2 {
		params = append(params, scheduler.InsertManyParams{Args: sendArgs{payer(scheduler.PerJob) + i},
			Requests: []ratelimit.Request{budget.For("k").Count(100)}})
	}
	in, err := jobs.InsertMany(t.Context(), f.pool, params)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the pause puts the retries off", func() bool {
		return f.count(t, `state = 'scheduled' AND scheduled_at > now() + interval '30 min'`) == 2
	})
	f.seen(t)
	if _, err := f.client.JobDelete(t.Context(), in.Jobs[0].Job.Job.ID); err != nil {
		t.Fatal(err)
	}
	f.seen(t)
	if err := f.limiter.Autocommit(f.pool).Resume(t.Context(), budget.For("k")); err != nil {
		t.Fatal(err)
	}
	if s := j.await(t, 3)[2]; s.id != in.Jobs[1].Job.Job.ID || s.attempt != 2 {
		t.Errorf("%+v, want attempt 2 of the job that was not deleted", s)
	}
	f.wantLeft(t, budget.For("k"), 800)
}
