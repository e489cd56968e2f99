package scheduler_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

func TestACancelledJobGivesBackWhatItTook(t *testing.T) {
	t.Parallel()
	f, sched, _ := exact(t)
	limit := ratelimit.MustDefine("cancel", ratelimit.TokenBucket{Rate: 100, Period: time.Hour})
	jobs := sched.Jobs(f.client)
	var ids []int64
	var dues []time.Time
	for i := range 5 {
		job := f.insertBy(t, jobs, sendArgs{i}, limit.For("k").Count(100).OrReserve()).Job.Job
		ids, dues = append(ids, job.ID), append(dues, job.ScheduledAt)
	}
	if got := f.left(t, limit.For("k")); math.Abs(got+400) > 1 {
		t.Errorf("%v left", got)
	}
	cancel := func(id int64) {
		t.Helper()
		var job *rivertype.JobRow
		err := pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) (err error) {
			job, err = jobs.CancelTx(t.Context(), tx, id)
			return err
		})
		if err != nil || job.State != rivertype.JobStateCancelled {
			t.Fatal(job, err)
		}
	}
	cancel(ids[2])
	near := func(i int, want time.Time) {
		t.Helper()
		job := f.job(t, ids[i])
		if d := job.ScheduledAt.Sub(want).Abs(); d > 10*time.Millisecond {
			t.Errorf("job %d is due at %v, %v from where it should be", i, job.ScheduledAt, d)
		}
		if w, ok := scheduler.Explain(job); !ok || !w.Until.Equal(job.ScheduledAt) {
			t.Errorf("job %d: %v %v", i, w, ok)
		}
	}
	if got := f.left(t, limit.For("k")); math.Abs(got+300) > 1 {
		t.Errorf("%v left", got)
	}
	near(1, dues[1])
	near(3, dues[2])
	near(4, dues[3])
	cancel(ids[2]) // changes nothing
	if got := f.left(t, limit.For("k")); math.Abs(got+300) > 1 {
		t.Errorf("%v left", got)
	}
	cancel(ids[0]) // was granted at once, and has not been started: those who wait come earlier
	near(1, f.now(t))
	near(3, dues[1])
	near(4, dues[2])
	cancel(ids[4])
	if got := f.left(t, limit.For("k")); math.Abs(got+100) > 1 {
		t.Errorf("%v left", got)
	}
	near(3, dues[1])
}

// Who waits in a pause, or longer for another limit, has no more jobs before it than there are.
func TestACancelledJobMovesUpWhatWaitsForSomethingElse(t *testing.T) {
	t.Parallel()
	f, sched, _ := exact(t)
	jobs := sched.Jobs(f.client)
	var limits [3]ratelimit.Limit
	for i, name := range []string{"paused", "one", "other"} {
		limits[i] = ratelimit.MustDefine(name, ratelimit.TokenBucket{Rate: 100, Period: time.Hour, Capacity: ratelimit.Tokens(0)})
	}
	paused, one, other := limits[0].For("k"), limits[1].For("k"), limits[2].For("k")
	insert := func(requests ...ratelimit.Request) *rivertype.JobRow {
		t.Helper()
		return f.insertBy(t, jobs, sendArgs{}, requests...).Job.Job
	}
	cancel := func(job *rivertype.JobRow) {
		t.Helper()
		f.inRC(t, func(tx pgx.Tx) error {
			_, err := jobs.CancelTx(t.Context(), tx, job.ID)
			return err
		})
	}
	is := func(job *rivertype.JobRow, want time.Time) {
		t.Helper()
		if d := f.job(t, job.ID).ScheduledAt.Sub(want); d.Abs() > 100*time.Millisecond {
			t.Errorf("job %d is due %v from where it should be", job.ID, d)
		}
	}

	first, second := insert(paused.Count(100).OrReserve()), insert(paused.Count(100).OrReserve())
	if err := f.limiter.Autocommit(f.pool).Pause(t.Context(), 10*time.Hour, paused); err != nil {
		t.Fatal(err)
	}
	cancel(first)
	is(second, second.ScheduledAt)
	f.inTx(t, func(ctx context.Context, tx pgx.Tx) error { return jobs.Resume(ctx, tx, paused) })
	is(second, first.ScheduledAt)

	ofOne, ofOther := insert(one.Count(100).OrReserve()), insert(other.Count(300).OrReserve())
	both := insert(one.Count(100).OrReserve(), other.Count(1).OrReserve())
	cancel(ofOne)
	is(both, both.ScheduledAt)
	cancel(ofOther)
	is(both, ofOne.ScheduledAt)
}

func TestACancellationThatRollsBackChangesNothing(t *testing.T) {
	t.Parallel()
	f, sched, _ := exact(t)
	jobs := sched.Jobs(f.client)
	id := f.insertBy(t, jobs, sendArgs{0}, budget.For("k").Count(100)).Job.Job.ID
	err := pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error {
		if _, err := jobs.CancelTx(t.Context(), tx, id); err != nil {
			return err
		}
		return errors.New("no")
	})
	if err == nil {
		t.Fatal("committed")
	}
	f.wantLeft(t, budget.For("k"), 900)
	if job := f.job(t, id); job.State != rivertype.JobStateAvailable {
		t.Error(job.State)
	}
}

// A job that is cancelled while it is held, a moment before it starts, has not started either.
func TestACancelledHeldJobGivesBackWhatItTook(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	jobs := sched.Jobs(j.client(t, sched))
	limit := ratelimit.MustDefine("held", ratelimit.TokenBucket{Rate: 50, Period: time.Second, Capacity: ratelimit.Tokens(0)})
	id := f.insertBy(t, jobs, sendArgs{0}, limit.For("k").Count(100).OrReserve()).Job.Job.ID
	eventually(t, "it is held", func() bool { return f.job(t, id).State == rivertype.JobStateRunning })
	f.inRC(t, func(tx pgx.Tx) error {
		_, err := jobs.CancelTx(t.Context(), tx, id)
		return err
	})
	eventually(t, "it is cancelled", func() bool { return f.job(t, id).State == rivertype.JobStateCancelled })
	eventually(t, "what it took is given back", func() bool { return f.settlements(t) == 1 })
	j.never(t, 100*time.Millisecond)
}

// So does one that has just taken, and waits for the moment at which its tokens exist.
func TestAJobThatIsCancelledAsItWaitsForAMomentGivesBackWhatItTook(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	limit := ratelimit.MustDefine("moment", ratelimit.TokenBucket{Rate: 10, Period: time.Second, Capacity: ratelimit.Tokens(0)})
	j.limited(func(int) []ratelimit.Request { return []ratelimit.Request{limit.For("k").Count(2.9)} })
	client := j.client(t, sched)
	for id := int64(1); f.settlements(t) == 0; id++ { // the client may hear of it too late
		f.enqueue(t, 1)
		eventually(t, "it has taken", func() bool { return f.left(t, limit.For("k")) < -1 })
		if _, err := client.JobCancel(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		var job *rivertype.JobRow
		eventually(t, "it has ended", func() bool { job = f.job(t, id); return job.FinalizedAt != nil })
		j.mu.Lock()
		begun := slices.ContainsFunc(j.starts, func(s start) bool { return s.id == id })
		j.mu.Unlock()
		if begun {
			continue
		}
		if job.State != rivertype.JobStateCancelled || !strings.Contains(job.Errors[0].Error, "cancelled") {
			t.Errorf("%v: %v", job.State, job.Errors)
		}
		eventually(t, "what it took is given back", func() bool { return f.settlements(t) == 1 })
	}
}

func (f *fixture) settlements(t testing.TB) (n int) {
	t.Helper()
	if err := f.pool.QueryRow(t.Context(), `SELECT count(*) FROM weir_settled`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// What has started has used what it took, as far as anybody knows.
func TestACancelledRunningJobKeepsWhatItTook(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	j.work = func(ctx context.Context, _ *river.Job[sendArgs]) error {
		<-ctx.Done()
		return ctx.Err()
	}
	jobs := sched.Jobs(j.client(t, sched))
	id := f.insertBy(t, jobs, sendArgs{0}, budget.For("k").Count(100)).Job.Job.ID
	j.await(t, 1)
	f.inRC(t, func(tx pgx.Tx) error {
		_, err := jobs.CancelTx(t.Context(), tx, id)
		return err
	})
	eventually(t, "it is cancelled", func() bool { return f.job(t, id).State == rivertype.JobStateCancelled })
	time.Sleep(3 * time.Second) // for the watch to find it, wrongly
	f.wantLeft(t, budget.For("k"), 900)
}

// A job that is paid once has used what it took with its first attempt, whenever it is cancelled then.
func TestAJobCancelledBeforeItsSecondAttemptKeepsWhatItTook(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	j.work = func(ctx context.Context, job *river.Job[sendArgs]) error {
		if job.Args.N == 1 {
			<-ctx.Done()
		}
		return errors.New("once more")
	}
	jobs := sched.Jobs(j.client(t, sched, func(c *river.Config) {
		c.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 1}}
	}))
	id := f.insertBy(t, jobs, sendArgs{payer(scheduler.PerJob)}, budget.For("k").Count(100)).Job.Job.ID
	f.insertBy(t, jobs, sendArgs{1}, wait.For("k")) // occupies the worker as soon as it is free
	j.await(t, 2)
	eventually(t, "it waits for its second attempt", func() bool {
		s := f.job(t, id).State
		return s == rivertype.JobStateAvailable || s == rivertype.JobStateRunning
	})
	eventually(t, "it is cancelled", func() bool {
		f.inRC(t, func(tx pgx.Tx) error { // again and again: a client may not hear of it just when it fetches the job
			_, err := jobs.CancelTx(t.Context(), tx, id)
			return err
		})
		return f.job(t, id).State == rivertype.JobStateCancelled
	})
	time.Sleep(3 * time.Second)
	f.wantLeft(t, budget.For("k"), 900)
}

// So it has if that second attempt was put back by a pause, and was not to begin before its end.
func TestAJobCancelledInAPauseOfItsSecondAttemptKeepsWhatItTook(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	j.work = func(_ context.Context, job *river.Job[sendArgs]) error {
		if job.Attempt == 1 {
			return errors.New("once more")
		}
		return &scheduler.PauseError{For: time.Hour, Requests: []ratelimit.Request{budget.For("k")}}
	}
	jobs := sched.Jobs(j.client(t, sched))
	for name, cancel := range map[string]func(id int64) error{
		"by its Jobs": func(id int64) error {
			return pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error {
				_, err := jobs.CancelTx(t.Context(), tx, id)
				return err
			})
		},
		"by others": func(id int64) error { _, err := f.client.JobCancel(t.Context(), id); return err },
		"deleted":   func(id int64) error { _, err := f.client.JobDelete(t.Context(), id); return err },
	} {
		if err := f.limiter.Autocommit(f.pool).Resume(t.Context(), budget.For("k")); err != nil {
			t.Fatal(err)
		}
		id := f.insertBy(t, jobs, sendArgs{payer(scheduler.PerJob)}, budget.For("k").Count(100)).Job.Job.ID
		eventually(t, "it is put back", func() bool { return f.job(t, id).State == rivertype.JobStateScheduled })
		time.Sleep(2500 * time.Millisecond) // the watch has seen it
		if err := cancel(id); err != nil {
			t.Fatal(name, err)
		}
	}
	time.Sleep(3 * time.Second)
	if n := f.settlements(t); n != 0 {
		t.Errorf("%d gave back what they took", n)
	}
	f.wantLeft(t, budget.For("k"), 700)
}

// Behind the scheduler's back.
func TestJobsThatAreCancelledOrDeletedByOthersGiveBackWhatTheyTook(t *testing.T) {
	t.Parallel()
	for name, remove := range map[string]func(f *fixture, id int64) error{
		"Cancelled": func(f *fixture, id int64) error { _, err := f.client.JobCancel(context.Background(), id); return err },
		"Deleted":   func(f *fixture, id int64) error { _, err := f.client.JobDelete(context.Background(), id); return err },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, sched, j := exact(t)
			jobs := sched.Jobs(j.client(t, sched))
			limit := ratelimit.MustDefine("behind", ratelimit.TokenBucket{Rate: 100, Period: time.Hour})
			var ids []int64
			var dues []time.Time
			for i := range 4 {
				job := f.insertBy(t, jobs, sendArgs{i}, limit.For("k").Count(100).OrReserve()).Job.Job
				ids, dues = append(ids, job.ID), append(dues, job.ScheduledAt)
			}
			j.await(t, 1)
			time.Sleep(5 * time.Second) // the watch has seen them all
			if err := remove(f, ids[1]); err != nil {
				t.Fatal(err)
			}
			eventually(t, "it gives back what it took", func() bool { return f.left(t, limit.For("k")) > -201 })
			eventually(t, "those behind come earlier", func() bool {
				return f.job(t, ids[2]).ScheduledAt.Sub(dues[1]).Abs() < 10*time.Millisecond &&
					f.job(t, ids[3]).ScheduledAt.Sub(dues[2]).Abs() < 10*time.Millisecond
			})
			time.Sleep(3 * time.Second)
			if n, left := f.settlements(t), f.left(t, limit.For("k")); n != 1 || left > -199 {
				t.Errorf("%d settlements, %v left", n, left)
			}
		})
	}
}

// Metadata is anybody's: a due time that is no time is no ticket, and keeps nobody from looking after the others.
func TestOddMetadataHoldsUpNothing(t *testing.T) {
	t.Parallel()
	for name, odd := range map[string]string{"Number": `1e300`, "Past": `-9e18`, "Text": `"soon"`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, sched, j := exact(t)
			opts := &river.InsertOpts{Metadata: []byte(`{"weir":{"due":` + odd + `}}`), ScheduledAt: time.Now().Add(time.Hour)}
			if _, err := f.client.Insert(t.Context(), sendArgs{1}, opts); err != nil {
				t.Fatal(err)
			}
			jobs := sched.Jobs(j.client(t, sched))
			limit := ratelimit.MustDefine("odd", ratelimit.TokenBucket{Rate: 100, Period: time.Hour, Capacity: ratelimit.Tokens(0)})
			id := f.insertBy(t, jobs, sendArgs{0}, limit.For("k").Count(100).OrReserve()).Job.Job.ID
			time.Sleep(5 * time.Second) // the watch has seen it
			if _, err := f.client.JobDelete(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			deadline := time.Now().Add(15 * time.Second)
			for f.settlements(t) == 0 && time.Now().Before(deadline) {
				time.Sleep(50 * time.Millisecond)
			}
			if n := f.settlements(t); n != 1 {
				t.Errorf("%d settlements", n)
			}
		})
	}
}
