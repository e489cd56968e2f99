package scheduler

import (
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"
	"maps"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
)

// On time. River fetches a job at the earliest when it is due, and then as late as its ticks and cooldowns have it: a
// leader promotes every 5 s, a client fetches at most every 100 ms. So that a reserved job starts when it is due, a client
// takes it from its queue a lead before that and into a queue beside it, which only clients with this plugin work (claim.go).
// There River hands it to a worker early, and the plugin holds it until it is due by the database's clock (hold.go).
//
// The row in the job's own queue is all that a client without the plugin ever sees: scheduled for when it is due.

// lead is how long before it is due a job is claimed. It covers two of River's polls of a second each, so that a client
// that gets no notifications has time to fetch it.
const lead = 2500 * time.Millisecond

// held is how many jobs of one queue a client holds or works on time, at most.
const held = 1000

// plugin is the part of a Scheduler in one River client.
type plugin struct {
	river.PluginDefaults

	scheduler *Scheduler
	pool      *pgxpool.Pool
	tables    *strings.Replacer // names them in statements
	schema    any               // of River's notifications; nil for the current one
	logger    *slog.Logger
	lines     map[string]*line // by the queue that jobs are inserted into, and by the one beside it
	charges   batch[charge]
	looks     batch[look]
	confirms  batch[confirmation]
	paces     batch[pacing]
	returns   batch[rivertype.JobRow]
}

// Configure returns a copy of a River client's configuration with which the client starts reserved jobs on time:
//
//	client, err := river.NewClient(riverpgxv5.New(pool), sched.Configure(pool, &river.Config{...}))
//
// Each of its queues gets another beside it, named weir_ and the queue's own name, where jobs wait for the last 2.5 s before
// they are due. Such a job occupies no slot of its queue until it starts, and then counts against the MaxWorkers of its
// queue together with all others; up to 1,000 jobs a queue are held or run on time at once. A queue that is added to the
// client later starts its jobs when River does: some seconds late. So do clients that are not configured by this, never
// early. A paused queue starts nothing.
//
// Jobs start at most some milliseconds after they are due; with PollOnly, or where notifications do not get through, those
// that were inserted less than 2.5 s before they are due start up to 2.5 s late.
//
// For River a job that is held is running. RescueStuckJobsAfter, an hour by default, has to leave room for the 2.5 s, for as
// long as jobs run, and for the longest outage of the database that a client is to live through; or River starts them twice.
//
// The pool is one that sees River's tables and Weir's. The client may be of any kind: one that only inserts wakes those that
// work. Without a pool or a configuration, or on a Scheduler without a limiter, it panics.
func (s *Scheduler) Configure(pool *pgxpool.Pool, cfg *river.Config) *river.Config {
	if s.limiter == nil || pool == nil || cfg == nil {
		panic("scheduler: Configure without a limiter (see New), a pool or a river.Config")
	}
	c := *cfg
	p := &plugin{scheduler: s, pool: pool, logger: c.Logger, lines: map[string]*line{}}
	if p.logger == nil {
		p.logger = slog.Default()
	}
	p.tables = s.tables(c.Schema)
	if c.Schema != "" {
		p.schema = c.Schema
	}
	p.charges.settle, p.paces.settle, p.looks.settle = gather, gather, gather
	p.charges.do, p.looks.do, p.confirms.do, p.paces.do, p.returns.do = p.charge, p.look, p.confirm, p.pace, p.restore
	c.Plugins = append([]rivertype.Plugin{p}, c.Plugins...)
	if len(c.Queues) > 0 {
		c.Queues = maps.Clone(c.Queues)
		for name, q := range cfg.Queues {
			l := &line{plugin: p, queue: name, beside: beside(name), slots: make(chan struct{}, max(1, q.MaxWorkers))}
			p.lines[l.queue], p.lines[l.beside] = l, l
			c.Queues[l.beside] = river.QueueConfig{
				MaxWorkers:        held,
				FetchCooldown:     river.FetchCooldownMin,
				FetchPollInterval: river.FetchPollIntervalDefault,
			}
		}
		s.mu.Lock()
		s.plugins = append(s.plugins, p)
		s.mu.Unlock()
	}
	return &c
}

// beside names the queue beside a queue, in River's 64 characters.
func beside(queue string) string {
	name := "weir_" + queue
	if len(name) > 64 {
		h := fnv.New64a()
		_, _ = h.Write([]byte(queue))
		name = fmt.Sprintf("%sx%016x", name[:47], h.Sum64())
	}
	return name
}

// soonKey marks the context of an insert whose job is due so soon that River's leader may miss it.
type soonKey struct{}

// InsertBegin lets a job that is due soon skip the wait for River's leader: as available, with its time still ahead, it is
// fetched when it is due by any client, and its insert notifies them.
func (p *plugin) InsertBegin(ctx context.Context, params *rivertype.JobInsertParams) error {
	if ctx.Value(soonKey{}) != nil && params.State == rivertype.JobStateScheduled {
		params.State = rivertype.JobStateAvailable
	}
	return nil
}

// MetricEmit hears of each fetch of a working client, once a second at least: the beat of the claims. A client that is
// stopped, or whose queue is paused, fetches nothing and so claims nothing.
func (p *plugin) MetricEmit(_ context.Context, params *rivertype.HookMetricEmitParams) {
	if m, ok := params.Metric.(*rivertype.JobGetAvailableDurationMetric); ok {
		if l := p.lines[m.Queue]; l != nil {
			l.poke(0)
		}
	}
}

// expect tells the clients of this process that a job was inserted that is due within the lead.
func (s *Scheduler) expect(queue string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.plugins {
		if l := p.lines[queue]; l != nil && l.alive() {
			l.poke(linger)
		}
	}
}

// expectAll tells the clients of this process that jobs of any queue may come earlier.
func (s *Scheduler) expectAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.plugins {
		for _, l := range p.lines {
			if l.alive() {
				l.poke(linger)
			}
		}
	}
}
