package scheduler_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/slots"
)

// A number that was raised holds for the jobs as well that got in line when it was lower.
func TestARaisedNumberOfSlotsReachesThoseInLine(t *testing.T) {
	t.Parallel()
	c := newCrew(t, 1)
	open := c.gate(4) // they end together, or never
	defer open()
	c.client(8)
	for n := range 4 {
		c.insert(n, nil)
	}
	c.awaitWaiting(3)
	c.n.Store(4)
	c.insert(4, nil) // asks for the new number
	eventually(t, "four run", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.most == 4
	})
	open()
	c.worked(5)
}

// A job that another's attempt puts in line asks for a number as well.
func TestJobsThatAnotherPutsInLineSayHowManySlotsThereAre(t *testing.T) {
	t.Parallel()
	h := &hanger{sql: "AND kind = $2::text", hangs: make(chan struct{}), goesOn: make(chan struct{})}
	c := newCrewOn(t, pgtest.Pool(t, func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = h }), 1,
		slots.Config{Logger: quiet()})
	open := c.gate(1)
	defer open()
	others := []int{100, 200, 300} // of other keys, which occupy workers
	for _, n := range others {
		c.gates[n] = c.gates[0]
	}
	c.client(1 + len(others))
	c.insert(0, nil)
	for _, n := range others[1:] {
		c.insert(n, nil)
	}
	c.j.await(t, len(others))
	h.armed.Store(true)
	c.insert(1, nil)
	<-h.hangs // its attempt, before it reads which other jobs have to wait
	c.awaitWaiting(1)
	c.insert(others[0], nil)
	c.j.await(t, 1+len(others))
	c.n.Store(4)
	c.insert(4, nil) // for which there is no worker
	close(h.goesOn)
	eventually(t, "both have been given slots", func() bool {
		return c.count(`SELECT count(*) FROM river_job WHERE metadata ? 'weir_slot'`) == 2
	})
	if starts := c.j.await(t, 4); len(starts) > 4 {
		t.Fatalf("only when one had ended: %+v", starts)
	}
	open()
	c.worked(6)
}

// So does a number that was lowered: a job that ends gives its slot to the next one only if fewer are
// held.
func TestALoweredNumberOfSlotsReachesThoseInLine(t *testing.T) {
	t.Parallel()
	c := newCrew(t, 3)
	open := c.gate(3)
	defer open()
	c.client(8)
	for n := range 3 {
		c.insert(n, nil)
	}
	c.j.await(t, 3)
	for n := range 5 {
		c.insert(3+n, nil)
	}
	c.awaitWaiting(5)
	c.n.Store(1)
	c.insert(8, nil)
	c.awaitWaiting(6)
	c.mu.Lock()
	c.most = 0
	c.mu.Unlock()
	open()
	c.worked(9)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.most != 1 {
		t.Errorf("%d jobs that had waited ran at once, want 1", c.most)
	}
}

// A row that nobody can read, among as many as a round looks at, hides no place behind them.
func TestAnOddRowHidesNoPlace(t *testing.T) {
	t.Parallel()
	c := newCrew(t, 1)
	h, err := c.newSlots().TryAcquire(t.Context(), c.limit.For("0"))
	if err != nil {
		t.Fatal(err)
	}
	c.client(5)
	c.insert(0, nil)
	c.awaitWaiting(1)
	if _, err := c.pool.Exec(t.Context(), `INSERT INTO weir_turn (name, key, tenant, priority, due, job, cost, weight)
		SELECT '', current_schema(), CASE WHEN i = 0 THEN '0' ELSE '1 a ' || i END, 1, now(), -i, 1e300, 1
		FROM generate_series(0, 4100) i`); err != nil { // of jobs that have left
		t.Fatal(err)
	}
	c.j.never(t, 500*time.Millisecond) // its process no longer looks after the job
	if err := h.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.j.await(t, 1)
}
