package scheduler_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/scheduler"
	"github.com/weir-go/weir/slots"
)

// counted starts clients whose statements for slots, and those of Weir besides, are counted.
func (c *crew) counted(clients, workers int) *counting {
	c.t.Helper()
	n := &counting{}
	cfg := c.pool.Config()
	cfg.ConnConfig.Tracer = n
	pool, err := pgxpool.NewWithConfig(c.t.Context(), cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(pool.Close)
	for range clients {
		s := c.slotsOn(pool, slots.Config{Logger: quiet()})
		sched := scheduler.New(c.limiter, scheduler.Config{Jitter: -1, Slots: s})
		c.j.client(c.t, nil, func(cfg *river.Config) {
			cfg.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: workers}}
			*cfg = *sched.Configure(pool, cfg)
		})
	}
	return n
}

// Many jobs of one key are moved out of the way of others, and are not each fetched for that. While
// they wait, and others for two hundred more keys, they cost a few statements a second.
func TestManyJobsThatWaitForSlotsLeaveOthersAlone(t *testing.T) {
	t.Parallel()
	rig.Large(t)
	c := newCrew(t, 1)
	const n, keys = 20_000, 200
	others := c.newSlots()
	for key := range keys {
		h, err := others.TryAcquire(t.Context(), c.limit.For(keyOf(100+100*key)))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = h.Release(context.WithoutCancel(t.Context())) }()
	}
	open := c.gate(1)
	statements := c.counted(2, 2)
	c.insert(0, nil)
	c.j.await(t, 1)
	var params []river.InsertManyParams
	for i := range n {
		params = append(params, river.InsertManyParams{Args: sendArgs{1 + i%99}})
	}
	for key := range keys {
		params = append(params, river.InsertManyParams{Args: sendArgs{100 + 100*key}})
	}
	for part := range slices.Chunk(params, 2000) {
		if _, err := c.fixture.client.InsertManyFast(t.Context(), part); err != nil {
			t.Fatal(err)
		}
	}
	free := 100 + 100*keys
	c.insert(free, nil)
	eventually(t, "the job of a key with a free slot has started", func() bool {
		return slices.Contains(numbersOf(c.j.await(t, 0)), free)
	})
	c.awaitWaiting(n + keys)
	if fetched := c.count(`SELECT count(*) FROM river_job WHERE metadata ? 'snoozes'`); fetched > n/10 {
		t.Errorf("%d of %d jobs were fetched to be put off", fetched, n)
	} else {
		t.Logf("%d of %d jobs were fetched to be put off", fetched, n)
	}

	eventually(t, "two clients that have nothing to do send few statements", func() bool {
		before, began := statements.n.Load(), time.Now()
		time.Sleep(3 * time.Second)
		rate := float64(statements.n.Load()-before) / time.Since(began).Seconds()
		t.Logf("%.1f statements a second", rate)
		return rate <= 2*20
	})

	const some = 100
	before := statements.n.Load()
	open()
	started := c.j.await(t, 2+some)
	t.Logf("%.1f statements a job that was handed its slot",
		float64(statements.n.Load()-before)/float64(len(started)-2))
}
