package scheduler_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/scheduler"
)

// insertFrom inserts a job that is due now and takes a hundred tokens of the budget.
func (s *setting) insertFrom(
	t testing.TB, client *river.Client[pgx.Tx], n int, opts *river.InsertOpts,
) *rivertype.JobInsertResult {
	t.Helper()
	if s.plain {
		job, err := client.Insert(t.Context(), sendArgs{n}, opts)
		if err != nil {
			t.Fatal(err)
		}
		return job
	}
	var in *scheduler.Inserted
	s.f.inTx(t, func(ctx context.Context, tx pgx.Tx) (err error) {
		in, err = s.sched.Jobs(client).InsertTx(ctx, tx, sendArgs{n}, opts, budget.For("k").Count(100).OrReserve())
		return err
	})
	return in.Job
}

// charged checks how much was taken of the budget.
func (s *setting) charged(t testing.TB, want float64) {
	t.Helper()
	if !s.plain {
		s.f.wantLeft(t, budget.For("k"), 1000-want)
	}
}

// An attempt whose client was killed is rescued: the job is worked again, and its next attempt
// pays.
func TestAKilledAttemptIsRescued(t *testing.T) {
	beside(t, func(t *testing.T, s *setting) {
		id := s.insertFrom(t, s.f.client, 1, nil).Job.ID
		if _, err := s.f.pool.Exec(t.Context(),
			`UPDATE river_job SET state = 'running', attempt = 1, attempted_by = '{killed}',
			attempted_at = now() - interval '1 hour' WHERE id = $1`, id); err != nil {
			t.Fatal(err)
		}
		s.client(t, func(c *river.Config) { c.JobTimeout, c.RescueStuckJobsAfter = time.Minute, 2*time.Minute })
		if start := s.j.await(t, 1)[0]; start.attempt != 2 {
			t.Errorf("%+v", start)
		}
		s.f.completed(t, 1)
		if job := s.f.job(t, id); job.Attempt != 2 || len(job.Errors) != 1 {
			t.Errorf("attempt %d, with %d errors", job.Attempt, len(job.Errors))
		}
		s.charged(t, 200)
	})
}

// A waiting job that is cancelled or deleted never starts; a running one is interrupted by the one,
// and refuses the other.
func TestJobsAreCancelledAndDeleted(t *testing.T) {
	beside(t, func(t *testing.T, s *setting) {
		s.j.work = func(ctx context.Context, job *river.Job[sendArgs]) error {
			if job.Args.N == 0 {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		client := s.client(t)
		now := s.f.now(t)
		running := s.insert(t, client, 0, now, nil).Job.ID
		var waiting [4]int64 // two in either state that they may have on the configured side
		for i := range waiting {
			waiting[i] = s.insert(t, client, 1+i,
				s.f.now(t).Add([]time.Duration{20 * time.Second, time.Hour}[i%2]), nil).Job.ID
		}
		s.j.await(t, 1)
		for i, id := range waiting {
			var job *rivertype.JobRow
			var err error
			if i < 2 {
				job, err = client.JobCancel(t.Context(), id)
			} else {
				job, err = client.JobDelete(t.Context(), id)
			}
			if err != nil || i < 2 && job.State != rivertype.JobStateCancelled {
				t.Errorf("job %d: %v %+v", i, err, job)
			}
		}
		if _, err := client.JobDelete(t.Context(), running); !errors.Is(err, rivertype.ErrJobRunning) {
			t.Errorf("a running job was deleted: %v", err)
		}
		if _, err := client.JobCancel(t.Context(), running); err != nil {
			t.Fatal(err)
		}
		eventually(t, "three are cancelled", func() bool { return s.f.count(t, `state = 'cancelled'`) == 3 })
		// Had one of them been moved to an earlier time, it would start now at the latest.
		s.f.exec(t, `UPDATE river_job SET scheduled_at = now()`)
		last := s.insert(t, client, 100, now.Add(2*time.Second), nil).Job.ID
		if starts := s.j.await(t, 2); starts[0].id != running || starts[1].id != last {
			t.Errorf("%+v", starts)
		}
		s.f.completedOf(t, last)
		if n := s.f.count(t, `true`); n != 4 {
			t.Errorf("%d jobs are left", n)
		}
	})
}

func (f *fixture) completedOf(t testing.TB, id int64) {
	t.Helper()
	eventually(t, "the job is completed", func() bool { return f.job(t, id).State == rivertype.JobStateCompleted })
}

func (f *fixture) exec(t testing.TB, sql string) {
	t.Helper()
	if _, err := f.pool.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

// A unique job is found in whichever state it waits, as it runs, and until it is completed.
func TestAJobIsUniqueWhileItWaitsAndRuns(t *testing.T) {
	beside(t, func(t *testing.T, s *setting) {
		letGo := s.j.gate(t)
		client := s.client(t)
		unfinished := []rivertype.JobState{
			rivertype.JobStateAvailable, rivertype.JobStatePending, rivertype.JobStateRetryable,
			rivertype.JobStateRunning, rivertype.JobStateScheduled,
		}
		opts := &river.InsertOpts{UniqueOpts: river.UniqueOpts{ByArgs: true, ByState: unfinished}}
		key := s.key()
		insert := func(in time.Duration) *rivertype.JobInsertResult {
			return s.insertOn(t, client, 1, s.f.now(t).Add(in), opts, key)
		}
		first := insert(1500 * time.Millisecond)
		again := []*rivertype.JobInsertResult{insert(time.Hour)}
		eventually(t, "it is due", func() bool { return s.f.count(t, `scheduled_at <= now()`) == 1 })
		s.j.await(t, 1)
		again = append(again, insert(time.Hour))
		for i, job := range again {
			if !job.UniqueSkippedAsDuplicate || job.Job.ID != first.Job.ID {
				t.Errorf("insert %d: %+v", i, job)
			}
		}
		letGo()
		s.f.completed(t, 1)
		if next := insert(0); first.UniqueSkippedAsDuplicate || next.UniqueSkippedAsDuplicate ||
			next.Job.ID == first.Job.ID {
			t.Errorf("%+v, then %+v", first, next)
		}
		letGo()
		s.f.completed(t, 2)
		if n := len(s.j.await(t, 2)); n != 2 {
			t.Errorf("%d starts of two jobs", n)
		}
	})
}

// A worker completes its job in a transaction of its own: what it settles and writes there is
// committed with it, or is not, if that is rolled back.
func TestAWorkerCompletesItsJobInATransaction(t *testing.T) {
	beside(t, func(t *testing.T, s *setting) {
		undo := errors.New("undo")
		s.j.work = func(ctx context.Context, job *river.Job[sendArgs]) error {
			err := pgx.BeginFunc(ctx, s.f.pool, func(tx pgx.Tx) error {
				if r, ok := scheduler.ReservationOf(job.JobRow); ok {
					if settled, err := s.f.limiter.Settle(ctx, tx, r,
						budget.For("k").Count(30)); err != nil || !settled {
						return errors.Join(err, errors.New("was settled before"))
					}
				} else if !s.plain {
					return errors.New("nothing reserved")
				}
				done, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job)
				if err == nil && done.State != rivertype.JobStateCompleted {
					err = errors.New("it is " + string(done.State))
				}
				if err == nil && job.Attempt == 1 {
					return undo
				}
				return err
			})
			if err == nil {
				return errors.New("an error after it is completed changes nothing")
			}
			return err
		}
		id := s.insertFrom(t, s.client(t), 1, nil).Job.ID
		s.f.completed(t, 1)
		job := s.f.job(t, id)
		if n := len(s.j.await(t, 2)); n != 2 || job.Attempt != 2 || len(job.Errors) != 1 ||
			!strings.Contains(job.Errors[0].Error, undo.Error()) {
			t.Errorf("%d starts; attempt %d, errors %+v", n, job.Attempt, job.Errors)
		}
		s.charged(t, 130) // the first attempt is not settled
	})
}

// A worker's own snoozes use up no attempt and no tokens, and the job is due when its worker says.
func TestAWorkerSnoozes(t *testing.T) {
	beside(t, func(t *testing.T, s *setting) {
		const times = 3
		var snoozes atomic.Int64
		s.j.work = func(context.Context, *river.Job[sendArgs]) error {
			if snoozes.Add(1) <= times {
				return river.JobSnooze(300 * time.Millisecond)
			}
			return nil
		}
		id := s.insertFrom(t, s.client(t), 1, &river.InsertOpts{MaxAttempts: 1}).Job.ID
		starts := s.j.await(t, times+1)
		s.f.completed(t, 1)
		job := s.f.job(t, id)
		if n := woken(t, job); len(starts) != times+1 || n != times || job.Attempt != 1 || len(job.Errors) != 0 {
			t.Errorf("%d starts, %d snoozes, attempt %d, errors %+v", len(starts), n, job.Attempt, job.Errors)
		}
		for i, start := range starts {
			if start.attempt != 1 || start.at.Before(start.due) || i > 0 && start.due.Before(starts[i-1].at) {
				t.Errorf("%+v", start)
			}
		}
		s.charged(t, 100)
	})
}

// An attempt that takes longer than its timeout is cancelled and retried.
func TestAnAttemptTimesOut(t *testing.T) {
	beside(t, func(t *testing.T, s *setting) {
		s.j.work = func(ctx context.Context, _ *river.Job[sendArgs]) error {
			<-ctx.Done()
			return ctx.Err()
		}
		client := s.client(t, func(c *river.Config) { c.JobTimeout = 300 * time.Millisecond })
		id := s.insertFrom(t, client, 1, &river.InsertOpts{MaxAttempts: 2}).Job.ID
		eventually(t, "it is discarded", func() bool { return s.f.job(t, id).State == rivertype.JobStateDiscarded })
		job := s.f.job(t, id)
		if job.Attempt != 2 || len(job.Errors) != 2 {
			t.Errorf("attempt %d, errors %+v", job.Attempt, job.Errors)
		}
		for _, e := range job.Errors {
			if !strings.Contains(e.Error, context.DeadlineExceeded.Error()) {
				t.Errorf("%+v", e)
			}
		}
		s.charged(t, 200)
	})
}

// A completed job is worked again after a retry by hand, and pays again.
func TestACompletedJobIsRetriedByHand(t *testing.T) {
	beside(t, func(t *testing.T, s *setting) {
		client := s.client(t)
		id := s.insertFrom(t, client, 1, nil).Job.ID
		s.f.completed(t, 1)
		if job, err := client.JobRetry(t.Context(), id); err != nil || job.State != rivertype.JobStateAvailable {
			t.Errorf("%v %+v", err, job)
		}
		if starts := s.j.await(t, 2); starts[1].attempt != 2 {
			t.Errorf("%+v", starts)
		}
		s.f.completed(t, 1)
		s.charged(t, 200)
	})
}
