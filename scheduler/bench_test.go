package scheduler_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/riverqueue/river"

	"github.com/weir-go/weir/scheduler"
)

// BenchmarkStartLateness is how late reserved jobs start, after the later of when they are due and
// when their insert was committed: River's default configuration, jobs due within 0.5 s, and,
// except in quiet and sparse, other jobs in the same queue at 50 a second. "early" is how many
// started before they were due, by the database's clock. Plain is River alone, by the same
// ScheduledAt.
func BenchmarkStartLateness(b *testing.B) {
	for _, c := range []trial{
		{name: "reserved", clients: 1, within: 500 * time.Millisecond},
		{name: "three-clients", clients: 3, within: 500 * time.Millisecond},
		{name: "leader-changes", clients: 3, within: 500 * time.Millisecond, resign: true},
		{name: "within-20s", clients: 1, within: 20 * time.Second},
		{name: "quiet", clients: 1, within: 500 * time.Millisecond, quiet: true},
		{name: "sparse", clients: 3, within: 20 * time.Second, quiet: true},
		{name: "default-jitter", clients: 1, within: 500 * time.Millisecond, jitter: true},
		{name: "plain", clients: 1, within: 500 * time.Millisecond, plain: true},
	} {
		b.Run(c.name, func(b *testing.B) { c.lateness(b) })
	}
}

type trial struct {
	name          string
	clients       int
	within        time.Duration
	resign, plain bool
	quiet         bool // no other jobs in the queue: their notifications wake a client, too
	jitter        bool // the default one, which is part of when a job is due
}

func (c trial) lateness(b *testing.B) {
	f := setUp(b, scheduler.Config{})
	sched := scheduler.New(f.limiter, scheduler.Config{Jitter: -1})
	if c.jitter {
		sched = scheduler.New(f.limiter, scheduler.Config{})
	}
	j := newJournal(f)
	inserts := sched
	if c.plain {
		sched = nil
	}
	for range c.clients - 1 {
		j.client(b, sched)
	}
	client := j.client(b, sched, func(c *river.Config) {
		c.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 100}}
	})
	jobs := inserts.Jobs(client)

	ctx, cancel := context.WithCancel(b.Context())
	other := make(chan struct{})
	go func() {
		defer close(other)
		for tick, i := time.NewTicker(20*time.Millisecond), 0; ctx.Err() == nil; i++ {
			<-tick.C
			if c.resign && i%50 == 0 {
				if err := client.Notify().RequestResign(b.Context()); err != nil {
					b.Error(err)
				}
			}
			if c.quiet {
				continue
			}
			if _, err := client.Insert(b.Context(), sendArgs{-1}, nil); err != nil {
				b.Error(err)
			}
		}
	}()
	time.Sleep(2 * time.Second) // the client has a leader, and its connections

	type plan struct{ due, committed time.Time }
	plans := map[int64]plan{}
	b.ResetTimer()
	for i := 0; b.Loop(); i++ {
		var p plan
		in, err := f.tryReserve(ctx, jobs, i, time.Millisecond+rand.N(c.within))
		if err != nil {
			b.Fatal(err)
		}
		p.due, p.committed = in.Job.Job.ScheduledAt, f.now(b)
		plans[in.Job.Job.ID] = p
		if i%10 == 9 {
			time.Sleep(10 * time.Millisecond)
		}
	}
	b.StopTimer()
	cancel()
	<-other
	eventually(b, "all have started", func() bool {
		n := 0
		for _, s := range j.await(b, 0) {
			if _, ok := plans[s.id]; ok {
				n++
			}
		}
		return n >= len(plans)
	})

	var late []time.Duration
	early := 0
	for _, s := range j.await(b, 0) {
		p, ok := plans[s.id]
		if !ok {
			continue
		}
		if s.at.Before(p.due) {
			early++
		}
		if p.committed.After(p.due) {
			p.due = p.committed
		}
		late = append(late, max(0, s.at.Sub(p.due)))
	}
	slices.Sort(late)
	ms := func(q float64) float64 { return late[int(q*float64(len(late)-1))].Seconds() * 1000 }
	b.ReportMetric(ms(0.5), "p50-ms")
	b.ReportMetric(ms(0.99), "p99-ms")
	b.ReportMetric(ms(1), "max-ms")
	b.ReportMetric(float64(early), "early")
	b.ReportMetric(float64(len(late)), "jobs")
}
