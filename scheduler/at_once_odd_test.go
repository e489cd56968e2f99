package scheduler_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/slots"
)

// River takes any JSON as a job's metadata.
func TestAJobIsGivenASlotWhateverItsMetadataIs(t *testing.T) {
	t.Parallel()
	for name, metadata := range map[string]string{
		"Object": `{"own": 1}`, "Null": `null`, "Array": `[{"own": 1}]`, "Text": `"own"`, "Number": `1`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCrew(t, 1)
			open := c.gate(1)
			c.client(5)
			c.insert(0, nil)
			c.j.await(t, 1)
			c.insert(1, &river.InsertOpts{Metadata: []byte(metadata)})
			c.awaitWaiting(1)
			c.insert(2, nil)
			c.awaitWaiting(2)
			opened := time.Now()
			open()
			starts := c.worked(3)
			if got := numbersOf(starts); !slices.Equal(got, []int{0, 1, 2}) && c.inTurn(opened, starts[1:]) {
				t.Errorf("started in the order %v", got)
			}
		})
	}
}

// A trigger of somebody else refuses a job, for example. It keeps its place, as a job of a paused
// queue does.
func TestAJobThatCannotBeGivenASlotIsPassedOver(t *testing.T) {
	t.Parallel()
	c := newCrew(t, 1)
	open := c.gate(1)
	client := c.client(5)
	c.insert(0, nil)
	c.j.await(t, 1)
	refused := c.insert(1, nil)
	c.awaitWaiting(1)
	c.insert(2, nil)
	c.insert(3, nil)
	c.awaitWaiting(3)
	c.exec(t, `ALTER TABLE river_job ADD CHECK ((args->>'n') <> '1' OR state <> 'available')`)
	opened := time.Now()
	open()
	starts := c.j.await(t, 3)
	if got := numbersOf(starts); !slices.Equal(got, []int{0, 2, 3}) && c.inTurn(opened, starts[1:]) {
		t.Errorf("started in the order %v", got)
	}
	eventually(t, "the others are completed", func() bool {
		return c.count(`SELECT count(*) FROM river_job WHERE state <> 'completed'`) == 1
	})
	if list := c.listed(c.sched.Jobs(client), "0", 10); len(list) != 1 || list[0].Job.ID != refused.ID {
		t.Errorf("%+v wait, want the job that was refused", list)
	}
}

// A worker's middleware opens a transaction around each job, and there are no more connections than
// workers. A job takes a slot all the same, or one that it was given, and none fails.
func TestJobsGetSlotsThoughTheirMiddlewareHoldsAllConnections(t *testing.T) {
	t.Parallel()
	const conns, jobs = 4, 12
	c := newCrewOn(t, pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = conns }), 2,
		slots.Config{Logger: quiet()})
	var began, worked atomic.Int64
	c.j.wrap = func(river.Worker[sendArgs]) river.Worker[sendArgs] {
		w := river.WorkFunc(func(context.Context, *river.Job[sendArgs]) error {
			worked.Add(1)
			return nil
		})
		return &wrapped{c.atOnce(w), func(ctx context.Context, _ *rivertype.JobRow,
			doInner func(context.Context) error) error {
			return pgx.BeginFunc(ctx, c.pool, func(pgx.Tx) error {
				began.Add(1)
				for began.Load() < conns && ctx.Err() == nil {
					time.Sleep(time.Millisecond) // until the first ones hold all connections
				}
				return doInner(ctx)
			})
		}}
	}
	for i := range jobs {
		c.insert(i, nil)
	}
	c.client(conns)
	eventually(t, "all jobs are worked", func() bool { return worked.Load() >= jobs })
	eventually(t, "all jobs are completed", func() bool {
		return c.fixture.count(t, `state <> 'completed'`) == 0
	})
	if failed := c.fixture.count(t, `errors IS NOT NULL`); failed > 0 || worked.Load() != jobs {
		t.Errorf("%d of %d jobs have failed, and %d were worked", failed, jobs, worked.Load())
	}
}
