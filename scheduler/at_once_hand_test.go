package scheduler_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/test/pgtest"
)

// noRounds keeps the rounds from giving free slots, as if another client had the turn and hung.
func (c *crew) noRounds() {
	c.t.Helper()
	_, err := c.pool.Exec(c.t.Context(), `INSERT INTO weir_slot (name, key, slot, holder, until)
		VALUES ('weir scheduler', current_schema(), 1, gen_random_uuid(), now() + interval '1 hour')`)
	if err != nil {
		c.t.Fatal(err)
	}
}

// A slot goes on with the job that ends, and not only by a round.
func TestAnEndedJobHandsItsSlotOnByItself(t *testing.T) {
	t.Parallel()
	c := newCrew(t, 1)
	c.noRounds()
	open := c.gate(1)
	c.client(2)
	c.insert(0, nil)
	c.j.await(t, 1)
	for i := range 5 {
		c.insert(1+i, nil)
	}
	c.awaitWaiting(5)
	time.Sleep(time.Second) // until nobody follows their put-offs any more
	open()
	c.j.await(t, 6)
}

// A job that finds a free slot while others wait for one goes behind them.
func TestANewJobGoesBehindThoseThatWait(t *testing.T) {
	t.Parallel()
	c := newCrew(t, 1)
	c.noRounds()
	h, err := c.newSlots().TryAcquire(t.Context(), c.limit.For("0"))
	if err != nil {
		t.Fatal(err)
	}
	c.client(2)
	c.insert(1, nil)
	c.awaitWaiting(1)
	time.Sleep(time.Second) // until nobody follows its put-off any more
	if err := h.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.insert(2, nil) // it finds a free slot, and one that waits
	if got := numbersOf(c.j.await(t, 2)); !slices.Equal(got, []int{1, 2}) {
		t.Errorf("started in the order %v", got)
	}
}

// A job that was cancelled while it waited stays cancelled, also before a round has seen that.
func TestACancelledJobIsPassedOverAtOnce(t *testing.T) {
	t.Parallel()
	c := newCrew(t, 1)
	c.noRounds()
	open := c.gate(1)
	client := c.client(2)
	c.insert(0, nil)
	c.j.await(t, 1)
	first := c.insert(1, nil)
	c.insert(2, nil)
	c.awaitWaiting(2)
	if _, err := client.JobCancel(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second) // until nobody follows their put-offs any more
	open()
	if got := numbersOf(c.j.await(t, 2)); !slices.Equal(got, []int{0, 2}) {
		t.Errorf("started: %v", got)
	}
	if state := c.job(t, first.ID).State; state != rivertype.JobStateCancelled {
		t.Errorf("the cancelled job is %s", state)
	}
}

// failsToFree has the first times that a slot is freed fail, and counts them in a sequence: what that
// has counted stays counted after a rollback.
func (c *crew) failsToFree(times int, code string) {
	c.t.Helper()
	for _, sql := range []string{
		`CREATE SEQUENCE freed`,
		fmt.Sprintf(`CREATE FUNCTION fail_first() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF nextval('freed') <= %d THEN RAISE 'it fails' USING ERRCODE = '%s'; END IF;
			RETURN NEW;
		END $$`, times, code),
		`CREATE TRIGGER fails BEFORE UPDATE ON weir_slot FOR EACH ROW
			WHEN (OLD.name = 'crew' AND NEW.until < now()) EXECUTE FUNCTION fail_first()`,
	} {
		if _, err := c.pool.Exec(c.t.Context(), sql); err != nil {
			c.t.Fatal(err)
		}
	}
}

// A slot that could not be freed at once, because a connection was lost for example, is freed soon,
// and not only when it expires.
func TestASlotIsHandedOnAfterAnError(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "a trigger of a distributed table")
	c := newCrew(t, 1)
	open := c.gate(1)
	c.client(2)
	c.insert(0, nil)
	c.j.await(t, 1)
	c.insert(1, nil)
	c.awaitWaiting(1)
	c.failsToFree(2, "08006")
	open()
	c.j.await(t, 2)
	if n := c.count(`SELECT last_value FROM freed`); n < 3 {
		t.Errorf("job 1 started after %d attempts to free the slot of job 0, of which two failed: it has expired", n)
	}
}

// An error that stays, a right that is missing for example, does not hold the end of a job up.
func TestAJobDoesNotWaitForAnErrorThatStays(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "a trigger of a distributed table")
	c := newCrew(t, 1)
	open := c.gate(1)
	c.client(1)
	job := c.insert(0, nil)
	c.j.await(t, 1)
	c.failsToFree(1000, "42501")
	open()
	eventually(t, "the job is completed", func() bool {
		return c.job(t, job.ID).State == rivertype.JobStateCompleted
	})
	if n := c.count(`SELECT last_value FROM freed`); n != 1 {
		t.Errorf("it was tried %d times to free the slot, want once", n)
	}
}
