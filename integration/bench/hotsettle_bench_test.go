package bench

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/test/pair"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// BenchmarkHotSettle is one limit of 32 shards from which 16 callers take 5 tokens for work, in a
// transaction that goes on for 2 ms after that, and of which they have used 2 when it is done, or 8,
// which they settle in another one that goes on for 2 ms; against the same with a key of their own
// for each.
// x-uncontended is the throughput by the base's, p99-ms is of both transactions together.
func BenchmarkHotSettle(b *testing.B) {
	for _, level := range []pgx.TxIsoLevel{pgx.Serializable, pgx.ReadCommitted} {
		b.Run(string(level), func(b *testing.B) { hotSettle(b, level, 2) })
		b.Run(string(level)+"/more", func(b *testing.B) { hotSettle(b, level, 8) })
	}
}

func hotSettle(b *testing.B, level pgx.TxIsoLevel, used float64) {
	c := newCrowd(b, hotCallers)
	l := rig.Limiter(b, ratelimit.Config{})
	rule := ratelimit.TokenBucket{Rate: 1_000_000, Period: time.Second}
	hot := ratelimit.MustDefine("hot", rule, ratelimit.Shards(32)).Global()
	own := ratelimit.MustDefine("own", rule)
	work := func(n counted, r func(worker int) ratelimit.Request) func(context.Context, int) error {
		return func(ctx context.Context, worker int) error {
			q := r(worker)
			var res ratelimit.Result
			in := func(fn func(context.Context, pgx.Tx) error) error {
				defer n.commits.Add(1)
				return l.InTxOptions(ctx, c.conns[worker], pgx.TxOptions{IsoLevel: level},
					func(ctx context.Context, tx pgx.Tx) error {
						n.runs.Add(1)
						if err := fn(ctx, tx); err != nil {
							return err
						}
						_, err := tx.Exec(ctx, `SELECT pg_sleep(0.002)`)
						return err
					})
			}
			if err := in(func(ctx context.Context, tx pgx.Tx) (err error) {
				res, err = l.RateLimit(ctx, tx, q.Count(5))
				return rig.Granted(res, err)
			}); err != nil {
				return err
			}
			return in(func(ctx context.Context, tx pgx.Tx) error {
				_, err := l.Settle(ctx, tx, res.Reservation(), q.Count(used))
				return err
			})
		}
	}
	var ofBase, ofOurs [2]atomic.Int64
	ours := counted{runs: &ofOurs[0], commits: &ofOurs[1]}
	base := counted{runs: &ofBase[0], commits: &ofBase[1]}
	pair.Slices(b, pair.Crowd{
		Metric: "x-uncontended", Workers: hotCallers,
		Base: work(base, func(worker int) ratelimit.Request { return own.For(key(worker)) }),
		Ours: work(ours, func(int) ratelimit.Request { return hot }),
	})
	b.ReportMetric(ours.abortsPerCommit(), "aborts/commit")
}
