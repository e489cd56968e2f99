package scheduler

import (
	"cmp"
	"context"
	"log/slog"
	"maps"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/jobs/attempt"
	"github.com/weir-go/weir/internal/jobs/fairline"
	"github.com/weir-go/weir/internal/jobs/riverjob"
	"github.com/weir-go/weir/internal/jobs/rounds"
	"github.com/weir-go/weir/internal/jobs/slotline"
)

// plugin is the part of a Scheduler in one River client.
type plugin struct {
	river.PluginDefaults
	shared   *riverjob.Client
	rounds   *rounds.Rounds
	turns    *fairline.Granter
	slots    *slotline.Giver
	attempts *attempt.Attempts
}

// Configure returns a copy of a River client's configuration with which the client starts reserved
// jobs on time and keeps them from starting in a pause:
//
//	client, err := river.NewClient(riverpgxv5.New(pool), sched.Configure(pool, &river.Config{...}))
//
// Configure clients that only insert, too: the process that has reserved a job wakes the workers
// when the job is due. The pool must see River's tables and Weir's.
//
// Configure adds a plugin. It also sets the FetchCooldown of each queue that has none of its own to
// a millisecond, so that a client fetches as soon as it is woken. The client's own FetchCooldown,
// which limits how often inserts notify, is not changed. In a queue that is added to a running
// client, jobs start up to 100 ms later, which is River's default cooldown, unless its QueueConfig
// sets another.
//
// It panics if the pool or the configuration is nil, if the Scheduler has no limiter, or if there
// is a mistake in Config.Lines.
func (s *Scheduler) Configure(pool *pgxpool.Pool, cfg *river.Config) *river.Config {
	if s.limiter == nil || pool == nil || cfg == nil {
		panic("scheduler: Configure without a limiter (see New), a pool or a river.Config")
	}
	if s.misused != nil {
		panic(s.misused)
	}
	c := *cfg
	shared := riverjob.NewClient(s.store(c.Schema), pool, cmp.Or(c.Logger, slog.Default()))
	p := &plugin{shared: shared, rounds: rounds.New(shared),
		turns: fairline.NewGranter(shared, s.lines), slots: slotline.NewGiver(shared, s.slots)}
	p.attempts = attempt.New(shared, p.rounds, p.slots, pauseOf)
	c.Plugins = append([]rivertype.Plugin{p}, c.Plugins...)
	c.Queues = maps.Clone(c.Queues)
	for name, q := range c.Queues {
		if q.FetchCooldown == 0 {
			q.FetchCooldown = river.FetchCooldownMin
			c.Queues[name] = q
		}
	}
	return &c
}

// InsertBegin makes a reserved job that is due soon available at once.
func (p *plugin) InsertBegin(ctx context.Context, params *rivertype.JobInsertParams) error {
	p.shared.InsertBegin(ctx, params)
	return nil
}

// MetricEmit hears of each fetch of a working client: the beat of the rounds. A client that is
// stopped or whose queues are paused fetches nothing, and looks after nothing.
func (p *plugin) MetricEmit(_ context.Context, params *rivertype.HookMetricEmitParams) {
	if _, ok := params.Metric.(*rivertype.JobGetAvailableDurationMetric); ok {
		p.rounds.Begin()
		p.turns.Fetched()
		p.slots.Fetched()
	}
}

// Work looks at a job's limits once more before it starts.
func (p *plugin) Work(
	ctx context.Context, job *rivertype.JobRow, doInner func(context.Context) error,
) error {
	return p.attempts.Work(ctx, job, doInner)
}
