package scheduler_test

import (
	"testing"
	"time"

	"github.com/riverqueue/river"

	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// Of the jobs that wait, rounds make the next 600 available, and the others as these start. They
// write each job once. So each fetch of River's walks 600 rows at most that are not due, however
// many jobs wait, and all start in time. Nobody leads, so River promotes none of them. They are due
// at a rate at which a busy machine starts them within three seconds. Those that are later pay
// anew and are not counted: they have other times, which River may write when they have passed.
func TestSixHundredJobsAreAvailableAheadOfTime(t *testing.T) {
	t.Parallel()
	rig.Large(t)
	f, sched, j := exact(t)
	const n, rate = 1500, 100
	limit := ratelimit.MustDefine("thousands", ratelimit.TokenBucket{Rate: rate, Period: time.Second, Capacity: ratelimit.Tokens(0)})
	f.exec(t, `CREATE TABLE moved (LIKE river_job, was text, before timestamptz, moved_at timestamptz)`)
	f.exec(t, `CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		INSERT INTO moved SELECT NEW.*, OLD.state::text, OLD.scheduled_at, now();
		RETURN NULL;
	END $$`)
	f.exec(t, `CREATE TRIGGER note AFTER UPDATE ON river_job FOR EACH ROW WHEN (OLD.state = 'scheduled') EXECUTE FUNCTION note()`)
	f.exec(t, `INSERT INTO river_leader (elected_at, expires_at, leader_id) VALUES (now(), now() + interval '1 h', 'nobody')`)
	f.insertTogether(t, f.jobs, 1, limit.For("k").Count(10*rate).OrReserve()) // the others come after it
	f.exec(t, `DELETE FROM river_job`)
	due := map[int64]bool{}
	for _, in := range f.insertTogether(t, f.jobs, n, limit.For("k").OrReserve()) {
		due[in.Job.Job.ID] = true
	}
	f.exec(t, `CREATE TABLE planned AS SELECT id, scheduled_at AS due FROM river_job`)
	j.client(t, sched, func(c *river.Config) { c.CompletedJobRetentionPeriod = -1 })
	for i := range n / 100 {
		j.await(t, (i+1)*100)
	}
	for _, s := range j.await(t, n) {
		if s.at.Before(s.due) {
			t.Errorf("job %d started %v early", s.n, s.due.Sub(s.at))
		}
		delete(due, s.id)
	}
	if len(due) > 0 {
		t.Errorf("%d jobs have not started", len(due))
	}

	f.exec(t, `CREATE TABLE promoted AS SELECT DISTINCT ON (id) id, due, moved_at AS at FROM moved
		JOIN planned p USING (id) WHERE before = p.due AND scheduled_at = p.due
			AND was = 'scheduled' AND state = 'available' ORDER BY id, moved_at`)
	var idle, disorder, most, jobs int
	if err := f.pool.QueryRow(t.Context(), `SELECT
		(SELECT count(*) FROM moved WHERE state = 'scheduled' AND scheduled_at = before),
		(SELECT count(*) FROM (SELECT due, max(due) OVER (ORDER BY at
			RANGE BETWEEN UNBOUNDED PRECEDING AND '1 us' PRECEDING) AS earlier FROM promoted) p WHERE due < earlier),
		(SELECT max((SELECT count(*) FROM promoted WHERE at <= r.at AND due > r.at)) FROM (SELECT DISTINCT at FROM promoted) r),
		(SELECT count(*) FROM promoted)`).Scan(&idle, &disorder, &most, &jobs); err != nil {
		t.Fatal(err)
	}
	t.Logf("at most %d of %d were available and not due", most, jobs)
	if idle > 0 || disorder > 0 || most > 600 || jobs <= 600 {
		t.Errorf("%d were written for nothing, %d made available after others that were due later, "+
			"%d available and not due at a time, of %d", idle, disorder, most, jobs)
	}
}

// A process that inserts makes the next 600 of its jobs available ahead of time, over all of its
// inserts, and leaves the others to the rounds.
func TestAnInserterMakesSixHundredJobsAvailableAheadOfTime(t *testing.T) {
	t.Parallel()
	limit := ratelimit.MustDefine("inserterAhead",
		ratelimit.TokenBucket{Rate: 1000, Period: time.Second, Capacity: ratelimit.Tokens(0)})
	untilInTime(t, func(t *testing.T) bool {
		l := newLateness(t) // where nobody works, leads or does rounds
		jobs, _ := l.inserter(true)
		k := limit.For("k").OrReserve()
		if _, err := l.limiter.Autocommit(l.pool).RateLimit(t.Context(), k.Count(20_000)); err != nil {
			t.Fatal(err)
		}
		all := l.insertTogether(t, jobs, 1000, k) // due from in 20 s on
		l.insertTogether(t, jobs, 10, k)
		n := l.count(t, `state = 'available'`)
		if !l.now(t).Before(all[0].RunAt) {
			return false
		}
		if n != 600 {
			t.Errorf("%d jobs are available ahead of time, want 600", n)
		}
		return true
	})
}
