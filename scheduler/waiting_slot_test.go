package scheduler_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/scheduler"
)

// reading runs do in a transaction that cannot write.
func (c *crew) reading(do func(tx pgx.Tx) error) {
	c.t.Helper()
	opts := pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadOnly}
	if err := pgx.BeginTxFunc(c.t.Context(), c.pool, opts, do); err != nil {
		c.t.Fatal(err)
	}
}

func (c *crew) listed(jobs *scheduler.Jobs, key string, n int) (list []scheduler.Waiting) {
	c.t.Helper()
	c.reading(func(tx pgx.Tx) (err error) {
		list, err = jobs.WaitingForSlot(c.t.Context(), tx, c.limit.Name(), key, n)
		return err
	})
	return list
}

func (c *crew) explained(jobs *scheduler.Jobs, job *rivertype.JobRow) (w scheduler.Waiting, waits bool) {
	c.t.Helper()
	job = c.job(c.t, job.ID)
	c.reading(func(tx pgx.Tx) (err error) {
		w, waits, err = jobs.Explain(c.t.Context(), tx, job)
		return err
	})
	return w, waits
}

// Jobs are given slots in the order in which they are listed.
func TestJobsThatWaitForSlotsAreListedInTheirOrder(t *testing.T) {
	t.Parallel()
	c := newCrew(t, 1)
	open := c.gate(1)
	jobs := c.sched.Jobs(c.client(2))
	first := c.insert(0, nil)
	c.j.await(t, 1)
	var at []*rivertype.JobRow
	for i := range 6 {
		at = append(at, c.insert(1+i, &river.InsertOpts{Priority: 4 - i/2}))
	}
	c.awaitWaiting(6)
	if _, err := c.pool.Exec(t.Context(), `WITH q AS (
			INSERT INTO river_queue (name, created_at, updated_at, paused_at) VALUES ('stopped', now(), now(), now())
		) UPDATE river_job SET queue = 'stopped' WHERE id = $1`, at[4].ID); err != nil {
		t.Fatal(err)
	}
	list := c.listed(jobs, "0", 10)
	want := []int64{at[4].ID, at[5].ID, at[2].ID, at[3].ID, at[0].ID, at[1].ID}
	if ids := idsOf(list); !slices.Equal(ids, want) {
		t.Fatalf("listed: %v; want %v", ids, want)
	}
	for i, w := range list {
		if w.Place != i || w.PassedOver != (i == 0) || !w.Slot || w.Limit != "crew" ||
			w.Key != "0" || !w.Until.IsZero() {
			t.Errorf("nr %d: %+v", i, w)
		}
	}
	if some := c.listed(jobs, "0", 2); !slices.Equal(idsOf(some), want[:2]) {
		t.Errorf("the first two: %v", idsOf(some))
	}
	if none := append(c.listed(jobs, "1", 10), c.listed(jobs, "0", 0)...); len(none) > 0 {
		t.Errorf("listed: %+v", none)
	}

	if w, waits := c.explained(jobs, at[0]); !waits || w.Place != 4 || w.Job.ID != at[0].ID ||
		w.Limit != "crew" || w.Key != "0" {
		t.Errorf("explained (%v): %+v", waits, w)
	}
	if w, waits := c.explained(jobs, first); waits {
		t.Errorf("what runs waits: %+v", w)
	}
	later := c.insert(7, &river.InsertOpts{ScheduledAt: time.Now().Add(time.Hour)})
	if w, waits := c.explained(jobs, later); waits {
		t.Errorf("what is scheduled by its program waits: %+v", w)
	}
	for _, test := range []struct {
		w    scheduler.Waiting
		want string
	}{{list[0], "waits for a slot of crew of 0, and its queue is paused"}, {list[1], "waits for a slot of crew of 0"}} {
		if text := test.w.String(); !strings.HasSuffix(text, test.want) {
			t.Errorf("%q, want %q", text, test.want)
		}
	}

	opened := time.Now()
	open()
	started := c.j.await(t, 6)[1:]
	for i, s := range started {
		if s.id != want[1+i] && c.inTurn(opened, started) {
			t.Errorf("nr %d to start is job %d, want %d", i, s.id, want[1+i])
		}
	}
}
