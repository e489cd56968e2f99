package scheduler_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
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

// punctual checks that each job started once and not before it was due, and returns how late, in
// ascending order.
func punctual(t *testing.T, starts []start, due map[int64]time.Time) []time.Duration {
	t.Helper()
	var late []time.Duration
	seen := map[int64]bool{}
	for _, s := range starts {
		if seen[s.id] {
			t.Errorf("job %d started twice", s.id)
		}
		seen[s.id] = true
		if s.at.Before(due[s.id]) {
			t.Errorf("job %d started %v early", s.id, due[s.id].Sub(s.at))
		}
		if s.queue != river.QueueDefault || s.attempt != 1 {
			t.Errorf("job %d ran in queue %s, at attempt %d", s.id, s.queue, s.attempt)
		}
		late = append(late, s.at.Sub(due[s.id]))
	}
	for id := range due {
		if !seen[id] {
			t.Errorf("job %d did not start", id)
		}
	}
	slices.Sort(late)
	return late
}

// Each starts once, in its queue, and not before its time. How late is a benchmark's to say, and
// late_table_test.go holds by which means they start.
func TestReservedJobsStartOnceAndNeverEarly(t *testing.T) {
	t.Parallel()
	for name, clients := range map[string]int{"OneClient": 1, "ThreeClients": 3} {
		for by, configured := range map[string]bool{"InsertedByOneOfThem": true, "InsertedByAPlainClient": false} {
			t.Run(name+"/"+by, func(t *testing.T) {
				t.Parallel()
				f := setUp(t, scheduler.Config{})
				sched := scheduler.New(f.limiter, scheduler.Config{})
				j := newJournal(f)
				inserter := f.client
				for range clients {
					if c := j.client(t, sched); configured {
						inserter = c
					}
				}
				jobs := sched.Jobs(inserter)
				due := map[int64]time.Time{}
				for i := range 60 {
					d := time.Duration(1+rand.IntN(600)) * time.Millisecond
					if i%10 == 0 {
						d += 4 * time.Second
					}
					job := f.reserve(t, jobs, i, d)
					due[job.ID] = job.ScheduledAt
				}
				late := punctual(t, j.await(t, 60), due)
				t.Logf("p50 %v, p95 %v, latest %v", late[30], late[57], late[59])
				time.Sleep(300 * time.Millisecond)
				if n := len(j.await(t, 60)); n != 60 {
					t.Errorf("%d starts of 60 jobs", n)
				}
			})
		}
	}
}

func TestAClientWithoutThePluginNeverStartsAJobEarly(t *testing.T) {
	t.Parallel()
	for name, with := range map[string]bool{"Alone": false, "BesideOneWithIt": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setUp(t, scheduler.Config{})
			sched := scheduler.New(f.limiter, scheduler.Config{Jitter: -1})
			j := newJournal(f)
			j.client(t, nil)
			if with {
				j.client(t, sched)
			}
			jobs := sched.Jobs(f.client)
			due := map[int64]time.Time{}
			for i := range 20 {
				job := f.reserve(t, jobs, i, time.Duration(1+rand.IntN(2000))*time.Millisecond)
				due[job.ID] = job.ScheduledAt
			}
			punctual(t, j.await(t, 20), due)
		})
	}
}

// A queue runs no more jobs than it has workers.
func TestMaxWorkersHolds(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	var now, most atomic.Int64
	j.work = func(context.Context, *river.Job[sendArgs]) error {
		n := now.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		time.Sleep(20 * time.Millisecond)
		now.Add(-1)
		return nil
	}
	client := j.client(t, sched, func(c *river.Config) {
		c.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 2}}
	})
	jobs := sched.Jobs(client)
	for i := range 20 {
		f.reserve(t, jobs, i, 500*time.Millisecond)
	}
	time.Sleep(300 * time.Millisecond)
	for i := range 20 {
		if _, err := client.Insert(t.Context(), sendArgs{i}, nil); err != nil {
			t.Fatal(err)
		}
	}
	j.await(t, 40)
	if n := most.Load(); n > 2 {
		t.Errorf("%d jobs ran at once, of 2 workers", n)
	}
}

// One worker, and many jobs that wait for their time: what is ready does not wait for them.
func TestWaitingJobsDoNotStarveOtherWork(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	client := j.client(t, sched, func(c *river.Config) {
		c.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 1}}
	})
	jobs := sched.Jobs(client)
	due := map[int64]time.Time{}
	for i := range 50 {
		job := f.reserve(t, jobs, i, 4*time.Second)
		due[job.ID] = job.ScheduledAt
	}
	if _, err := client.Insert(t.Context(), sendArgs{100}, nil); err != nil {
		t.Fatal(err)
	}
	ready := f.now(t)
	starts := j.await(t, 51)
	for _, s := range starts {
		if s.n == 100 {
			break
		}
		if due[s.id].After(ready) { // on a slow machine the first ones were due before
			t.Errorf("job %d was before what was ready", s.n)
		}
	}
	punctual(t, slices.DeleteFunc(slices.Clone(starts), func(s start) bool { return s.n == 100 }), due)
}

func TestAPausedQueueStartsNothing(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	client := j.client(t, sched)
	events, unsubscribe := client.Subscribe(river.EventKindQueuePaused)
	t.Cleanup(unsubscribe)
	if err := client.QueuePause(t.Context(), river.QueueDefault, nil); err != nil {
		t.Fatal(err)
	}
	select {
	case <-events: // the client, which hears of it by a notification or its poll, has stopped to fetch
	case <-time.After(patience):
		t.Fatal("the client has not paused the queue")
	}
	job := f.reserve(t, sched.Jobs(client), 1, 100*time.Millisecond)
	j.never(t, 2*time.Second)
	if err := client.QueueResume(t.Context(), river.QueueDefault, nil); err != nil {
		t.Fatal(err)
	}
	punctual(t, j.await(t, 1), map[int64]time.Time{job.ID: job.ScheduledAt})
}

func TestPollOnlyClientsStartJobsToo(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	client := j.client(t, sched, func(c *river.Config) { c.PollOnly = true })
	due := map[int64]time.Time{}
	for i := range 10 {
		job := f.reserve(t, sched.Jobs(client), i, time.Duration(rand.IntN(4000))*time.Millisecond)
		due[job.ID] = job.ScheduledAt
	}
	late := punctual(t, j.await(t, 10), due)
	t.Logf("p50 %v, latest %v", late[5], late[9])
}

// A job that fails is retried as any other, in its own queue, and its ticket is spent.
func TestAFailedJobIsRetriedInItsQueue(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	j.work = func(_ context.Context, job *river.Job[sendArgs]) error {
		if job.Attempt < 2 {
			return errors.New("no")
		}
		return nil
	}
	job := f.reserve(t, sched.Jobs(j.client(t, sched)), 1, 200*time.Millisecond)
	j.await(t, 2)
	eventually(t, "the job is completed", func() bool { return f.job(t, job.ID).State == rivertype.JobStateCompleted })
	if got := f.job(t, job.ID); got.Queue != river.QueueDefault || got.Attempt != 2 {
		t.Errorf("%+v", got)
	}
}

// A worker that puts its job back itself is not held to the old time.
func TestAJobThatSnoozesDoesNotWaitForItsOldTime(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	j.work = func(context.Context, *river.Job[sendArgs]) error {
		if len(j.await(t, 1)) == 1 {
			return river.JobSnooze(time.Second)
		}
		return nil
	}
	f.reserve(t, sched.Jobs(j.client(t, sched)), 1, 200*time.Millisecond)
	starts := j.await(t, 2)
	if d := starts[1].at.Sub(starts[0].at); d < 900*time.Millisecond {
		t.Errorf("snoozed for %v", d)
	}
}

func TestTheRollbackOfAReservationLeavesNoJob(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	jobs := sched.Jobs(j.client(t, sched))
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := jobs.InsertTx(t.Context(), tx, sendArgs{1}, nil, wait.For("k").Count(1100).OrReserve()); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	j.never(t, 500*time.Millisecond)
}

// Inserts and workers behind a pooler that keeps no session, which therefore poll.
func TestBehindPgBouncer(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	mine := f.pool.Config().ConnConfig.RuntimeParams["search_path"]
	cfg, err := pgxpool.ParseConfig(pgtest.Bouncer(t, f.pool))
	if err != nil {
		t.Fatal(err)
	}
	cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	limiter, err := ratelimit.New(ratelimit.Config{Citus: pgtest.Citus(), Schema: mine})
	if err != nil {
		t.Fatal(err)
	}
	behind := &fixture{pool: pool, limiter: limiter}
	sched := scheduler.New(limiter, scheduler.Config{Jitter: -1})
	j := newJournal(behind)
	client := j.client(t, sched, func(c *river.Config) { c.PollOnly, c.Schema = true, mine })
	jobs := sched.Jobs(client)
	due := map[int64]time.Time{}
	for i := range 10 {
		job := behind.reserve(t, jobs, i, time.Duration(rand.IntN(6000))*time.Millisecond)
		due[job.ID] = job.ScheduledAt
	}
	late := punctual(t, j.await(t, 10), due)
	t.Logf("p50 %v, latest %v", late[5], late[9])
	behind.inTx(t, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := jobs.Waiting(ctx, tx, wait.For("k"), 10); err != nil {
			return err
		}
		return behind.limiter.Resume(ctx, tx, wait.For("k"))
	})
}

// A retry by hand of a job that waits does not jump the line.
func TestAWaitingJobThatIsRetriedByHandGoesOnWaiting(t *testing.T) {
	t.Parallel()
	untilInTime(t, func(t *testing.T) bool {
		f, sched, j := exact(t)
		client := j.client(t, sched)
		job := f.reserve(t, sched.Jobs(client), 1, 4*time.Second)
		if _, err := client.JobRetry(t.Context(), job.ID); err != nil {
			t.Fatal(err)
		}
		if !f.now(t).Before(job.ScheduledAt) {
			return false // it may have been worked, and be worked once more
		}
		punctual(t, j.await(t, 1), map[int64]time.Time{job.ID: job.ScheduledAt})
		return true
	})
}

func TestConfigureSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	limiter, err := ratelimit.New(ratelimit.Config{Citus: pgtest.Citus()})
	if err != nil {
		t.Fatal(err)
	}
	for name, configure := range map[string]func(){
		"Limiter": func() { scheduler.New(nil, scheduler.Config{}).Configure(new(pgxpool.Pool), &river.Config{}) },
		"Pool":    func() { scheduler.New(limiter, scheduler.Config{}).Configure(nil, &river.Config{}) },
		"Config":  func() { scheduler.New(limiter, scheduler.Config{}).Configure(new(pgxpool.Pool), nil) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			defer func() {
				if text, _ := recover().(string); !strings.Contains(text, "Configure without") {
					t.Errorf("got %q", text)
				}
			}()
			configure()
		})
	}
}
