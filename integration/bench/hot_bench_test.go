package bench

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/test/pair"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// BenchmarkHotRow is one key of which 16 callers take in SERIALIZABLE transactions that work for 2
// ms after that, against the same at READ COMMITTED, where they queue for the row. x-queue is the
// throughput by the base's, p99-ms is of a whole transaction with all its runs.
func BenchmarkHotRow(b *testing.B) {
	const callers = 16
	c := newCrowd(b, callers)
	fill(b, c.pool, "sendMessage", 10_000, ample, "NULL")
	rig.Exec(b, c.pool, `VACUUM ANALYZE weir_balance`)
	l, hot := rig.Limiter(b, ratelimit.Config{}), func(int) string { return key(0) }
	base := c.takeAndSleep(l, pgx.ReadCommitted, "0.002", hot)
	ours := c.takeAndSleep(l, pgx.Serializable, "0.002", hot)
	pair.Slices(b, pair.Crowd{
		Metric: "x-queue", Base: base.do, Ours: ours.do, Workers: callers,
		// A Limiter remembers for longer that a key is contended, so that it need not learn it anew
		// in each slice.
		Slice: time.Second,
	})
	b.ReportMetric(ours.abortsPerCommit(), "aborts/commit")
}
