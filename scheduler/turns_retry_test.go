package scheduler_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/scheduler"
)

// A grant that has read that a job has gone leaves the job its place if it was retried by hand since,
// and put back in line before its row is deleted. Else the job would wait for ever.
func TestAJobThatIsRetriedDuringAGrantKeepsItsPlace(t *testing.T) {
	t.Parallel()
	limit := store(t, 10)
	s := steppedLines(t, scheduler.Line{Limit: limit})
	ids := s.wait(scheduler.Tenant{Key: "a"}, 2, nil, limit.Global())
	s.exec(t, fmt.Sprintf(
		`UPDATE river_job SET state = 'discarded', finalized_at = now() WHERE id = %d`, ids[0]))
	// The grant of the other job waits at the gate, before it deletes rows.
	s.exec(t, fmt.Sprintf(`
		CREATE TABLE gate AS SELECT 1 AS n;
		CREATE FUNCTION pass() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = 0 AS $$ BEGIN
			PERFORM FROM gate FOR SHARE;
			RETURN NEW;
		END $$;
		CREATE TRIGGER pass BEFORE UPDATE ON river_job FOR EACH ROW
			WHEN (OLD.id = %d AND NEW.state = 'available') EXECUTE FUNCTION pass()`, ids[1]))
	tx, err := s.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `SELECT FROM gate FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	granted := make(chan error, 1)
	grant := func() {
		_, err := scheduler.GrantTurns(t.Context(), s.cfg)
		granted <- err
	}
	go grant()
	eventually(t, "the grant waits", func() bool {
		select {
		case err := <-granted:
			if !stalled(err) {
				t.Fatalf("the grant has not waited: %v", err)
			}
			go grant()
		default:
		}
		return rig.IsWaitedFor(t, s.pool, tx)
	})
	j := newJournal(s.fixture)
	j.client(t, scheduler.New(s.limiter, scheduler.Config{Jitter: -1})) // which grants nothing
	if _, err := s.client.JobRetry(t.Context(), ids[0]); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the retried job is put back in line", func() bool {
		job := s.job(t, ids[0])
		return job.State == rivertype.JobStateScheduled && woken(t, job) == 1
	})
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err = <-granted; err != nil && !stalled(err) {
		t.Fatal(err)
	}
	if n := s.inLine(t); n != 1 && err == nil { // else the grant has changed nothing
		t.Fatalf("%d jobs are in line, want the one that was retried", n)
	}
	s.round()
	j.await(t, 2)
}
