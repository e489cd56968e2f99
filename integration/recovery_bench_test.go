package integration

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

// BenchmarkRecovery is 48 keys, each with one worker who takes and then works for 50 ms, so that nobody conflicts. For a
// second each key has a second worker. x-before is the throughput from two seconds after that divided by that before it.
func BenchmarkRecovery(b *testing.B) {
	for _, roundTrip := range []time.Duration{0, 3 * time.Millisecond} {
		b.Run("RoundTrip="+roundTrip.String(), func(b *testing.B) { recovery(b, roundTrip) })
	}
}

func recovery(b *testing.B, roundTrip time.Duration) {
	b.Helper()
	const keys, measured = 48, 3 * time.Second
	pool := pgtest.Pool(b, quick, func(c *pgxpool.Config) { c.MaxConns = 2 * keys })
	fill(b, pool, "sendMessage", 10_000, ample, "NULL")
	execSQL(b, pool, `VACUUM ANALYZE weir_balance`)
	if roundTrip > 0 {
		pool = through(b, pool, far(b, pool, roundTrip))
	}
	l := limiter(b, ratelimit.Config{})
	var commits atomic.Int64
	var workers sync.WaitGroup
	work := func(until context.Context, key string) {
		for until.Err() == nil {
			err := l.InTx(b.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
				if err := granted(l.RateLimit(ctx, tx, consumed.For(key))); err != nil {
					return err
				}
				time.Sleep(50 * time.Millisecond)
				return nil
			})
			if err != nil {
				b.Error(err)
				return
			}
			commits.Add(1)
		}
	}
	crowd := func(until context.Context) {
		for i := range keys {
			workers.Go(func() { work(until, key(i)) })
		}
	}
	rate := func() float64 {
		before := commits.Load()
		time.Sleep(measured)
		return float64(commits.Load()-before) / measured.Seconds()
	}
	all, stop := context.WithCancel(b.Context())
	defer workers.Wait()
	defer stop()
	crowd(all)
	var before, after float64
	for b.Loop() {
		time.Sleep(2 * time.Second)
		before += rate()
		second, over := context.WithTimeout(all, time.Second)
		crowd(second)
		<-second.Done()
		over()
		time.Sleep(2 * time.Second)
		after += rate()
	}
	b.ReportMetric(before/float64(b.N), "before-tx/s")
	b.ReportMetric(after/float64(b.N), "after-tx/s")
	b.ReportMetric(after/before, "x-before")
}
