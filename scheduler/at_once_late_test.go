package scheduler_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
)

// River's client cannot write for a while that a job waits for a slot, and meanwhile the job is
// rescued, gets the slot and runs. Then the client writes that the job waits, and the job is in no
// line. If it is not completed, as its process dies for example, it gets in line again.
func TestAJobThatIsPutOffLateIsInLine(t *testing.T) {
	t.Parallel()
	c := newCrew(t, 1)
	open := c.gate(2)
	again := make(chan error)
	c.j.work = func(ctx context.Context, job *river.Job[sendArgs]) error {
		if job.Args.N == 1 && len(c.j.await(t, 1)) == 2 {
			return <-again
		}
		return c.work(ctx, job)
	}
	exec := func(sql string) {
		t.Helper()
		if _, err := c.pool.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatal(err)
		}
	}
	exec(`CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF current_query() LIKE '%JobSetStateIfRunningMany%' THEN RAISE 'the server is away'; END IF;
		RETURN NULL; END $$`)
	c.client(5)
	c.insert(0, nil)
	c.j.await(t, 1)
	exec(`CREATE TRIGGER away BEFORE UPDATE ON river_job FOR EACH STATEMENT EXECUTE FUNCTION fail()`)
	id := c.insert(1, nil).ID
	inLine := func() int { return c.count(`SELECT count(*) FROM weir_turn`) }
	eventually(t, "the job is in line", func() bool { return inLine() == 1 })
	exec(`UPDATE river_job SET state = 'retryable', scheduled_at = now() + interval '1 h',
		errors = array_append(errors, '{}') WHERE args->>'n' = '1'`)
	eventually(t, "its place is given up", func() bool { return inLine() == 0 })
	open()
	eventually(t, "the slot is free", func() bool {
		return c.count(`SELECT count(*) FROM weir_slot WHERE until > now() AND name <> 'weir scheduler'`) == 0
	})
	exec(`UPDATE river_job SET state = 'available', scheduled_at = now() WHERE args->>'n' = '1'`)
	c.j.await(t, 2)
	exec(`DROP TRIGGER away ON river_job`)
	eventually(t, "the job is put off", func() bool { return c.job(t, id).ScheduledAt.Year() > 2190 })
	again <- errors.New("it failed")
	c.j.await(t, 3)
	eventually(t, "all jobs are completed", func() bool {
		return c.count(`SELECT count(*) FROM river_job WHERE state <> 'completed'`) == 0
	})
}
