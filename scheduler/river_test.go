package scheduler_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// River's promises hold for reserved jobs as they do for scheduled ones. Each of these tests runs
// twice: with reserved jobs and clients from Configure, and with scheduled jobs on plain River. No
// assertion is about how long something takes.

// setting is one of the two.
type setting struct {
	f     *fixture
	j     *journal
	sched *scheduler.Scheduler
	plain bool
	keys  atomic.Int64
}

// beside runs a test in both settings.
func beside(t *testing.T, test func(t *testing.T, s *setting)) {
	t.Helper()
	besideOn(t, func(t *testing.T) *pgxpool.Pool { return pgtest.Pool(t) }, test)
}

// besideOn is beside on pools with other settings.
func besideOn(t *testing.T, pool func(t *testing.T) *pgxpool.Pool, test func(t *testing.T, s *setting)) {
	t.Helper()
	t.Parallel()
	for name, plain := range map[string]bool{"Configured": false, "PlainRiver": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setUpOn(t, pool(t), scheduler.Config{})
			sched := scheduler.New(f.limiter, scheduler.Config{Jitter: -1})
			test(t, &setting{f: f, j: newJournal(f), sched: sched, plain: plain})
		})
	}
}

// client starts a client as the setting has them.
func (s *setting) client(t testing.TB, configure ...func(*river.Config)) *river.Client[pgx.Tx] {
	t.Helper()
	if s.plain {
		return s.j.client(t, nil, configure...)
	}
	return s.j.client(t, s.sched, configure...)
}

// workers sets how many jobs the default queue of a client runs at once.
func workers(n int) func(*river.Config) {
	return func(c *river.Config) { c.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: n}} }
}

// key names a bucket from which no other job of the test takes.
func (s *setting) key() ratelimit.Request { return wait.For(fmt.Sprint("key ", s.keys.Add(1))) }

// insert inserts a job that is due at an instant. If it is reserved, its tokens come shortly
// before: as they would be there at once if it paid anew, no job is put off that is late.
func (s *setting) insert(
	t testing.TB, client *river.Client[pgx.Tx], n int, at time.Time, opts *river.InsertOpts,
) *rivertype.JobInsertResult {
	t.Helper()
	return s.insertOn(t, client, n, at, opts, s.key())
}

func (s *setting) insertOn(
	t testing.TB, client *river.Client[pgx.Tx], n int, at time.Time, opts *river.InsertOpts, key ratelimit.Request,
) (job *rivertype.JobInsertResult) {
	t.Helper()
	var o river.InsertOpts
	if opts != nil {
		o = *opts
	}
	o.ScheduledAt = at
	if s.plain {
		job, err := client.Insert(t.Context(), sendArgs{n}, &o)
		if err != nil {
			t.Fatal(err)
		}
		return job
	}
	ahead := min(at.Sub(s.f.now(t))/2, 900*time.Millisecond)
	s.f.inTx(t, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := s.f.limiter.RateLimit(ctx, tx, key.Count(1000)); err != nil {
			return err
		}
		in, err := s.sched.Jobs(client).InsertTx(ctx, tx, sendArgs{n}, &o,
			key.Count(max(1, 1000*ahead.Seconds())).OrReserve())
		if err == nil {
			job, err = in.Job, in.Err()
		}
		return err
	})
	return job
}

// insertDue inserts jobs that are due at one instant.
func (s *setting) insertDue(
	t testing.TB, client *river.Client[pgx.Tx], jobs int, in time.Duration, opts *river.InsertOpts,
) map[int64]time.Time {
	t.Helper()
	at := s.f.now(t).Add(in)
	due := map[int64]time.Time{}
	for n := range jobs {
		job := s.insert(t, client, n, at, opts).Job
		due[job.ID] = job.ScheduledAt
	}
	return due
}

// count is the answer to SELECT count(*) FROM river_job WHERE ...
func (f *fixture) count(t testing.TB, where string, args ...any) (n int) {
	t.Helper()
	if err := f.pool.QueryRow(t.Context(), `SELECT count(*) FROM river_job WHERE `+where, args...).
		Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// completed waits until so many jobs are completed, and no others are left.
func (f *fixture) completed(t testing.TB, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d jobs are completed", n), func() bool {
		return f.count(t, `state = 'completed'`) == n
	})
	if left := f.count(t, `state <> 'completed'`); left != 0 {
		t.Errorf("%d other jobs are left", left)
	}
}

// fetchable is what can be fetched.
const fetchable = `state = 'available' AND scheduled_at <= now()`

// No client takes more jobs than it has free workers: as each job runs until all do, this never
// ends otherwise.
func TestJobsAreSpreadByFreeWorkers(t *testing.T) {
	beside(t, func(t *testing.T, s *setting) {
		var running atomic.Int64
		all := make(chan struct{})
		s.j.work = func(ctx context.Context, _ *river.Job[sendArgs]) error {
			if running.Add(1) == 20 {
				close(all)
			}
			select {
			case <-all:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		one := s.client(t, workers(10))
		s.client(t, workers(10))
		due := s.insertDue(t, one, 20, time.Second, nil)
		punctual(t, s.j.await(t, 20), due)
		s.f.completed(t, 20)
		if n := s.f.count(t, `attempted_by = ARRAY[$1::text]`, one.ID()); n != 10 {
			t.Errorf("%d of 20 jobs ran at a client of 10 workers, beside another such", n)
		}
	})
}

// gate has each job of a journal wait to be let go.
func (l *journal) gate(t testing.TB) (letGo func()) {
	ticket := make(chan struct{})
	l.work = func(ctx context.Context, _ *river.Job[sendArgs]) error {
		select {
		case <-ticket:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return func() {
		t.Helper()
		select {
		case ticket <- struct{}{}:
		case <-time.After(patience):
			t.Fatal("no job ran that could be let go")
		}
	}
}

// What is urgent starts next, however many reserved jobs are due.
func TestAnUrgentJobStartsBeforeReservedOnes(t *testing.T) {
	beside(t, func(t *testing.T, s *setting) {
		letGo := s.j.gate(t)
		client := s.client(t, workers(2))
		s.insertDue(t, client, 12, time.Second, &river.InsertOpts{Priority: 4})
		s.j.await(t, 2)
		eventually(t, "the others are due", func() bool { return s.f.count(t, fetchable) == 10 })
		if _, err := client.Insert(t.Context(), sendArgs{100}, &river.InsertOpts{Priority: 1}); err != nil {
			t.Fatal(err)
		}
		letGo()
		if next := s.j.await(t, 3)[2]; next.n != 100 {
			t.Errorf("job %d was next", next.n)
		}
		for range 12 {
			letGo()
		}
		s.f.completed(t, 13)
	})
}

// Jobs that are due start by priority, time and id: the times are those of the rows, from which a
// job that is late by some seconds may be moved when it pays anew.
func TestReservedJobsStartInRiversOrder(t *testing.T) {
	beside(t, func(t *testing.T, s *setting) {
		letGo := s.j.gate(t)
		client := s.client(t, workers(1))
		if _, err := client.Insert(t.Context(), sendArgs{100}, nil); err != nil {
			t.Fatal(err)
		}
		s.j.await(t, 1)
		at := s.f.now(t).Add(500 * time.Millisecond)
		priorities := map[int64]int{}
		for n := range 12 {
			job := s.insert(t, client, n, at.Add(time.Duration(n*5%3)*time.Millisecond),
				&river.InsertOpts{Priority: 1 + n*7%4}).Job
			priorities[job.ID] = job.Priority
		}
		eventually(t, "they are due", func() bool { return s.f.count(t, fetchable) == 12 })
		before := 0
		for n := range 12 {
			var next int64
			if err := s.f.pool.QueryRow(t.Context(),
				`SELECT id FROM river_job WHERE `+fetchable+` ORDER BY priority, scheduled_at, id`).
				Scan(&next); err != nil {
				t.Fatal(err)
			}
			letGo()
			got := s.j.await(t, n+2)[n+1]
			if got.id != next || priorities[got.id] < before {
				t.Errorf("start %d is of job %d, of priority %d after %d; want job %d", n, got.id,
					priorities[got.id], before, next)
			}
			before = priorities[got.id]
		}
		letGo()
		s.f.completed(t, 13)
	})
}

// Jobs that wait while River's leader changes start once, and none early.
func TestALeaderChangesWhileJobsWait(t *testing.T) {
	beside(t, func(t *testing.T, s *setting) {
		one := s.client(t)
		s.client(t)
		term := func() (who string, since time.Time) {
			eventually(t, "there is a leader", func() bool {
				return s.f.pool.QueryRow(t.Context(),
					`SELECT leader_id, elected_at FROM river_leader`).Scan(&who, &since) == nil
			})
			return who, since
		}
		due := map[int64]time.Time{}
		now := s.f.now(t)
		for n := range 30 {
			job := s.insert(t, one, n, now.Add(time.Duration(n)*100*time.Millisecond), nil).Job
			due[job.ID] = job.ScheduledAt
		}
		for range 2 {
			_, before := term()
			var asked time.Time
			eventually(t, "a leader is elected", func() bool {
				if time.Since(asked) > 3*time.Second { // one that does not listen yet does not hear it
					asked = time.Now()
					if err := one.Notify().RequestResign(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				_, since := term()
				return since.After(before)
			})
		}
		punctual(t, s.j.await(t, 30), due)
		s.f.completed(t, 30)
	})
}

// A queue that is added to a client that runs works reserved jobs.
func TestAQueueIsAddedWhileAClientRuns(t *testing.T) {
	beside(t, func(t *testing.T, s *setting) {
		client := s.client(t)
		due := map[int64]time.Time{}
		insert := func(from int) {
			now := s.f.now(t)
			for n := range 10 {
				job := s.insert(t, client, from+n, now.Add(time.Duration(n)*100*time.Millisecond),
					&river.InsertOpts{Queue: "added"}).Job
				due[job.ID] = job.ScheduledAt
			}
		}
		insert(0)
		if err := client.Queues().Add("added", river.QueueConfig{MaxWorkers: 3}); err != nil {
			t.Fatal(err)
		}
		insert(10)
		s.onceAndNotEarly(t, s.j.await(t, 20), due)
		s.f.completed(t, 20)
	})
}

// onceAndNotEarly is punctual for any queue.
func (s *setting) onceAndNotEarly(t *testing.T, starts []start, due map[int64]time.Time) {
	t.Helper()
	starts = slices.Clone(starts)
	for i := range starts {
		starts[i].queue = river.QueueDefault
	}
	punctual(t, starts, due)
}

// Clients that only poll start each job once, and none early.
func TestClientsThatPoll(t *testing.T) {
	beside(t, func(t *testing.T, s *setting) {
		poll := func(c *river.Config) { c.PollOnly, c.FetchPollInterval = true, 100*time.Millisecond }
		client := s.client(t, poll)
		s.client(t, poll)
		due := map[int64]time.Time{}
		now := s.f.now(t)
		for n := range 20 {
			job := s.insert(t, client, n, now.Add(time.Duration(n)*100*time.Millisecond), nil).Job
			due[job.ID] = job.ScheduledAt
		}
		punctual(t, s.j.await(t, 20), due)
		s.f.completed(t, 20)
	})
}
