package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// BenchmarkHeldRows lets 32 callers take of 1,000 free keys by coalesced calls, in slices of 300
// ms: alone, and while other transactions hold 100 other rows, each of which 2 calls wait for.
// x-free is the throughput beside held rows relative to that without, x-p99 the same for the 99th
// percentile of how long a call took. The control is the slices without held rows against each
// other.
func BenchmarkHeldRows(b *testing.B) {
	const (
		callers, free = 32, 1000
		held, askers  = 100, 2
		slice, turns  = 300 * time.Millisecond, 16
	)
	pool := pgtest.Pool(b, quick, func(c *pgxpool.Config) { c.MaxConns = 32 })
	holders := rig.Beside(b, pool, rig.Most(4))
	c := rig.Coalesce(b, rig.Limiter(b, ratelimit.Config{}), pool)
	limit := ratelimit.MustDefine("heldRows", ratelimit.TokenBucket{Rate: 1e9, Period: time.Minute})
	take := func(ctx context.Context, key string) {
		if err := rig.Granted(c.RateLimit(ctx, limit.For(key))); err != nil {
			b.Error(err)
		}
	}
	for i := range free {
		take(b.Context(), key(i))
	}
	for i := range held {
		take(b.Context(), fmt.Sprint("held", i))
	}
	var n [4]int // taken beside held rows, in every other slice without, and beside rows that nobody wants
	var times [2][]time.Duration
	const without, wanted, unwanted = 0, 1, 2
	work := func(kind, turn int) {
		ctx, cancel := context.WithTimeout(b.Context(), slice)
		defer cancel()
		var mu sync.Mutex
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				var took []time.Duration
				for ctx.Err() == nil {
					began := time.Now()
					take(b.Context(), key(rand.IntN(free)))
					took = append(took, time.Since(began))
				}
				mu.Lock()
				defer mu.Unlock()
				switch kind {
				case wanted:
					n[0], times[0] = n[0]+len(took), append(times[0], took...)
				case without:
					n[1+turn%2], times[1] = n[1+turn%2]+len(took), append(times[1], took...)
				case unwanted:
					n[3] += len(took)
				}
			})
		}
		wg.Wait()
	}
	hold := func(i int) pgx.Tx {
		tx := rig.Begin(b, holders, pgx.ReadCommitted)
		if _, err := tx.Exec(b.Context(), `SELECT FROM weir_balance
			WHERE name = 'heldRows' AND key LIKE 'held%' AND substr(key, 5)::integer % 4 = $1 FOR UPDATE`,
			i); err != nil {
			b.Fatal(err)
		}
		return tx
	}
	for b.Loop() {
		for turn := range 2 * turns {
			work(without, turn/2)
			kind := wanted
			if turn%2 == 1 {
				kind = unwanted
			}
			var holding []pgx.Tx
			for i := range 4 {
				holding = append(holding, hold(i))
			}
			var waiting sync.WaitGroup
			for i := range held * askers {
				if kind == wanted {
					waiting.Go(func() { take(b.Context(), fmt.Sprint("held", i%held)) })
				}
			}
			time.Sleep(slice / 2) // until all of them have found their rows held
			work(kind, turn)
			for _, tx := range holding {
				if err := tx.Commit(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			waiting.Wait()
		}
	}
	p99 := func(of []time.Duration) float64 {
		slices.Sort(of)
		return float64(of[len(of)*99/100])
	}
	b.ReportMetric(2*float64(n[0])/float64(n[1]+n[2]), "x-free")
	b.ReportMetric(p99(times[0])/p99(times[1]), "x-p99")
	b.ReportMetric(float64(n[1])/float64(n[2]), "control")
	b.ReportMetric(p99(times[0])/1e6, "p99-ms")
	b.ReportMetric(2*float64(n[3])/float64(n[1]+n[2]), "x-held")
	b.ReportMetric(float64(n[0]), "tx")
}
