package scheduler_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// settle settles a job as if its worker did.
func (s *stepped) settle(id int64, used ...ratelimit.Request) {
	s.t.Helper()
	job := s.job(s.t, id)
	s.inTx(s.t, func(ctx context.Context, tx pgx.Tx) error {
		settled, err := s.jobs.SettleTx(ctx, tx, job, used...)
		if err == nil && !settled {
			s.t.Errorf("job %d is not settled", id)
		}
		return err
	})
	s.inTx(s.t, func(ctx context.Context, tx pgx.Tx) error { // the second changes nothing
		settled, err := s.jobs.SettleTx(ctx, tx, job, used...)
		if settled {
			s.t.Errorf("job %d is settled twice", id)
		}
		return err
	})
}

// Tenants are charged what their jobs have used, not what they were estimated to use.
func TestTenantsAreChargedWhatTheyUse(t *testing.T) {
	t.Parallel()
	rig.Large(t)
	limit := store(t, 10_000)
	s := steppedLines(t, scheduler.Line{Limit: limit})
	s.wait(scheduler.Tenant{Key: "over"}, 200, nil, limit.Global().Count(10))  // uses 1
	s.wait(scheduler.Tenant{Key: "under"}, 200, nil, limit.Global().Count(1))  // uses 10
	s.wait(scheduler.Tenant{Key: "exact"}, 200, nil, limit.Global().Count(10)) // uses 10
	truth := map[string]float64{"over": 1, "under": 10, "exact": 10}
	got := had{}
	for got["exact"] < 200 {
		all := s.step()
		if len(all) == 0 {
			t.Fatalf("nothing is granted after %v", got)
		}
		for _, g := range all {
			s.settle(g.id, limit.Global().Count(truth[g.tenant]))
			got[g.tenant] += truth[g.tenant]
		}
		// With statistics Postgres reads those who wait in another order.
		if _, err := s.pool.Exec(t.Context(), `ANALYZE weir_turn, weir_line_tenant, weir_line`); err != nil {
			t.Fatal(err)
		}
	}
	// Within two of the largest counts: a step grants two jobs before it hears what they use.
	for _, tenant := range []string{"over", "under"} {
		if got[tenant] < 180-20 || got[tenant] > 220+20 {
			t.Errorf("used: %v, want the tenants within 40 of each other", got)
		}
	}
}

// What a tenant has not used is no claim for later, when none of its jobs wait.
func TestARefundIsNotKeptForATenantThatDoesNotWait(t *testing.T) {
	t.Parallel()
	limit := store(t, 10_000)
	s := steppedLines(t, scheduler.Line{Limit: limit})
	s.wait(scheduler.Tenant{Key: "busy"}, 300, nil, limit.Global())
	first := s.wait(scheduler.Tenant{Key: "idle"}, 1, nil, limit.Global().Count(100))
	got := had{}
	for got["idle"] == 0 {
		got.add(s.step())
	}
	s.settle(first[0], limit.Global().Count(0))
	s.step()
	s.wait(scheduler.Tenant{Key: "idle"}, 100, nil, limit.Global())
	got = had{}
	for got["busy"] < 10 {
		all := s.step()
		if got.add(all); len(all) == 0 {
			t.Fatal("nothing is granted")
		}
	}
	if got["idle"] > 14 {
		t.Errorf("granted: %v, want about the same to both", got)
	}
}

// A job that is cancelled after its turn gives back its tokens, and its tenant is not charged.
func TestATenantIsNotChargedForAJobThatIsCancelled(t *testing.T) {
	t.Parallel()
	limit := store(t, 100)
	s := steppedLines(t, scheduler.Line{Limit: limit})
	ids := s.wait(scheduler.Tenant{Key: "a"}, 2, nil, limit.Global().Count(50))
	s.round()
	s.inRC(t, func(tx pgx.Tx) error {
		_, err := s.jobs.CancelTx(t.Context(), tx, ids[0])
		return err
	})
	var cost float64
	if err := s.pool.QueryRow(t.Context(), `SELECT sum(cost) FROM weir_turn WHERE priority = 0`).
		Scan(&cost); err != nil || cost != -50 {
		t.Errorf("its tenant is charged %v besides (%v), want -50", cost, err)
	}
	s.want(t, limit.Global(), 50, -1)
}

// A further attempt pays again, and so does its tenant.
func TestATenantIsChargedForEachAttempt(t *testing.T) {
	t.Parallel()
	limit := shared(t, 1000, 1000)
	f, sched, j := queuing(t, scheduler.Line{Limit: limit})
	failed := false
	j.work = func(context.Context, *river.Job[sendArgs]) error {
		if failed = !failed; failed {
			return context.DeadlineExceeded
		}
		return nil
	}
	f.queue(t, queueing(1, limit.Global().Count(7)))
	f.exec(t, `CREATE TABLE kept (LIKE weir_turn)`)
	f.exec(t, `CREATE RULE keep AS ON DELETE TO weir_turn WHERE old.priority = 0 DO ALSO INSERT INTO kept VALUES (old.*)`)
	j.client(t, sched)
	if starts := j.await(t, 2); starts[1].attempt != 2 || starts[1].takes[0].Count != 7 {
		t.Errorf("the second start is %+v, want a second attempt that has taken 7", starts[1])
	}
	eventually(t, "the second attempt is charged", func() bool {
		var cost float64
		const sql = `SELECT coalesce(sum(cost), 0) FROM (SELECT cost FROM kept UNION ALL SELECT cost FROM weir_turn WHERE priority = 0) c`
		if err := f.pool.QueryRow(t.Context(), sql).Scan(&cost); err != nil {
			t.Fatal(err)
		}
		return cost == 7
	})
}

// A job that is started before its turn, by hand say, is put back, keeps its place and uses no
// attempt.
func TestAJobThatIsStartedBeforeItsTurnKeepsItsPlace(t *testing.T) {
	t.Parallel()
	limit := store(t, 10)
	f, sched, j := queuing(t, scheduler.Line{Limit: limit})
	if err := f.limiter.Autocommit(f.pool).Pause(t.Context(), time.Hour, limit.Global()); err != nil {
		t.Fatal(err)
	}
	jobs := f.queue(t, queueing(1, limit.Global()), queueing(2, limit.Global()))
	id := jobs[1].Job.ID
	j.client(t, sched)
	if _, err := f.client.JobRetry(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the job is put back", func() bool {
		job := f.job(t, id)
		return job.State == rivertype.JobStateScheduled && job.ScheduledAt.Year() >= 2199 &&
			woken(t, job) == 1 && job.Attempt == 0
	})
	// One that has ended without its turn has left the line. It is retried by hand: it has to wait
	// again.
	f.exec(t, fmt.Sprintf(`UPDATE river_job SET state = 'discarded', finalized_at = now() WHERE id = %d`, id))
	eventually(t, "the discarded job leaves the line", func() bool { return f.inLine(t) == 1 })
	if _, err := f.client.JobRetry(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the retried job waits in line", func() bool {
		return f.inLine(t) == 2 && f.job(t, id).State == rivertype.JobStateScheduled
	})
	if err := f.limiter.Autocommit(f.pool).Resume(t.Context(), limit.Global()); err != nil {
		t.Fatal(err)
	}
	for _, s := range j.await(t, 2) {
		if s.attempt != 1 {
			t.Errorf("job %d started as attempt %d, want 1", s.n, s.attempt)
		}
	}
}

// Those who take without waiting in line count as one tenant: the line leaves them their share, and
// takes what they have had too much.
func TestOthersCountAsOneTenant(t *testing.T) {
	t.Parallel()
	limit := store(t, 100)
	s := steppedLines(t, scheduler.Line{Limit: limit, Others: 1, Leave: 50})
	s.wait(scheduler.Tenant{Key: "a"}, 100, nil, limit.Global())
	s.wait(scheduler.Tenant{Key: "b"}, 100, nil, limit.Global())
	until := func() (n float64) {
		for all := s.step(); len(all) > 0; all = s.step() {
			n += float64(len(all))
		}
		return n
	}
	if n := until(); n < 50 || n > 51 {
		t.Fatalf("%v jobs are granted, want 50: 50 tokens are left to others", n)
	}
	take := func(n float64) {
		res, err := s.limiter.Autocommit(s.pool).RateLimit(t.Context(), limit.Global().Count(n))
		if err != nil || !res.OK {
			t.Fatalf("%v tokens: %+v (%v)", n, res, err)
		}
	}
	take(5) // from now on: what they have not taken before is no claim
	if n := until(); n < 8 || n > 13 {
		t.Fatalf("%v jobs are granted, want 5 of each tenant, as others have had 5", n)
	}
	if n := until(); n != 0 {
		t.Fatalf("%v jobs are granted, and others have had no more than their share", n)
	}
}
