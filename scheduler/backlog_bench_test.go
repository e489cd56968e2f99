package scheduler_test

import (
	"testing"
	"time"

	"github.com/riverqueue/river"

	"github.com/weir-go/weir/ratelimit"
)

// BenchmarkBacklog is how long ten jobs of customer B wait behind 20,000 of A's, which are inserted
// just before, and of which ten a minute may start: one client with ten workers. With MaxReserved
// hardly any of A's jobs can reserve.
//
//	first-ms, last-ms  from B's insert to the start of the first and of the last of its jobs
//	clear-ms           from B's insert until none of A's jobs is in the way
//	versions/job       row versions that A's jobs have cost by then, a job
func BenchmarkBacklog(b *testing.B) {
	for name, most := range map[string]*float64{"Unbounded": nil, "MaxReserved": ratelimit.Tokens(5)} {
		b.Run(name, func(b *testing.B) {
			f, sched, j := exact(b)
			const backlog, modest = 20_000, 10
			limit := ratelimit.MustDefine("backlog"+name,
				ratelimit.TokenBucket{Rate: 10, Period: time.Minute, MaxReserved: most})
			j.limited(func(n int) []ratelimit.Request {
				if n < 0 {
					return []ratelimit.Request{limit.For("B")}
				}
				return []ratelimit.Request{limit.For("A")}
			})
			f.noteVersions(b)
			j.client(b, sched, func(c *river.Config) {
				c.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 10}}
			})
			f.enqueue(b, upTo(backlog)...)
			var theirs []int
			for i := range modest {
				theirs = append(theirs, -1-i)
			}
			inserted := f.now(b)
			f.enqueue(b, theirs...)
			var starts []time.Time
			eventually(b, "B's jobs have started", func() bool {
				starts = nil
				for _, s := range j.await(b, 0) {
					if s.n < 0 {
						starts = append(starts, s.at)
					}
				}
				return len(starts) == modest
			})
			eventually(b, "A's jobs are out of the way", func() bool {
				return f.count(b, `state = 'available' AND scheduled_at <= now()`) == 0
			})
			clear := f.now(b)
			ms := func(at time.Time) float64 { return float64(at.Sub(inserted).Milliseconds()) }
			b.ReportMetric(ms(starts[0]), "first-ms")
			b.ReportMetric(ms(starts[modest-1]), "last-ms")
			b.ReportMetric(ms(clear), "clear-ms")
			versions := 0
			for _, of := range f.versions(b) {
				versions += len(of)
			}
			b.ReportMetric(float64(versions)/backlog, "versions/job")
			b.ReportMetric(0, "ns/op")
		})
	}
}
