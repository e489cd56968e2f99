package scheduler_test

import (
	"testing"
	"time"

	"github.com/riverqueue/river"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// colocated is a fixture whose limiter believes that it is on Citus, and that no transaction of the
// caller's own writes the coordinator.
func colocated(t *testing.T, lines ...scheduler.Line) (*fixture, *scheduler.Scheduler, *journal) {
	t.Helper()
	f := setUpOn(t, pgtest.Coordinator(t), scheduler.Config{})
	pgtest.Note(t, f.pool, "jobs", "river_job")
	l, err := ratelimit.New(ratelimit.Config{Citus: true, Colocated: true})
	if err != nil {
		t.Fatal(err)
	}
	f.limiter = l
	sched := scheduler.New(l, scheduler.Config{Jitter: -1, Lines: lines})
	f.jobs = sched.Jobs(f.client)
	return f, sched, newJournal(f)
}

// On Citus a transaction of the scheduler's own keeps tokens and jobs together, whatever Colocated
// says of the caller's.
func TestTransactionsOfTheSchedulerRequestTwoPhaseCommit(t *testing.T) {
	t.Parallel()
	rig.Large(t)
	one := func(c *river.Config) {
		c.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 1}}
	}
	for name, run := range map[string]func(t *testing.T) *fixture{
		"late jobs pay anew": func(t *testing.T) *fixture {
			f, sched, j := colocated(t)
			limit := ratelimit.MustDefine("lateTwoPhase", ratelimit.TokenBucket{Rate: 10, Period: time.Second,
				Capacity: ratelimit.Tokens(1)})
			all := f.insertTogether(t, sched.Jobs(f.client), 5, limit.For("k").OrReserve()) // which works none
			due := all[len(all)-1].Job.Job.ScheduledAt
			eventually(t, "all are late", func() bool { return f.now(t).Sub(due) > 4*time.Second })
			f.exec(t, `TRUNCATE wrote`)
			j.client(t, sched, one)
			return f
		},
		"a backlog takes its places": func(t *testing.T) *fixture {
			f, sched, j := colocated(t)
			limit := ratelimit.MustDefine("backlog", ratelimit.TokenBucket{Rate: 10, Period: time.Minute})
			j.limited(func(int) []ratelimit.Request { return []ratelimit.Request{limit.For("k")} })
			f.enqueue(t, upTo(50)...)
			j.client(t, sched, one)
			return f
		},
		"a line grants turns": func(t *testing.T) *fixture {
			limit := ratelimit.MustDefine("line", ratelimit.TokenBucket{Rate: 10, Period: time.Minute,
				MaxReserved: ratelimit.Tokens(10)})
			f, sched, _ := colocated(t, scheduler.Line{Limit: limit})
			f.queue(t, queueing(1, limit.For("k")), queueing(2, limit.For("k")))
			cfg := sched.Configure(f.pool, &river.Config{Logger: quiet()})
			f.exec(t, `TRUNCATE wrote`)
			eventually(t, "turns are granted", func() bool {
				_, err := scheduler.GrantTurns(t.Context(), cfg)
				if err != nil {
					t.Log(err) // a transaction that hangs on a slow machine is ended
				}
				return err == nil
			})
			return f
		},
		"a cancelled job gives back": func(t *testing.T) *fixture {
			f, sched, j := colocated(t)
			jobs := sched.Jobs(j.client(t, sched))
			id := f.reserve(t, jobs, 1, time.Hour).ID
			f.seen(t)
			f.exec(t, `TRUNCATE wrote`)
			if _, err := f.client.JobCancel(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			return f
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := run(t)
			requested, not := 0, 0
			eventually(t, "tokens and jobs are written together", func() bool {
				const sql = `SELECT count(*) FILTER (WHERE requested), count(*) FILTER (WHERE NOT requested) FROM (
					SELECT bool_or(what = 'request') AS requested FROM wrote GROUP BY transaction
					HAVING bool_or(what = 'tokens') AND bool_or(what = 'jobs')) AS t`
				if err := f.pool.QueryRow(t.Context(), sql).Scan(&requested, &not); err != nil {
					t.Fatal(err)
				}
				return requested+not > 0
			})
			if not > 0 {
				t.Errorf("%d transactions did not request two-phase commit, and %d did", not, requested)
			}
		})
	}
}
