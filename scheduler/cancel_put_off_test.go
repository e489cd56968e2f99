package scheduler_test

import (
	"context"
	"testing"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
)

// A job is cancelled after it was fetched, and before River has written that it is put off: River
// cancels it then, and does not give its attempt back. Its tokens are given back.
func TestAJobThatIsCancelledWhileItIsPutOffGivesBack(t *testing.T) {
	t.Parallel()
	c := newCrew(t, 1)
	open := c.gate(1)
	defer open()
	client := c.client(5)
	exec := func(sql string) {
		t.Helper()
		if _, err := c.pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	c.insert(0, nil)
	c.j.await(t, 1)
	exec(`CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF current_query() LIKE '%JobSetStateIfRunningMany%' THEN RAISE 'the server is away'; END IF;
		RETURN NULL; END $$`)
	exec(`CREATE TRIGGER away BEFORE UPDATE ON river_job FOR EACH STATEMENT EXECUTE FUNCTION fail()`)
	id := c.insertBy(t, c.sched.Jobs(c.fixture.client), sendArgs{1}, tenTokens.Global()).Job.Job.ID
	eventually(t, "the job is in line", func() bool { return c.count(`SELECT count(*) FROM weir_turn`) == 1 })
	if _, err := client.JobCancel(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	exec(`DROP TRIGGER away ON river_job`)
	eventually(t, "the job is cancelled", func() bool { return c.job(t, id).State == rivertype.JobStateCancelled })
	if job := c.job(t, id); job.Attempt != 1 {
		t.Fatalf("attempt %d", job.Attempt)
	}
	eventually(t, "its token is given back", func() bool { return c.tokens() == 10 })
}

// A job that was put off, and runs later, has used its tokens, though its row does not say so while
// it runs.
func TestAJobThatHasBegunKeepsItsTokensWhenItIsCancelled(t *testing.T) {
	t.Parallel()
	c := newCrew(t, 1)
	first, end := c.gate(1), make(chan bool)
	c.j.work = func(ctx context.Context, job *river.Job[sendArgs]) error {
		if job.Args.N == 1 {
			<-end
		}
		return c.work(ctx, job)
	}
	defer close(end)
	c.client(5)
	c.insert(0, nil)
	c.j.await(t, 1)
	id := c.insertBy(t, c.sched.Jobs(c.fixture.client), sendArgs{1}, tenTokens.Global()).Job.Job.ID
	c.awaitWaiting(1)
	first()
	c.j.await(t, 2)
	if _, err := c.pool.Exec(t.Context(), `UPDATE river_job SET state = 'cancelled', finalized_at = now() WHERE id = $1`, id); err != nil {
		t.Fatal(err)
	}
	c.seen(t)
	if left := c.tokens(); left != 9 {
		t.Errorf("%d of 10 tokens are left", left)
	}
}
