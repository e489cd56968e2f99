package scheduler_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/scheduler"
	"github.com/weir-go/weir/slots"
)

// crew is a fixture whose jobs run a few at once: those of numbers with the same hundreds have one
// key.
type crew struct {
	*fixture
	t     testing.TB
	j     *journal
	slots *slots.Slots
	sched *scheduler.Scheduler
	limit slots.Limit
	n     atomic.Int32 // how many slots each key has

	mu      sync.Mutex
	running map[int]int // by key
	most    int         // that ran at once
	gates   map[int]chan struct{}
	takes   time.Duration // a job without a gate // jobs that run until their gate is closed
}

func keyOf(n int) string { return fmt.Sprint(n / 100) }

func newCrew(t testing.TB, n int) *crew {
	t.Helper()
	return newCrewOn(t, pgtest.Pool(t), n, slots.Config{Logger: quiet()})
}

func newCrewOn(t testing.TB, pool *pgxpool.Pool, n int, cfg slots.Config) *crew {
	t.Helper()
	c := &crew{fixture: setUpOn(t, pool, scheduler.Config{}), t: t, running: map[int]int{}, gates: map[int]chan struct{}{}}
	c.takes = 2 * time.Millisecond
	c.n.Store(int32(n))
	c.slots, c.limit = c.slotsOn(pool, cfg), slots.MustDefine("crew", n)
	c.sched = scheduler.New(c.limiter, scheduler.Config{Jitter: -1, Slots: c.slots})
	c.j = newJournal(c.fixture)
	c.j.wrap = c.atOnce
	c.j.work = c.work
	return c
}

func (c *crew) newSlots() *slots.Slots { return c.slotsOn(c.pool, slots.Config{Logger: quiet()}) }

func (c *crew) slotsOn(pool *pgxpool.Pool, cfg slots.Config) *slots.Slots {
	c.t.Helper()
	s, err := slots.New(pool, cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			c.t.Error(err)
		}
	})
	return s
}

func (c *crew) atOnce(w river.Worker[sendArgs]) river.Worker[sendArgs] {
	return scheduler.AtOnce(w, func(job *river.Job[sendArgs]) []slots.Request {
		return []slots.Request{c.limit.For(keyOf(job.Args.N)).Of(int(c.n.Load()))}
	})
}

// gate has the first n jobs run until it is opened.
func (c *crew) gate(n int) (open func()) {
	gate := make(chan struct{})
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range n {
		c.gates[i] = gate
	}
	return sync.OnceFunc(func() { close(gate) })
}

func (c *crew) work(ctx context.Context, job *river.Job[sendArgs]) error {
	key := job.Args.N / 100
	c.mu.Lock()
	c.running[key]++
	c.most = max(c.most, c.running[key])
	gate := c.gates[job.Args.N]
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.running[key]--
	}()
	if gate == nil {
		time.Sleep(c.takes)
		return nil
	}
	select {
	case <-gate:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (c *crew) client(workers int) *river.Client[pgx.Tx] {
	c.t.Helper()
	return c.j.client(c.t, c.sched, func(cfg *river.Config) {
		cfg.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: workers}}
	})
}

func (c *crew) insert(n int, opts *river.InsertOpts) *rivertype.JobRow {
	c.t.Helper()
	res, err := c.fixture.client.Insert(c.t.Context(), sendArgs{n}, opts)
	if err != nil {
		c.t.Fatal(err)
	}
	return res.Job
}

func (c *crew) count(sql string) (n int) {
	c.t.Helper()
	if err := c.pool.QueryRow(c.t.Context(), sql).Scan(&n); err != nil {
		c.t.Fatal(err)
	}
	return n
}

// waiting is how many jobs wait in line, with their put-offs written.
func (c *crew) waiting() int {
	return c.count(`SELECT count(*) FROM weir_turn t JOIN river_job j ON j.id = t.job
		WHERE t.name = '' AND j.state = 'scheduled' AND j.scheduled_at > '2199-12-31'`)
}

func (c *crew) awaitWaiting(n int) {
	c.t.Helper()
	eventually(c.t, fmt.Sprint(n, " jobs wait"), func() bool { return c.waiting() == n })
}

// worked checks that each of n jobs was started once, with its first attempt, and has left nothing
// behind.
func (c *crew) worked(n int) []start {
	c.t.Helper()
	starts := c.j.await(c.t, n)
	eventually(c.t, "all jobs are completed", func() bool {
		return c.count(`SELECT count(*) FROM river_job WHERE state <> 'completed'`) == 0
	})
	times := map[int64]int{}
	for _, s := range starts {
		if times[s.id]++; s.attempt != 1 || times[s.id] > 1 {
			c.t.Errorf("job %d was started %d times, now with attempt %d", s.n, times[s.id], s.attempt)
		}
	}
	if len(starts) != n {
		c.t.Errorf("%d starts of %d jobs", len(starts), n)
	}
	eventually(c.t, "nothing is left", func() bool {
		return c.count(`SELECT (SELECT count(*) FROM weir_turn) +
			(SELECT count(*) FROM weir_slot WHERE until > now() AND name <> 'weir scheduler')`) == 0
	})
	return starts
}

// inTurn reports whether each of these jobs started soon after the one before it, the first one
// after slots were free. A job that is not started within five seconds loses the slot that it was
// given, to the next one: on a machine that is so busy the order says nothing.
func (c *crew) inTurn(free time.Time, starts []start) bool {
	c.t.Helper()
	for _, s := range starts {
		if d := s.at.Sub(free); d > 4*time.Second {
			c.t.Logf("job %d started %v after the one before it", s.n, d)
			return false
		}
		free = s.at
	}
	return true
}

func numbersOf(starts []start) (all []int) {
	for _, s := range starts {
		all = append(all, s.n)
	}
	return all
}
