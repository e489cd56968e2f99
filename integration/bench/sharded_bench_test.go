package bench

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/shardload"
)

// BenchmarkShardedDenials is a limit of 32 shards of 10 tokens each, from which counts of 1 to 5
// are taken at 90 % of its rate, in SERIALIZABLE transactions. An operation is one cycle of load:
// evenly for five periods; then for two at twice the load, in which the limit runs empty, and not
// at all for as long. The sixteen callers work for 2 ms after each take.
//
//	false-denials     by the number of calls: denied although the shards together had as many tokens; package shardload has
//	                  how that is known
//	denials           by the number of calls
//	one-row-denials   by the number of calls: what one row in place of the shards would have denied
//	looks/call        how often all shards were looked at
//	aborts/commit     runs of transactions that failed
//	even-...          the same while the load is even
func BenchmarkShardedDenials(b *testing.B) {
	b.Run("lone-caller", func(b *testing.B) { shardedDenials(b, 1, 0, false) })
	b.Run("sixteen-callers", func(b *testing.B) { shardedDenials(b, 16, 2*time.Millisecond, false) })
	b.Run("sixteen-callers/in-real-time", func(b *testing.B) { shardedDenials(b, 16, 2*time.Millisecond, true) })
}

func shardedDenials(b *testing.B, callers int, work time.Duration, paced bool) {
	l := shardload.Load{Shards: 32, Capacity: 320, Looks: new(shardload.Looks),
		Level: pgx.Serializable, Work: work, Paced: paced}
	pool := pgtest.Pool(b, quick, func(c *pgxpool.Config) {
		c.MaxConns = int32(callers) + 1
		c.ConnConfig.Tracer = l.Looks
	})
	l.Conns = conns(b, pool, callers)
	if err := l.Open(b.Context(), "k"); err != nil {
		b.Fatal(err)
	}
	var all, even shardload.Played
	for b.Loop() {
		e, err := l.Even(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		surge, err := l.Surge(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		even.Add(e)
		all.Add(e)
		all.Add(surge)
	}
	report := func(prefix string, p shardload.Played) {
		b.ReportMetric(p.Falsely/p.Calls, prefix+"false-denials")
		b.ReportMetric(p.Denied/p.Calls, prefix+"denials")
		b.ReportMetric(p.Looks/p.Calls, prefix+"looks/call")
		b.ReportMetric(p.Aborts/p.Calls, prefix+"aborts/commit")
	}
	report("", all)
	report("even-", even)
	b.ReportMetric(l.OneRow()/all.Calls, "one-row-denials")
}
