package scheduler_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/scheduler"
)

// These tests hold the table of lateness in doc.go, row by row, and measure no time. They take away
// River's own means of starting a job: nobody leads, and the client polls once an hour. So a job
// that starts at all was started by the means that its row of the table names. Where neither client
// is configured, that means is River's alone.

// lateness is the setting of one row.
type lateness struct {
	*fixture
	t     *testing.T
	sched *scheduler.Scheduler
	j     *journal
	beat  func() // begins a round of the working client, if the last one was long enough ago

	river.PluginDefaults              // of the working client
	fetches              atomic.Int64 // that have ended
	passed               atomic.Int64 // those of them after which a job was due and had not started
}

func newLateness(t *testing.T) *lateness {
	t.Helper()
	f, sched, j := exact(t)
	l := &lateness{fixture: f, t: t, sched: sched, j: j}
	l.exec(t, `INSERT INTO river_leader (leader_id, elected_at, expires_at)
		VALUES ('nobody', now(), now() + interval '1 h')`)
	return l
}

// MetricEmit hears of each fetch before its jobs start.
func (l *lateness) MetricEmit(ctx context.Context, params *rivertype.HookMetricEmitParams) {
	if _, ok := params.Metric.(*rivertype.JobGetAvailableDurationMetric); !ok {
		return
	}
	l.fetches.Add(1)
	var due bool
	const sql = `SELECT EXISTS (SELECT FROM river_job
		WHERE state IN ('available', 'scheduled') AND scheduled_at <= now())`
	if err := l.pool.QueryRow(ctx, sql).Scan(&due); err == nil && due {
		l.passed.Add(1)
	}
}

// noRounds gives the turn to do the rounds to a client that does none.
func (l *lateness) noRounds() {
	l.exec(l.t, `INSERT INTO weir_slot (name, key, slot, holder, until)
		VALUES ('weir scheduler', current_schema(), 0, gen_random_uuid(), now() + interval '1 h')`)
}

// worker starts a client that fetches once, and then only when it is notified.
func (l *lateness) worker(configured bool, change ...func(*river.Config)) *river.Client[pgx.Tx] {
	l.t.Helper()
	var pollOnly bool
	var queues map[string]river.QueueConfig
	client := l.j.client(l.t, nil, func(c *river.Config) {
		c.FetchPollInterval, c.Plugins = time.Hour, []rivertype.Plugin{l}
		for _, f := range change {
			f(c)
		}
		if pollOnly, queues = c.PollOnly, c.Queues; !configured {
			return
		}
		*c = *l.sched.Configure(l.pool, c)
		for name, q := range c.Queues {
			if q.FetchCooldown != river.FetchCooldownMin {
				l.t.Errorf("a client that is notified fetches from %s after %v", name, q.FetchCooldown)
			}
		}
		hook := c.Plugins[0].(rivertype.HookMetricEmit)
		l.beat = func() { // as each fetch does
			hook.MetricEmit(context.Background(),
				&rivertype.HookMetricEmitParams{Metric: &rivertype.JobGetAvailableDurationMetric{}})
		}
	})
	if !pollOnly {
		eventually(l.t, "the client hears of notifications", func() bool {
			for queue := range queues {
				l.exec(l.t, `SELECT pg_notify(current_schema() || '.river_insert', '{"queue": "`+queue+`"}')`)
			}
			return l.fetches.Load() > 1
		})
	}
	return client
}

// inserter is a client that only inserts. After kill it wakes nobody.
func (l *lateness) inserter(configured bool) (jobs *scheduler.Jobs, kill func()) {
	l.t.Helper()
	pool, err := pgxpool.NewWithConfig(l.t.Context(), l.pool.Config())
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(pool.Close)
	cfg := &river.Config{Logger: quiet()}
	if configured {
		cfg = l.sched.Configure(pool, cfg)
	}
	client, err := river.NewClient(riverpgxv5.New(pool), cfg)
	if err != nil {
		l.t.Fatal(err)
	}
	return l.sched.Jobs(client), pool.Close
}

// insert reserves a job that is due after d, and is in this state until then.
func (l *lateness) insert(
	jobs *scheduler.Jobs, d time.Duration, state rivertype.JobState,
) *rivertype.JobRow {
	l.t.Helper()
	job := l.reserve(l.t, jobs, 1, d)
	if job.State != state {
		l.t.Errorf("a job that is due in %v is %s, want %s", d, job.State, state)
	}
	return job
}

// rounds has the working client do rounds from now on.
func (l *lateness) rounds() {
	ctx := l.t.Context()
	go func() {
		for ; ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
			l.beat()
		}
	}()
}

// starts waits until the job has started.
func (l *lateness) starts(job *rivertype.JobRow) {
	l.t.Helper()
	punctual(l.t, l.j.await(l.t, 1), map[int64]time.Time{job.ID: job.ScheduledAt})
}

// oneStarts inserts ten jobs that are due a second apart, and waits until one has started. If the
// machine hangs when the first is due, it is one of the others.
func (l *lateness) oneStarts(jobs *scheduler.Jobs, state rivertype.JobState, inserted func()) {
	l.t.Helper()
	due := map[int64]time.Time{}
	for n := range 10 {
		job := l.insert(jobs, time.Duration(2+n)*time.Second, state)
		due[job.ID] = job.ScheduledAt
	}
	inserted()
	for _, s := range l.j.await(l.t, 1) {
		if s.at.Before(due[s.id]) {
			l.t.Errorf("job %d started at %v, before %v", s.id, s.at, due[s.id])
		}
	}
}

// The process that has inserted a job notifies the clients, whether they are configured or not.
func TestAnInserterNotifies(t *testing.T) {
	t.Parallel()
	for name, configured := range map[string]bool{"Configured": true, "APlainClient": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLateness(t)
			l.noRounds()
			l.worker(configured)
			jobs, _ := l.inserter(true)
			l.insert(jobs, time.Minute, rivertype.JobStateScheduled) // River promotes it
			l.oneStarts(jobs, rivertype.JobStateAvailable, func() {})
		})
	}
	t.Run("OfAQueueThatIsAdded", func(t *testing.T) {
		t.Parallel()
		l := newLateness(t)
		l.noRounds()
		client := l.worker(true, func(c *river.Config) {
			c.Queues = map[string]river.QueueConfig{"other": {MaxWorkers: 1}}
		})
		if err := client.Queues().Add(river.QueueDefault, river.QueueConfig{MaxWorkers: 1}); err != nil {
			t.Fatal(err)
		}
		jobs, _ := l.inserter(true)
		l.oneStarts(jobs, rivertype.JobStateAvailable, func() {})
	})
}

// Rounds notify of a job if nobody else does: if a plain client has inserted it, or a process that
// was killed.
func TestRoundsNotify(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		configured bool
		state      rivertype.JobState
	}{
		"OfAPlainClient":   {false, rivertype.JobStateScheduled},
		"OfAKilledProcess": {true, rivertype.JobStateAvailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLateness(t)
			l.worker(true)
			jobs, kill := l.inserter(c.configured)
			l.oneStarts(jobs, c.state, func() {
				kill()
				l.rounds()
			})
		})
	}
}

// Rounds make jobs available 25 s ahead, so that no leader has to.
func TestRoundsMakeJobsAvailableAhead(t *testing.T) {
	t.Parallel()
	l := newLateness(t)
	l.worker(true)
	jobs, _ := l.inserter(false)
	near := l.insert(jobs, 24*time.Second, rivertype.JobStateScheduled)
	far := l.insert(jobs, time.Minute, rivertype.JobStateScheduled)
	l.rounds()
	var ahead bool
	eventually(t, "a job is available ahead, or due", func() bool {
		ahead = l.count(t, `id = $1 AND state = 'available' AND scheduled_at > now()`, near.ID) == 1
		return ahead || l.now(t).After(near.ScheduledAt)
	})
	if !ahead {
		t.Error("no round has made a job available that is due within 25 s")
	}
	if job := l.job(t, far.ID); job.State != rivertype.JobStateScheduled {
		t.Errorf("%+v", job)
	}
}

// A client without notifications starts a job with its first poll after the job is due.
func TestThePollFindsAJob(t *testing.T) {
	t.Parallel()
	for name, configured := range map[string]bool{"OfAConfiguredOne": true, "OfAPlainOne": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLateness(t)
			state := rivertype.JobStateScheduled
			if configured {
				l.noRounds()
				state = rivertype.JobStateAvailable
			}
			l.worker(true, func(c *river.Config) {
				c.PollOnly, c.FetchPollInterval = true, 200*time.Millisecond
			})
			jobs, _ := l.inserter(configured)
			job := l.insert(jobs, 3*time.Second, state)
			if !configured {
				eventually(t, "a round has made it available", func() bool {
					return l.job(t, job.ID).State != rivertype.JobStateScheduled
				})
			}
			l.passed.Store(0)
			l.starts(job)
			if n := l.passed.Load(); n > 1 { // one that began before the job was due
				t.Errorf("%d polls passed the job over", n)
			}
		})
	}
}
