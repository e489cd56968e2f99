package bench

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
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

// BenchmarkPruneUnderLoad prunes idle rows, 1,000,000 unless WEIR_TEST_KEYS says else, with the
// default configuration, beside two callers who take by InTx of 10,000 keys of the same table
// without a rest. Prune stands still every other second: x-p99 is how many times as long the
// slowest in a hundred takes are while it works as while it does not, and control the same between
// two halves of the seconds in which it does not. Prune's own rests count as its work.
func BenchmarkPruneUnderLoad(b *testing.B) {
	const live, callers = 10_000, 2
	idle := keysToTest(b)
	for range b.N {
		b.StopTimer()
		pool := pgtest.Pool(b, func(c *pgxpool.Config) { c.MaxConns = callers + 2 })
		rig.Exec(b, pool, `SET synchronous_commit = off`)
		fillScattered(b, pool, idle)
		rig.Exec(b, pool, `UPDATE weir_balance SET ts = ts - interval '1 day'`)
		fill(b, pool, "live", live, ample, "NULL")
		rig.Exec(b, pool, `UPDATE weir_balance SET capacity = 2 * value WHERE name = 'live'`) // far from full
		rig.Exec(b, pool, `VACUUM ANALYZE weir_balance`)
		l := rig.Limiter(b, ratelimit.Config{})
		limit := ratelimit.MustDefine("live", ratelimit.TokenBucket{Rate: ample, Period: rig.Never,
			Capacity: ratelimit.Tokens(2 * ample)})

		var phase atomic.Int64 // even: Prune stands still
		var mu sync.Mutex
		took := map[int64][]time.Duration{}
		ctx, stop := context.WithCancel(b.Context())
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				for ctx.Err() == nil {
					in, began := phase.Load(), time.Now()
					err := l.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
						_, err := l.RateLimit(ctx, tx, limit.For(key(rand.IntN(live))))
						return err
					})
					if err != nil && !errors.Is(err, context.Canceled) {
						b.Error(err)
						return
					}
					if d := time.Since(began); err == nil && phase.Load() == in {
						mu.Lock()
						took[in] = append(took[in], d)
						mu.Unlock()
					}
				}
			})
		}
		const second = time.Second
		time.Sleep(second)
		phase.Add(1)
		last := time.Now()
		b.StartTimer()
		done, err := l.Prune(ctx, pool, ratelimit.PruneConfig{Progress: func(ratelimit.Pruned) error {
			if time.Since(last) > second {
				phase.Add(1)
				time.Sleep(second)
				phase.Add(1)
				last = time.Now()
			}
			return nil
		}})
		b.StopTimer()
		stop()
		wg.Wait()
		if err != nil || done.Deleted != int64(idle) {
			b.Fatalf("%+v, %v", done, err)
		}
		p99 := func(of func(phase int64) bool) time.Duration {
			var all []time.Duration
			for i, d := range took {
				if of(i) {
					all = append(all, d...)
				}
			}
			if len(all) == 0 {
				return 0
			}
			slices.Sort(all)
			return all[len(all)*99/100]
		}
		base, ours := p99(func(i int64) bool { return i%2 == 0 }), p99(func(i int64) bool { return i%2 == 1 })
		b.ReportMetric(float64(ours)/float64(base), "x-p99")
		b.ReportMetric(float64(p99(func(i int64) bool { return i%4 == 0 }))/float64(p99(func(i int64) bool {
			return i%4 == 2
		})), "control")
		b.ReportMetric(float64(ours.Microseconds())/1000, "p99-ms")
		b.ReportMetric(float64(base.Microseconds())/1000, "base-p99-ms")
		b.ReportMetric(float64(idle), "keys")
	}
}
