package bench

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// BenchmarkRecovery is 48 keys, each with one worker who takes and then works for 50 ms, so that
// nobody conflicts. For a second each key has a second worker. x-before is the throughput from two
// seconds after that divided by that before it, and by what the same came to for 16 other keys
// beside them, which nobody disturbs: the control. Without it the benchmark would tell how busy the
// machine was.
func BenchmarkRecovery(b *testing.B) {
	for _, roundTrip := range []time.Duration{0, 3 * time.Millisecond} {
		b.Run("RoundTrip="+roundTrip.String(), func(b *testing.B) { recovery(b, roundTrip) })
	}
}

func recovery(b *testing.B, roundTrip time.Duration) {
	b.Helper()
	const (
		keys, calm    = 48, 16
		measured      = 4 * time.Second
		ours, control = 0, 1
	)
	pool := pgtest.Pool(b, quick, func(c *pgxpool.Config) { c.MaxConns = 2*keys + calm })
	fill(b, pool, "sendMessage", 10_000, ample, "NULL")
	rig.Exec(b, pool, `VACUUM ANALYZE weir_balance`)
	if roundTrip > 0 {
		pool = rig.Through(b, pool, rig.Far(b, pool, roundTrip))
	}
	all, stop := context.WithCancel(b.Context())
	var workers sync.WaitGroup
	defer workers.Wait()
	defer stop()
	var commits [2]atomic.Int64
	limiters := [2]*ratelimit.Limiter{rig.Limiter(b, ratelimit.Config{}), rig.Limiter(b, ratelimit.Config{})}
	work := func(until context.Context, side int, key string) {
		l := limiters[side]
		for until.Err() == nil {
			err := l.InTx(b.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
				if err := rig.Granted(l.RateLimit(ctx, tx, consumed.For(key))); err != nil {
					return err
				}
				time.Sleep(50 * time.Millisecond)
				return nil
			})
			if err != nil {
				b.Error(err)
				return
			}
			commits[side].Add(1)
		}
	}
	crowd := func(until context.Context, side, from, to int) {
		for i := from; i < to; i++ {
			workers.Go(func() { work(until, side, key(i)) })
		}
	}
	count := func(n *[2]float64) {
		before := [2]int64{commits[0].Load(), commits[1].Load()}
		time.Sleep(measured)
		for side := range n {
			n[side] += float64(commits[side].Load()-before[side]) / measured.Seconds()
		}
	}
	crowd(all, ours, 0, keys)
	crowd(all, control, keys, keys+calm)
	var before, after [2]float64
	for b.Loop() {
		time.Sleep(2 * time.Second)
		count(&before)
		second, over := context.WithTimeout(all, time.Second)
		crowd(second, ours, 0, keys)
		<-second.Done()
		over()
		time.Sleep(2 * time.Second)
		count(&after)
	}
	b.ReportMetric(before[ours]/float64(b.N), "before-tx/s")
	b.ReportMetric(after[ours]/float64(b.N), "after-tx/s")
	b.ReportMetric(after[control]/before[control], "control")
	b.ReportMetric(after[ours]/before[ours]/(after[control]/before[control]), "x-before")
}
