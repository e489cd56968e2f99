package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
	"github.com/weir-go/weir/slots"
	"github.com/weir-go/weir/weirtest"
)

func TestNeverMoreJobsOfAKeyRunThanItHasSlots(t *testing.T) {
	t.Parallel()
	c := newCrew(t, 2)
	c.takes = 30 * time.Millisecond // so that a third of a key would meet two
	if pgtest.Citus() {
		c.takes = 500 * time.Millisecond
	}
	open := c.gate(2) // until two of a key have met: where each trip takes long, others may not
	defer open()
	var all []int
	for i := range 20 {
		all = append(all, i, 100+i, 200+i)
	}
	c.enqueue(t, all...)
	c.client(8)
	// Another process has slots of its own.
	c.sched = scheduler.New(c.limiter, scheduler.Config{Jitter: -1, Slots: c.newSlots()})
	c.client(8)
	eventually(t, "two jobs of a key run at once", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.most >= 2
	})
	open()
	c.worked(len(all))
	if c.most != 2 {
		t.Errorf("%d jobs of a key ran at once, want 2", c.most)
	}
}

func TestJobsThatWaitForASlotOccupyNoWorkerAndStartInOrder(t *testing.T) {
	t.Parallel()
	c := newCrew(t, 1)
	open := c.gate(1)
	c.client(2)
	c.insert(0, nil)
	c.j.await(t, 1)
	var want []int
	for priority := 4; priority >= 1; priority-- {
		for i := range 5 {
			c.insert(10*priority+i, &river.InsertOpts{Priority: priority})
		}
	}
	for priority := range 4 {
		for i := range 5 {
			want = append(want, 10*(priority+1)+i)
		}
	}
	c.awaitWaiting(20)
	c.insert(100, nil)
	if s := c.j.await(t, 2); s[1].n != 100 {
		t.Fatalf("job %d has started, and not that of another key", s[1].n)
	}
	opened := time.Now()
	open()
	starts := c.worked(22)[2:]
	if got := numbersOf(starts); !slices.Equal(got, want) && c.inTurn(opened, starts) {
		t.Errorf("started in the order %v\nwant %v", got, want)
	}
	if c.most != 1 {
		t.Errorf("%d jobs ran at once", c.most)
	}
}

func TestAnEndedJobGivesItsSlotToTheFirstThatWaits(t *testing.T) {
	t.Parallel()
	c := newCrew(t, 1)
	open := c.gate(1)
	c.client(5)
	c.insert(0, nil)
	c.j.await(t, 1)
	head := c.insert(1, nil)
	c.awaitWaiting(1)
	// Nobody works the queue of the first one any more: so it stays as it is.
	if _, err := c.pool.Exec(t.Context(), `UPDATE river_job SET queue = 'nobodys' WHERE id = $1`, head.ID); err != nil {
		t.Fatal(err)
	}
	opened := time.Now()
	open()
	eventually(t, "the slot is given", func() bool { return c.job(t, head.ID).State == rivertype.JobStateAvailable })
	if job := c.job(t, head.ID); !job.ScheduledAt.Equal(head.ScheduledAt) || job.Attempt != 0 {
		t.Errorf("scheduled at %v, attempt %d; want %v, attempt 0", job.ScheduledAt, job.Attempt, head.ScheduledAt)
	}
	n, err := c.slots.Held(t.Context(), c.limit.For("0"))
	if err != nil || n != 1 && time.Since(opened) < 5*time.Second { // for which it is kept
		t.Errorf("%d slots are held, %v; want that of the job that was given it", n, err)
	}
	// Then it goes on to the next, and the first one keeps nothing.
	c.insert(2, nil)
	if s := c.j.await(t, 2); s[1].n != 2 {
		t.Errorf("job %d has started", s[1].n)
	}
	if _, err := c.pool.Exec(t.Context(), `UPDATE river_job SET queue = 'default' WHERE id = $1`, head.ID); err != nil {
		t.Fatal(err)
	}
	c.worked(3)
}

func TestASlotThatOthersFreeIsGivenToAWaitingJob(t *testing.T) {
	t.Parallel()
	for name, free := range map[string]func(c *crew, h *slots.Hold) error{
		"Released": func(c *crew, h *slots.Hold) error { return h.Release(c.t.Context()) },
		"Expired": func(c *crew, _ *slots.Hold) error { // as after a kill: nobody renews it
			_, err := c.pool.Exec(c.t.Context(),
				`UPDATE weir_slot SET until = now() + interval '1 s', holder = '00000000-0000-0000-0000-000000000000'
				WHERE name = 'crew'`)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCrew(t, 1)
			h, err := c.newSlots().TryAcquire(t.Context(), c.limit.For("0"))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = h.Release(context.WithoutCancel(t.Context())) }()
			client := c.client(5)
			c.insert(0, nil)
			c.insert(1, nil)
			c.awaitWaiting(2)
			// A client that has not worked such a job gives it, too.
			stop(t, client)
			c.client(5)
			c.j.never(t, 100*time.Millisecond)
			freed := time.Now()
			if err := free(c, h); err != nil {
				t.Fatal(err)
			}
			starts := c.j.await(t, 2)
			if got := numbersOf(starts); !slices.Equal(got, []int{0, 1}) && c.inTurn(freed, starts) {
				t.Errorf("started in the order %v", got)
			}
		})
	}
}

func TestJobsThatHaveLeftAreNotGivenASlot(t *testing.T) {
	t.Parallel()
	c := newCrew(t, 1)
	open := c.gate(1)
	client := c.client(3)
	c.insert(0, nil)
	c.j.await(t, 1)
	var jobs []*rivertype.JobRow
	for i := range 4 {
		jobs = append(jobs, c.insert(1+i, nil))
	}
	c.awaitWaiting(4)
	if _, err := client.JobCancel(t.Context(), jobs[0].ID); err != nil {
		t.Fatal(err)
	}
	if _, err := client.JobDelete(t.Context(), jobs[1].ID); err != nil {
		t.Fatal(err)
	}
	eventually(t, "rows of jobs that have left are deleted", func() bool {
		return c.count(`SELECT count(*) FROM weir_turn`) == 2
	})
	paused := c.insert(5, &river.InsertOpts{ScheduledAt: time.Now().Add(-time.Hour)})
	c.awaitWaiting(3)
	if _, err := c.pool.Exec(t.Context(), `WITH q AS (
			INSERT INTO river_queue (name, created_at, updated_at, paused_at) VALUES ('stopped', now(), now(), now())
		) UPDATE river_job SET queue = 'stopped' WHERE id = $1`, paused.ID); err != nil {
		t.Fatal(err)
	}
	opened := time.Now()
	open()
	starts := c.j.await(t, 3)
	if got := numbersOf(starts); !slices.Equal(got, []int{0, 3, 4}) && c.inTurn(opened, starts[1:]) {
		t.Errorf("started: %v", got)
	}
	c.awaitWaiting(1) // the job of the paused queue, in its place
	if _, err := c.pool.Exec(t.Context(),
		`UPDATE river_queue SET paused_at = NULL WHERE name = 'stopped'`); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the paused job is given the slot", func() bool {
		return c.job(t, paused.ID).State == rivertype.JobStateAvailable
	})
}

func TestAJobGivesItsSlotBackHoweverItEnds(t *testing.T) {
	t.Parallel()
	c := newCrew(t, 1)
	failed := sync.Map{}
	c.j.work = func(ctx context.Context, job *river.Job[sendArgs]) error {
		_, again := failed.LoadOrStore(job.Args.N, true)
		switch {
		case again:
			return c.work(ctx, job)
		case job.Args.N == 0:
			return errors.New("it fails")
		case job.Args.N == 1:
			panic("it panics")
		case job.Args.N == 2:
			return river.JobSnooze(0)
		case job.Args.N == 3:
			return river.JobCancel(errors.New("it cancels itself"))
		}
		return c.work(ctx, job)
	}
	c.enqueue(t, upTo(6)...)
	c.client(3)
	c.j.await(t, 9)
	eventually(t, "all jobs have ended", func() bool {
		return c.count(`SELECT count(*) FROM river_job WHERE state IN ('completed', 'cancelled')`) == 6
	})
	if c.most != 1 {
		t.Errorf("%d ran at once", c.most)
	}
}

// It pays again, as it has worked: what the job reserved and what its worker takes.
func TestAnAttemptWhoseSlotIsLostIsRepeated(t *testing.T) {
	t.Parallel()
	for limited, left := range map[bool]int{false: 8, true: 6} {
		t.Run(fmt.Sprint("Limited", limited), func(t *testing.T) {
			t.Parallel()
			c := newCrewOn(t, pgtest.Pool(t), 1, slots.Config{TTL: time.Second, Logger: quiet()})
			causes := make(chan error, 10)
			var once sync.Once
			c.j.work = func(ctx context.Context, job *river.Job[sendArgs]) error {
				first := false
				once.Do(func() { first = true })
				if !first {
					return nil
				}
				// ctx may end while this runs
				if _, err := c.pool.Exec(context.WithoutCancel(ctx), `UPDATE weir_slot SET holder = '00000000-0000-0000-0000-000000000000' WHERE name = 'crew'`); err != nil {
					return err
				}
				<-ctx.Done()
				causes <- context.Cause(ctx)
				return ctx.Err()
			}
			if limited {
				c.j.wrap = func(w river.Worker[sendArgs]) river.Worker[sendArgs] {
					return c.atOnce(scheduler.Limit(w, func(*river.Job[sendArgs]) []ratelimit.Request {
						return []ratelimit.Request{tenTokens.Global()}
					}))
				}
			}
			c.client(2)
			job := c.insertBy(t, c.sched.Jobs(c.fixture.client), sendArgs{0}, tenTokens.Global()).Job.Job
			if err := <-causes; !errors.Is(err, slots.ErrLost) {
				t.Errorf("the worker's context ended because of %v", err)
			}
			eventually(t, "the job is completed", func() bool { return c.job(t, job.ID).State == rivertype.JobStateCompleted })
			if job := c.job(t, job.ID); job.Attempt != 1 || len(job.Errors) != 0 {
				t.Errorf("attempt %d, errors %v", job.Attempt, job.Errors)
			}
			if got := c.tokens(); got != left {
				t.Errorf("%d of 10 tokens are left, want %d", got, left)
			}
		})
	}
}

// An API that says to come later is heard also by an attempt that has lost its slot.
func TestAnAttemptWhoseSlotIsLostPausesAllTheSame(t *testing.T) {
	t.Parallel()
	c := newCrewOn(t, pgtest.Pool(t), 1, slots.Config{TTL: time.Second, Logger: quiet()})
	api := ratelimit.MustDefine("pausedWithoutSlot", ratelimit.TokenBucket{Rate: 1, Period: never})
	c.j.work = func(ctx context.Context, _ *river.Job[sendArgs]) error {
		if _, err := c.pool.Exec(context.WithoutCancel(ctx), `UPDATE weir_slot SET holder = '00000000-0000-0000-0000-000000000000' WHERE name = 'crew'`); err != nil {
			return err
		}
		<-ctx.Done()
		return &scheduler.PauseError{For: time.Hour, Requests: []ratelimit.Request{api.Global()}}
	}
	c.client(2)
	job := c.insert(0, nil)
	eventually(t, "the job is put off until the pause ends", func() bool {
		job := c.job(t, job.ID)
		return job.State == rivertype.JobStateScheduled && time.Until(job.ScheduledAt) > 50*time.Minute
	})
	if s, err := c.limiter.Autocommit(c.pool).Value(t.Context(), api.Global()); err != nil || s.PausedUntil.IsZero() {
		t.Errorf("the limit is not paused: %v", err)
	}
}

func TestAJobThatIsRetriedByHandGoesOnWaitingForItsSlot(t *testing.T) {
	t.Parallel()
	c := newCrew(t, 1)
	open := c.gate(1)
	client := c.client(3)
	c.insert(0, nil)
	c.j.await(t, 1)
	job := c.insert(1, nil)
	c.awaitWaiting(1)
	if _, err := client.JobRetry(t.Context(), job.ID); err != nil {
		t.Fatal(err)
	}
	// By its own attempt, or by the first one, which has all due jobs of the key wait.
	eventually(t, "it is put back", func() bool {
		job := c.job(t, job.ID)
		return job.State == rivertype.JobStateScheduled && job.ScheduledAt.Year() >= 2199
	})
	open()
	c.worked(2)
	if c.most != 1 {
		t.Errorf("%d ran at once", c.most)
	}
}

func TestAJobThatWaitsIsStartedByNoOtherClient(t *testing.T) {
	t.Parallel()
	c := newCrew(t, 1)
	if h, err := c.newSlots().TryAcquire(t.Context(), c.limit.For("0")); err != nil {
		t.Fatal(err)
	} else {
		defer func() { _ = h.Release(context.WithoutCancel(t.Context())) }()
	}
	client := c.client(1)
	c.insert(0, nil)
	c.awaitWaiting(1)
	stop(t, client)
	plain := newJournal(c.fixture)
	plain.client(t, nil)
	plain.never(t, 2*time.Second)
}

func TestAtOnceSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	c := newCrew(t, 1)
	none := func(*river.Job[sendArgs]) []slots.Request { return nil }
	two := func(*river.Job[sendArgs]) []slots.Request {
		return []slots.Request{c.limit.For("a"), c.limit.For("b")}
	}
	bad := func(*river.Job[sendArgs]) []slots.Request { return []slots.Request{c.limit.For("")} }
	for name, test := range map[string]struct {
		sched    *scheduler.Scheduler
		requests func(*river.Job[sendArgs]) []slots.Request
		want     string
	}{
		"NotConfigured": {nil, none, "not made by Scheduler.Configure"},
		"NoSlots":       {scheduler.New(c.limiter, scheduler.Config{}), none, "without Config.Slots"},
		"TwoSlots":      {c.sched, two, "asks for 2 slots"},
		"BadRequest":    {c.sched, bad, "key"},
		"NoRequest":     {c.sched, none, ""},
	} {
		j := newJournal(c.fixture)
		j.wrap = func(w river.Worker[sendArgs]) river.Worker[sendArgs] { return scheduler.AtOnce(w, test.requests) }
		client := j.client(t, test.sched)
		job := c.insert(0, &river.InsertOpts{MaxAttempts: 1})
		eventually(t, name+": it ends", func() bool { return c.job(t, job.ID).FinalizedAt != nil })
		job = c.job(t, job.ID)
		if ok := job.State == rivertype.JobStateCompleted; ok != (test.want == "") {
			t.Errorf("%s: the job is %s", name, job.State)
		}
		for _, e := range job.Errors {
			if !strings.Contains(e.Error, test.want) {
				t.Errorf("%s: %s; want %q", name, e.Error, test.want)
			}
		}
		stop(t, client)
	}
	worker := c.atOnce(&logWorker{j: c.j})
	if err := worker.Work(weirtest.WorkNow(t.Context()),
		&river.Job[sendArgs]{JobRow: &rivertype.JobRow{}}); err != nil {
		t.Errorf("WorkNow: %v", err)
	}
	if n, err := c.slots.Held(t.Context(), c.limit.For("0")); n != 0 || err != nil {
		t.Errorf("WorkNow holds %d slots, %v", n, err)
	}
}
