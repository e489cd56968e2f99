package scheduler_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// A job that is put back by a stop is as it was, and another client starts it on time.
func TestAStopPutsHeldJobsBack(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	client := j.client(t, sched)
	job := f.reserve(t, sched.Jobs(client), 1, 4*time.Second)
	held := func() bool { return f.job(t, job.ID).State == rivertype.JobStateRunning }
	eventually(t, "the job is held", held)
	stop(t, client)
	back := f.job(t, job.ID)
	if back.Queue != river.QueueDefault || back.Attempt != 0 || len(back.Errors) > 0 || back.State == rivertype.JobStateRunning ||
		back.ScheduledAt.Sub(job.ScheduledAt).Abs() > time.Second {
		t.Errorf("put back as %+v, was %+v", back, job)
	}
	j.client(t, sched)
	punctual(t, j.await(t, 1), map[int64]time.Time{job.ID: job.ScheduledAt})
}

// A client that was killed while it held a job has left it as running.
func TestAJobWhoseHolderWasKilledIsFound(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	sched := scheduler.New(f.limiter, scheduler.Config{Jitter: -1})
	job := f.reserve(t, sched.Jobs(f.client), 1, time.Second)
	if _, err := f.pool.Exec(t.Context(), `UPDATE river_job SET state = 'running', queue = 'weir_default', attempt = 1,
		attempted_at = now() - interval '31 s', attempted_by = '{killed}', scheduled_at = scheduled_at - interval '2.5 s' WHERE id = $1`, job.ID); err != nil {
		t.Fatal(err)
	}
	j := newJournal(f)
	j.client(t, sched)
	punctual(t, j.await(t, 1), map[int64]time.Time{job.ID: job.ScheduledAt})
}

// What has begun to work is River's to rescue, however long it takes: the upstream may have been called.
func TestAJobThatBeganIsNotTakenForOneThatIsHeld(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	sched := scheduler.New(f.limiter, scheduler.Config{Jitter: -1})
	job := f.reserve(t, sched.Jobs(f.client), 1, time.Millisecond)
	if _, err := f.pool.Exec(t.Context(), `UPDATE river_job SET state = 'running', queue = 'weir_default', attempt = 1,
		attempted_at = now() - interval '10 min', attempted_by = '{alive}' WHERE id = $1`, job.ID); err != nil {
		t.Fatal(err)
	}
	j := newJournal(f)
	j.client(t, sched)
	j.never(t, 3*time.Second)
}

// Nor is one that began earlier than it was due when it was fetched, as those ahead of it had used less.
func TestAJobThatBeganEarlierIsNotTakenForOneThatIsHeld(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	j.work = func(ctx context.Context, _ *river.Job[sendArgs]) error { <-ctx.Done(); return ctx.Err() }
	jobs, a := sched.Jobs(j.client(t, sched)), f.limiter.Autocommit(f.pool)
	var ahead []ratelimit.Reservation
	for _, n := range []float64{1000, 1500} {
		res, err := a.RateLimit(t.Context(), wait.For("k").Count(n).OrReserve())
		if err != nil || !res.OK {
			t.Fatal(res, err)
		}
		ahead = append(ahead, res.Reservation())
	}
	job := f.insertBy(t, jobs, sendArgs{1}, wait.For("k").Count(700).OrReserve()).Job.Job
	eventually(t, "the job is held", func() bool { return f.job(t, job.ID).State == rivertype.JobStateRunning })
	for _, r := range ahead {
		if ok, err := a.Settle(t.Context(), r, wait.For("k").Count(0)); err != nil || !ok {
			t.Fatal(ok, err)
		}
	}
	if s := j.await(t, 1)[0]; job.ScheduledAt.Sub(s.at) < time.Second {
		t.Fatalf("it started at %v, where %v was planned: the test shows nothing", s.at, job.ScheduledAt)
	}
	if _, err := f.pool.Exec(t.Context(), `UPDATE river_job SET attempted_at = now() - interval '10 min' WHERE id = $1`, job.ID); err != nil {
		t.Fatal(err)
	}
	j.client(t, sched) // which sweeps
	time.Sleep(3 * time.Second)
	if n := len(j.await(t, 1)); n != 1 {
		t.Errorf("started %d times", n)
	}
}

func TestAHeldJobCanBeCancelled(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	client := j.client(t, sched)
	job := f.reserve(t, sched.Jobs(client), 1, 4*time.Second)
	eventually(t, "the job is held", func() bool { return f.job(t, job.ID).State == rivertype.JobStateRunning })
	if _, err := client.JobCancel(t.Context(), job.ID); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the job is cancelled", func() bool { return f.job(t, job.ID).State == rivertype.JobStateCancelled })
	if q := f.job(t, job.ID).Queue; q != river.QueueDefault {
		t.Errorf("in queue %s", q)
	}
	j.never(t, time.Second)
}

func TestARunningJobCanBeCancelled(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	j.work = func(ctx context.Context, _ *river.Job[sendArgs]) error { <-ctx.Done(); return ctx.Err() }
	client := j.client(t, sched)
	job := f.reserve(t, sched.Jobs(client), 1, 500*time.Millisecond)
	j.await(t, 1)
	if _, err := client.JobCancel(t.Context(), job.ID); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the job is cancelled", func() bool { return f.job(t, job.ID).State == rivertype.JobStateCancelled })
}

// The statement of the package's page, for a service that no longer has the plugin.
func TestWhatTheLastClientLeftCanBePutBackByHand(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	sched := scheduler.New(f.limiter, scheduler.Config{Jitter: -1})
	job := f.reserve(t, sched.Jobs(f.client), 1, 2*time.Second)
	if _, err := f.pool.Exec(t.Context(), `UPDATE river_job SET state = 'available', queue = 'weir_default', scheduled_at = scheduled_at - interval '2.5 s'`); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "//	UPDATE")
	statement, _, _ := strings.Cut(rest, "\n//\n")
	if _, err := f.pool.Exec(t.Context(), "UPDATE"+strings.ReplaceAll(statement, "//", "")); err != nil {
		t.Fatal(err)
	}
	if got := f.job(t, job.ID); got.Queue != river.QueueDefault || !got.ScheduledAt.Equal(job.ScheduledAt) {
		t.Errorf("%+v", got)
	}
	j := newJournal(f)
	j.client(t, nil)
	punctual(t, j.await(t, 1), map[int64]time.Time{job.ID: job.ScheduledAt})
}

// Somebody has moved it while it was held.
func TestAHeldJobThatWasTakenAwayDoesNotStart(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	job := f.reserve(t, sched.Jobs(j.client(t, sched)), 1, 4*time.Second)
	eventually(t, "the job is held", func() bool { return f.job(t, job.ID).State == rivertype.JobStateRunning })
	if _, err := f.pool.Exec(t.Context(), `UPDATE river_job SET state = 'scheduled', queue = 'default', attempt = 0,
		scheduled_at = now() + interval '1 hour', metadata = '{}'`); err != nil {
		t.Fatal(err)
	}
	j.never(t, 5*time.Second)
	if got := f.job(t, job.ID); got.State != rivertype.JobStateScheduled {
		t.Errorf("%+v", got)
	}
}

// What stands in the queue beside and is not fetched there, as of a kind that no client knows, goes back into its queue.
func TestWhatNobodyFetchesIsPutBack(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	sched := scheduler.New(f.limiter, scheduler.Config{Jitter: -1})
	job := f.reserve(t, sched.Jobs(f.client), 1, time.Millisecond)
	j := newJournal(f)
	client := j.client(t, sched)
	j.await(t, 1)
	if err := client.QueuePause(t.Context(), "weir_default", nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is completed", func() bool { return f.job(t, job.ID).State == rivertype.JobStateCompleted })
	if _, err := f.pool.Exec(t.Context(), `UPDATE river_job SET state = 'available', queue = 'weir_default', attempt = 0, finalized_at = NULL,
		scheduled_at = scheduled_at - interval '20 s', metadata = jsonb_set(metadata, '{weir,due}', to_jsonb((metadata->'weir'->>'due')::bigint - 15000000))`); err != nil {
		t.Fatal(err)
	}
	j.await(t, 2)
}
