package scheduler_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// twice is a job whose two attempts write a row each, and complete it.
type twice struct {
	*fixture
	*journal
	id       int64
	may      [3]chan struct{} // attempts 1 and 2 go on
	reached  chan pgx.Tx      // they have, unless that failed, and have not committed
	ended    chan error
	attempts int
}

func setUpTwice(t *testing.T) *twice {
	f, sched, j := exact(t)
	s := &twice{fixture: f, journal: j, reached: make(chan pgx.Tx), ended: make(chan error)}
	s.may[1], s.may[2] = make(chan struct{}), make(chan struct{})
	if _, err := f.pool.Exec(t.Context(), `CREATE TABLE done (attempt int NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	j.work = func(ctx context.Context, job *river.Job[sendArgs]) error {
		err := pgx.BeginFunc(ctx, f.pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `INSERT INTO done VALUES ($1)`, job.Attempt); err != nil {
				return err
			}
			<-s.may[job.Attempt]
			if err := sched.CompleteTx(ctx, tx, job.JobRow, budget.For("k").Count(float64(job.Attempt))); err != nil {
				return err
			}
			s.reached <- tx
			<-s.may[job.Attempt]
			return nil
		})
		s.ended <- err
		return err
	}
	j.client(t, sched)
	s.id = f.insertBy(t, sched.Jobs(f.client), sendArgs{1}, budget.For("k").Count(100)).Job.Job.ID
	s.started(t)
	return s
}

func (s *twice) started(t *testing.T) {
	t.Helper()
	s.attempts++
	s.await(t, s.attempts)
}

// rescue has the job start once more at a time, as River does with one that it thinks stuck.
func (s *twice) rescue(t testing.TB, at time.Time) {
	t.Helper()
	const rescue = `UPDATE river_job SET state = CASE WHEN $2 > now() THEN 'retryable' ELSE 'available' END::river_job_state,
		scheduled_at = $2 WHERE id = $1`
	if _, err := s.pool.Exec(t.Context(), rescue, s.id, at); err != nil {
		t.Fatal(err)
	}
}

// completes has an attempt complete the job.
func (s *twice) completes(t *testing.T, n int) {
	t.Helper()
	s.may[n] <- struct{}{}
	<-s.reached
	s.may[n] <- struct{}{}
	if err := <-s.ended; err != nil {
		t.Errorf("attempt %d: %v", n, err)
	}
}

// fails has an attempt find that it cannot.
func (s *twice) fails(t *testing.T, n int) {
	t.Helper()
	s.may[n] <- struct{}{}
	select {
	case <-s.ended:
	case <-s.reached:
		t.Errorf("attempt %d has completed the job", n)
		s.may[n] <- struct{}{}
		<-s.ended
	}
}

// completedBy compares which of them has. The other, if it has begun, has used what it took.
func (s *twice) completedBy(t *testing.T, attempt int) {
	t.Helper()
	eventually(t, "the job is completed", func() bool {
		return s.job(t, s.id).State == rivertype.JobStateCompleted
	})
	var n, by int
	if err := s.pool.QueryRow(t.Context(), `SELECT count(*), max(attempt) FROM done`).Scan(&n, &by); err != nil ||
		n != 1 || by != attempt {
		t.Errorf("done %d times, by attempt %d; want once, by %d: %v", n, by, attempt, err)
	}
	s.wantLeft(t, budget.For("k"), 1000-100*float64(s.attempts-1)-float64(attempt))
}

// Of two attempts of a job that run at once, the first that comes to that completes it.
func TestOneOfTwoAttemptsCompletesAJob(t *testing.T) {
	t.Parallel()
	for _, first := range []int{1, 2} {
		s := setUpTwice(t)
		s.rescue(t, time.Time{})
		s.started(t)
		s.completes(t, first)
		s.fails(t, 3-first)
		s.completedBy(t, first)
	}
}

// The second waits for what becomes of the first.
func TestAnAttemptWaitsForAnotherThatCompletes(t *testing.T) {
	t.Parallel()
	s := setUpTwice(t)
	s.rescue(t, time.Time{})
	s.started(t)
	s.may[1] <- struct{}{}
	tx := <-s.reached
	s.may[2] <- struct{}{}
	eventually(t, "the second waits for the first", func() bool { return rig.IsWaitedFor(t, s.pool, tx) })
	s.may[1] <- struct{}{}
	for range 2 {
		select {
		case err := <-s.ended:
			t.Log(err)
		case <-s.reached:
			t.Error("both have completed the job")
			s.may[2] <- struct{}{}
			<-s.ended
		}
	}
	s.completedBy(t, 1)
}

// An attempt whose job was rescued completes it before the next one starts, which then does not.
func TestAnAttemptWhoseJobWasRescuedCompletesIt(t *testing.T) {
	t.Parallel()
	s := setUpTwice(t)
	s.rescue(t, time.Now().Add(time.Hour))
	s.completes(t, 1)
	s.completedBy(t, 1)
}

// completes has each attempt complete its job, when the test lets it.
func (j *journal) completes(sched *scheduler.Scheduler, used ratelimit.Request) (end chan bool) {
	end = make(chan bool)
	j.work = func(ctx context.Context, job *river.Job[sendArgs]) error {
		<-end
		return pgx.BeginFunc(ctx, j.f.pool, func(tx pgx.Tx) error { return sched.CompleteTx(ctx, tx, job.JobRow, used) })
	}
	return end
}

// If the next one has paid, and waits for its tokens, these are given back.
func TestAJobThatIsCompletedKeepsNothingForItsNextAttempt(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	limit := ratelimit.MustDefine("rare", ratelimit.TokenBucket{Rate: 1, Period: 100 * time.Hour, Capacity: ratelimit.Tokens(1)})
	end := j.completes(sched, limit.For("k").Count(0.5))
	j.client(t, sched)
	id := f.insertBy(t, sched.Jobs(f.client), sendArgs{1}, limit.For("k").OrReserve()).Job.Job.ID
	j.await(t, 1)
	f.exec(t, `UPDATE river_job SET state = 'available', scheduled_at = now()`)
	eventually(t, "the next attempt waits", func() bool { return f.job(t, id).State == rivertype.JobStateScheduled })
	f.wantLeft(t, limit.For("k"), -1)
	end <- true
	eventually(t, "the job is completed", func() bool { return f.job(t, id).State == rivertype.JobStateCompleted })
	f.wantLeft(t, limit.For("k"), 0.5)
}

// If River puts the job off for a second time while it runs, what the attempt itself has taken stays.
// A ticket that says nothing gives nothing back.
func TestAJobThatIsPutOffWhileItRunsKeepsWhatItHasUsed(t *testing.T) {
	t.Parallel()
	for name, metadata := range map[string]string{"ItsTicket": `metadata`, "AnEmptyOne": `'{"weir": {"more": "{\"v\": 1}"}}'`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, sched, j := exact(t)
			j.limited(func(int) []ratelimit.Request { return []ratelimit.Request{budget.For("limited").Count(100)} })
			end := j.completes(sched, budget.For("limited").Count(30))
			j.client(t, sched)
			id := f.insertBy(t, sched.Jobs(f.client), sendArgs{1}, budget.For("inserted").Count(100)).Job.Job.ID
			j.await(t, 1)
			f.exec(t, `UPDATE river_job SET state = 'scheduled', scheduled_at = '2100-01-01', attempt = 0, metadata = `+metadata)
			end <- true
			eventually(t, "the job is completed", func() bool { return f.job(t, id).State == rivertype.JobStateCompleted })
			f.wantLeft(t, budget.For("inserted"), 900)
			f.wantLeft(t, budget.For("limited"), 970)
		})
	}
}

// A job is rescued while its attempt holds the only slot, for which the next attempt waits. If only
// that one might complete the job, it would be rescued as well, and so on.
func TestAnAttemptCompletesAJobThatWaitsForItsSlot(t *testing.T) {
	t.Parallel()
	c := newCrew(t, 1)
	end := make(chan bool)
	c.j.work = func(ctx context.Context, job *river.Job[sendArgs]) error {
		<-end
		return pgx.BeginFunc(ctx, c.pool, func(tx pgx.Tx) error { return c.sched.CompleteTx(ctx, tx, job.JobRow) })
	}
	c.client(5)
	id := c.insert(0, nil).ID
	c.j.await(t, 1)
	if _, err := c.pool.Exec(t.Context(), `UPDATE river_job SET state = 'available', scheduled_at = now(),
		errors = array_append(errors, '{}') WHERE id = $1`, id); err != nil {
		t.Fatal(err)
	}
	c.awaitWaiting(1)
	close(end)
	if starts := c.worked(1); len(starts) != 1 {
		t.Errorf("%d starts", len(starts))
	}
}
