package bench

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/test/pair"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// hot is one limit for all, own one of each user's.
var (
	hot = ratelimit.MustDefine("hot", ratelimit.TokenBucket{Rate: 1e9, Period: rig.Never}, ratelimit.Shards(32))
	own = consumed
)

func hotRequest(int) ratelimit.Request { return hot.Global() }
func ownRequest(int) ratelimit.Request { return own.For(key(rand.IntN(manyKeys))) }

// BenchmarkHotLimit is one limit of 32 shards from which 16 callers take in SERIALIZABLE
// transactions that work for 2 ms after that, against the same with a key for each user.
// x-uncontended is the throughput by the base's.
func BenchmarkHotLimit(b *testing.B) {
	b.Run("one-process", func(b *testing.B) { hotLimit(b, "") })
	b.Run("after-read", func(b *testing.B) { hotLimit(b, `SELECT version FROM weir_schema`) })
	b.Run("sixteen-processes", hotLimitOfProcesses)
}

const hotCallers = 16

func hotLimit(b *testing.B, read string) {
	c := newCrowd(b, hotCallers)
	fill(b, c.pool, "sendMessage", manyKeys, ample, "NULL")
	rig.Exec(b, c.pool, `VACUUM ANALYZE weir_balance`)
	l := rig.Limiter(b, ratelimit.Config{})
	base := c.sleepAfter(l, pgx.Serializable, "0.002", read, ownRequest)
	ours := c.sleepAfter(l, pgx.Serializable, "0.002", read, hotRequest)
	pair.Slices(b, pair.Crowd{Metric: "x-uncontended", Base: base.do, Ours: ours.do, Workers: hotCallers})
	b.ReportMetric(ours.abortsPerCommit(), "aborts/commit")
	b.ReportMetric(base.abortsPerCommit(), "base-aborts/commit")
}

// hotLimitOfProcesses is the same with a process for each caller.
func hotLimitOfProcesses(b *testing.B) {
	c := newCrowdOfProcesses(b)
	var runs, commits [2]atomic.Int64
	do := func(side int) func(context.Context, int) error {
		return func(_ context.Context, worker int) error {
			var ran int64
			err := c.ask(worker, []string{"own", "hot"}[side]+" "+string(pgx.Serializable), &ran)
			runs[side].Add(ran)
			commits[side].Add(1)
			return err
		}
	}
	pair.Slices(b, pair.Crowd{Metric: "x-uncontended", Base: do(0), Ours: do(1), Workers: hotCallers})
	for side, name := range []string{"base-aborts/commit", "aborts/commit"} {
		b.ReportMetric(counted{runs: &runs[side], commits: &commits[side]}.abortsPerCommit(), name)
	}
}
