package scheduler_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// startsAt checks that a job does not start before an instant that can be reckoned, and reports
// whether it was due well before its place if it had not moved up, which is three seconds later: it
// is not where a round was that late.
func (j *journal) startsAt(t *testing.T, id int64, want time.Time) (inTime bool) {
	t.Helper()
	s := j.startsAfter(t, id, want)
	// A client that has only just started finds out within its first rounds who may move up.
	j.mu.Lock()
	defer j.mu.Unlock()
	slack := max(2*time.Second, j.from.Add(2*time.Second).Sub(want))
	d := s.due.Sub(want)
	if d > slack {
		t.Logf("job %d was due at %v, %v after where it should be", id, s.due, d)
	}
	return d <= slack
}

// startsBefore is for a job that moves far, as what has gone was large: then it need not be told
// apart from one that stays, or does not move by all of that, by how fast the first rounds are.
func (j *journal) startsBefore(t *testing.T, id int64, want, unmoved time.Time) {
	t.Helper()
	if s := j.startsAfter(t, id, want); !s.due.Before(unmoved) {
		t.Errorf("job %d was due at %v, %v after where it should be", id, s.due, s.due.Sub(want))
	}
}

// startsAfter waits for a job's start, and checks that it is not before it is due, which is not
// before the time wanted.
func (j *journal) startsAfter(t *testing.T, id int64, want time.Time) (s start) {
	t.Helper()
	eventually(t, "the job starts", func() bool {
		for _, s = range j.await(t, 0) {
			if s.id == id {
				return true
			}
		}
		return false
	})
	if d := s.due.Sub(want); d < -50*time.Millisecond || s.at.Before(s.due) {
		t.Errorf("job %d started at %v, due at %v, %v from where it should be", id, s.at, s.due, d)
	}
	return s
}

func (f *fixture) cancel(t *testing.T, jobs *scheduler.Jobs, id int64) {
	t.Helper()
	f.inRC(t, func(tx pgx.Tx) error {
		job, err := jobs.CancelTx(t.Context(), tx, id)
		if err == nil && job.State != rivertype.JobStateCancelled {
			t.Error(job.State)
		}
		return err
	})
}

// The cancellation writes to no job but its own; those behind come forward when their time is near.
func TestACancelledJobGivesBackWhatItTook(t *testing.T) {
	t.Parallel()
	untilInTime(t, givesBackWhatItTook)
}

func givesBackWhatItTook(t *testing.T) (inTime bool) {
	t.Helper()
	f, sched, j := exact(t)
	limit := ratelimit.MustDefine("cancel",
		ratelimit.TokenBucket{Rate: 1, Period: time.Second, Capacity: ratelimit.Tokens(3)})
	jobs := sched.Jobs(f.client)
	var ids []int64
	var dues []time.Time
	for i := range 5 {
		job := f.insertBy(t, jobs, sendArgs{i}, limit.For("k").Count(3).OrReserve()).Job.Job
		ids, dues = append(ids, job.ID), append(dues, job.ScheduledAt)
	}
	began := dues[1].Add(-3 * time.Second) // when the first one emptied the bucket
	if first := f.job(t, ids[0]).CreatedAt; began.Sub(first) > time.Second {
		return false // it was filling up again when the second one came
	}
	left := func(want float64) {
		t.Helper()
		least := min(3, want+f.now(t).Sub(began).Seconds())
		got := f.left(t, limit.For("k"))
		most := min(3, want+f.now(t).Sub(began).Seconds())
		if got < least-0.1 || got > most+0.1 {
			t.Errorf("%v left, want %v to %v", got, least, most)
		}
	}
	left(-12)
	f.cancel(t, jobs, ids[2])
	left(-9)
	f.cancel(t, jobs, ids[2]) // changes nothing
	left(-9)
	for _, i := range []int{1, 3, 4} {
		if job := f.job(t, ids[i]); !job.ScheduledAt.Equal(dues[i]) {
			t.Errorf("job %d was moved to %v in the transaction of another one", i, job.ScheduledAt)
		}
	}
	f.cancel(t, jobs, ids[0]) // was granted at once, and has not been started
	left(-6)
	j.client(t, sched)
	third, fourth := j.startsAt(t, ids[3], dues[1]), j.startsAt(t, ids[4], dues[2])
	first := slices.MinFunc(j.await(t, 3), func(a, b start) int { return a.due.Compare(b.due) })
	if !third || !fourth { // the first one may have been so late that it paid anew, behind them
		return false
	}
	late := first.at.After(dues[1]) // so late that its own time had come, too
	if first.id != ids[1] || first.due.After(dues[1]) || !late && !first.due.Before(dues[1]) {
		t.Errorf("the first to start was %+v, due at %v before", first, dues[1])
	}
	return true
}

// The places that several jobs have left add up, whichever of them left first.
func TestThoseBehindSeveralCancelledJobsMoveUpByAllOfThem(t *testing.T) {
	t.Parallel()
	for name, order := range map[string][]int{"Forwards": {0, 2}, "Backwards": {2, 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			untilInTime(t, func(t *testing.T) bool {
				f, sched, j := exact(t)
				limit := ratelimit.MustDefine("several",
					ratelimit.TokenBucket{Rate: 1, Period: time.Second, Capacity: ratelimit.Tokens(0)})
				jobs := sched.Jobs(f.client)
				var ids []int64
				var dues []time.Time
				insert := func() {
					job := f.insertBy(t, jobs, sendArgs{len(ids)}, limit.For("k").Count(3).OrReserve()).Job.Job
					ids, dues = append(ids, job.ID), append(dues, job.ScheduledAt)
				}
				for range 4 { // at 3, 6, 9, 12 s
					insert()
				}
				for _, i := range order {
					f.cancel(t, jobs, ids[i])
				}
				insert() // stands behind no gap
				if f.now(t).After(dues[0]) {
					return false
				}
				if d := dues[4].Sub(dues[2]); d.Abs() > 100*time.Millisecond {
					t.Errorf("a newcomer is due %v from the end of the line", d)
				}
				j.client(t, sched)
				first := j.startsAt(t, ids[1], dues[0])
				second := j.startsAt(t, ids[3], dues[1])
				return j.startsAt(t, ids[4], dues[4]) && first && second
			})
		})
	}
}

// A job that waits in a pause, or longer for another limit, has no more jobs before it than there
// are.
func TestACancelledJobMovesUpWhatWaitsForSomethingElse(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	jobs := sched.Jobs(f.client)
	var limits [3]ratelimit.Limit
	for i, name := range []string{"pausedOfThree", "oneOfThree", "otherOfThree"} {
		limits[i] = ratelimit.MustDefine(name,
			ratelimit.TokenBucket{Rate: 1, Period: time.Second, Capacity: ratelimit.Tokens(0)})
	}
	paused, one, other := limits[0].For("k"), limits[1].For("k"), limits[2].For("k")
	insert := func(requests ...ratelimit.Request) *rivertype.JobRow {
		t.Helper()
		return f.insertBy(t, jobs, sendArgs{}, requests...).Job.Job
	}

	first, second := insert(paused.Count(60).OrReserve()), insert(paused.Count(5).OrReserve())
	if err := f.limiter.Autocommit(f.pool).Pause(t.Context(), 10*time.Hour, paused); err != nil {
		t.Fatal(err)
	}
	f.cancel(t, jobs, first.ID)
	f.inTx(t, func(ctx context.Context, tx pgx.Tx) error { return f.limiter.Resume(ctx, tx, paused) })
	state, err := f.limiter.Autocommit(f.pool).Value(t.Context(), paused)
	if err != nil {
		t.Fatal(err)
	}

	ofOne, ofOther := insert(one.Count(60).OrReserve()), insert(other.Count(64).OrReserve())
	both := insert(one.Count(4).OrReserve(), other.Count(1).OrReserve()) // at 64 and at 65 s
	f.cancel(t, jobs, ofOne.ID)
	f.cancel(t, jobs, ofOther.ID)
	j.client(t, sched)
	j.startsBefore(t, both.ID, ofOne.ScheduledAt.Add(-56*time.Second), ofOne.ScheduledAt)
	later := first.ScheduledAt.Add(state.Delay) // as long as the pause has been
	j.startsBefore(t, second.ID, later.Add(-55*time.Second), later)
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

// So does a job of a limited worker that has taken, and was put off until its tokens exist.
func TestAJobOfALimitedWorkerThatIsCancelledAsItWaitsGivesBackWhatItTook(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	limit := ratelimit.MustDefine("moment",
		ratelimit.TokenBucket{Rate: 10, Period: time.Second, Capacity: ratelimit.Tokens(0)})
	j.limited(func(int) []ratelimit.Request { return []ratelimit.Request{limit.For("k").Count(600)} })
	client := j.client(t, sched)
	f.enqueue(t, 1)
	eventually(t, "it has taken", func() bool { return f.left(t, limit.For("k")) < -500 })
	eventually(t, "it is put off", func() bool { return f.job(t, 1).State == rivertype.JobStateScheduled })
	if _, err := client.JobCancel(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	eventually(t, "what it took is given back", func() bool { return f.settlements(t) == 1 })
	j.never(t, 100*time.Millisecond)
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

// A job that is paid once has used what it took with its first attempt, whenever it is cancelled
// then.
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
	var id int64
	f.inTx(t, func(ctx context.Context, tx pgx.Tx) error {
		args := sendArgs{payer(scheduler.PerJob)}
		in, err := jobs.InsertTx(ctx, tx, args, nil, budget.For("k").Count(100))
		if err != nil {
			return err
		}
		id = in.Job.Job.ID
		// This one occupies the worker as soon as it is free: inserted later, on a busy machine it
		// would come when the other one has used up its attempts.
		_, err = jobs.InsertTx(ctx, tx, sendArgs{1}, nil, wait.For("k"))
		return err
	})
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
	rig.Large(t)
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
		f.seen(t)
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
