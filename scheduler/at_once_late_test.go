package scheduler_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/scheduler"
)

// putOffAgain is what a client of River writes that has put a job off, and got no answer.
const putOffAgain = `UPDATE river_job SET state = 'scheduled', scheduled_at = '2200-01-01', attempt = attempt - 1,
	metadata = metadata || '{"snoozes": 1}' WHERE id = $1 AND state = 'running'`

// River puts a job off for a second time while it runs: until 2200, and it is in no line. It starts
// again, and need not wait for another one that somebody locks. Others that wait until then are
// left alone.
func TestAJobThatIsPutOffWhileItRunsStartsAgain(t *testing.T) {
	t.Parallel()
	c := newCrew(t, 1)
	open := c.gate(1)
	working, end := make(chan bool), make(chan bool)
	c.j.work = func(ctx context.Context, job *river.Job[sendArgs]) error {
		if job.Args.N == 1 {
			working <- true
			<-end
		}
		return c.work(ctx, job)
	}
	client := c.client(5)
	c.insert(0, nil)
	c.j.await(t, 1)
	id := c.insert(1, nil).ID
	held, err := c.slots.Acquire(t.Context(), c.limit.For(keyOf(100)).Of(1))
	if err != nil {
		t.Fatal(err)
	}
	waits := c.insert(100, nil).ID
	c.awaitWaiting(2)
	open()
	<-working
	if tag, err := c.pool.Exec(t.Context(), putOffAgain, id); err != nil || tag.RowsAffected() != 1 {
		t.Fatal(tag, err)
	}
	end <- true
	stop(t, client)
	if job := c.job(t, id); job.State != rivertype.JobStateScheduled || job.ScheduledAt.Year() < 2199 {
		t.Fatalf("the job is %s at %v", job.State, job.ScheduledAt)
	}

	far := c.insert(2, &river.InsertOpts{ScheduledAt: c.job(t, id).ScheduledAt}).ID
	locked := c.insert(3, &river.InsertOpts{ScheduledAt: c.job(t, id).ScheduledAt, Metadata: []byte(`{"snoozes": 1}`)}).ID
	tx := rig.Begin(t, c.pool, pgx.ReadCommitted)
	if _, err := tx.Exec(t.Context(), `SELECT FROM river_job WHERE id = $1 FOR UPDATE`, locked); err != nil {
		t.Fatal(err)
	}
	c.client(5) // which gets the turn
	<-working
	end <- true
	eventually(t, "the job is completed", func() bool { return c.job(t, id).State == rivertype.JobStateCompleted })
	for _, id := range []int64{far, waits, locked} {
		if job := c.job(t, id); job.State != rivertype.JobStateScheduled || job.Attempt != 0 {
			t.Errorf("job %d is %s, with attempt %d", id, job.State, job.Attempt)
		}
	}
	if n := woken(t, c.job(t, waits)); n != 1 {
		t.Errorf("the job that waits was put off %d times", n)
	}
	if err := held.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// So does a job that has had its turn in a fair line.
func TestAJobOfALineThatIsPutOffWhileItRunsStartsAgain(t *testing.T) {
	t.Parallel()
	limit := store(t, 10)
	f, sched, j := queuing(t, scheduler.Line{Limit: limit})
	end := make(chan bool)
	j.work = func(context.Context, *river.Job[sendArgs]) error { <-end; return nil }
	client := j.client(t, sched)
	id := f.queue(t, queueing(1, limit.Global()))[0].Job.ID
	j.await(t, 1)
	if tag, err := f.pool.Exec(t.Context(), putOffAgain, id); err != nil || tag.RowsAffected() != 1 {
		t.Fatal(tag, err)
	}
	end <- true
	stop(t, client)
	j.client(t, sched)
	end <- true
	eventually(t, "the job is completed", func() bool { return f.job(t, id).State == rivertype.JobStateCompleted })
}
