package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// BenchmarkHotScarce is one limit of 32 shards that has less than 16 callers ask for: so many per
// cent of what they do with a key of their own for each, in transactions that work for 2 ms after
// they have taken. Slices of either side alternate. What comes first in each slice, when there is
// something left, does not count.
//
//	granted        of what flows in
//	x-p99          how long the slowest per cent of grants take, re-runs included, by those of the base; x-p99-denied of denials
//	aborts/grant   how often a transaction runs again
//	gave-up        calls that fail
func BenchmarkHotScarce(b *testing.B) {
	b.Run("one-row", func(b *testing.B) { hotScarce(b, 5, 1, false) })
	for _, percent := range []float64{5, 25, 50, 90} {
		for _, patient := range []bool{false, true} {
			name := fmt.Sprintf("%v%%", percent)
			if patient { // who is denied calls again at RetryAt
				name += "/at-retry"
			}
			b.Run(name, func(b *testing.B) { hotScarce(b, percent, 32, patient) })
		}
	}
}

// sliceOf is what a crowd does in some slices.
type sliceOf struct {
	mu              sync.Mutex
	grants, denials []time.Duration
	took            time.Duration
	runs, failed    atomic.Int64
}

// work has the callers do something for seven tenths of a second, and counts what ends after the
// first two.
func (s *sliceOf) work(
	ctx context.Context,
	do func(ctx context.Context, worker int, runs *atomic.Int64) (*ratelimit.Result, error), patient bool,
) error {
	const d = 500 * time.Millisecond
	begin := time.Now().Add(200 * time.Millisecond)
	end := begin.Add(d)
	var wg sync.WaitGroup
	errs := make([]error, hotCallers)
	for w := range hotCallers {
		wg.Go(func() {
			var runs atomic.Int64
			for errs[w] == nil && time.Now().Before(end) {
				runs.Store(0)
				began := time.Now()
				res, err := do(ctx, w, &runs)
				took := time.Since(began)
				counts := time.Now().After(begin) && time.Now().Before(end)
				var gaveUp *ratelimit.ConflictError
				s.mu.Lock()
				switch {
				case errors.As(err, &gaveUp):
					s.failed.Add(1)
				case err != nil:
					errs[w] = err
				case !counts:
				case res.OK:
					s.grants = append(s.grants, took)
					s.runs.Add(runs.Load() - 1)
				default:
					s.denials = append(s.denials, took)
					s.runs.Add(max(0, runs.Load()-1))
				}
				s.mu.Unlock()
				if err == nil && !res.OK && patient {
					time.Sleep(min(time.Until(res.RetryAt), time.Until(end)))
				}
			}
		})
	}
	wg.Wait()
	s.took += d
	return errors.Join(errs...)
}

func p99(times []time.Duration) float64 {
	if len(times) == 0 {
		return 0
	}
	slices.Sort(times)
	return float64(times[len(times)*99/100])
}

func hotScarce(b *testing.B, percent float64, shards int, patient bool) {
	const count = 5.0
	c := newCrowd(b, hotCallers)
	fill(b, c.pool, "sendMessage", manyKeys, ample, "NULL")
	rig.Exec(b, c.pool, `VACUUM ANALYZE weir_balance`)
	l := rig.Limiter(b, ratelimit.Config{})
	in := func(request func(int) ratelimit.Request) func(context.Context, int,
		*atomic.Int64) (*ratelimit.Result, error) {
		return func(ctx context.Context, worker int, runs *atomic.Int64) (*ratelimit.Result, error) {
			var res ratelimit.Result
			r := request(worker)
			err := l.InTx(ctx, c.conns[worker], func(ctx context.Context, tx pgx.Tx) (err error) {
				runs.Add(1)
				if res, err = l.RateLimit(ctx, tx, r); err != nil || !res.OK {
					return err
				}
				_, err = tx.Exec(ctx, `SELECT pg_sleep(0.002)`)
				return err
			})
			return &res, err
		}
	}
	base := in(ownRequest)
	var own, scarce sliceOf
	if err := own.work(b.Context(), base, false); err != nil {
		b.Fatal(err)
	}
	rate := percent / 100 * float64(len(own.grants)) / own.took.Seconds() // calls a second
	line := ratelimit.MustDefine("line", ratelimit.TokenBucket{Rate: rate * count,
		Period: time.Second, Capacity: ratelimit.Tokens(float64(8*shards) * count)},
		ratelimit.Shards(shards))
	ours := in(func(int) ratelimit.Request { return line.Global().Count(count) })
	own = sliceOf{}
	if err := new(sliceOf).work(b.Context(), ours, false); err != nil {
		b.Fatal(err)
	}
	for range 8 {
		if err := own.work(b.Context(), base, false); err != nil {
			b.Fatal(err)
		}
		for range 1000 { // what has flowed in meanwhile
			if res, err := l.Autocommit(c.pool).RateLimit(b.Context(), line.Global().Count(count)); err != nil {
				b.Fatal(err)
			} else if !res.OK {
				break
			}
		}
		if err := scarce.work(b.Context(), ours, patient); err != nil {
			b.Fatal(err)
		}
	}
	grants := float64(len(scarce.grants))
	most := min(rate*scarce.took.Seconds(), float64(len(own.grants))/own.took.Seconds()*scarce.took.Seconds())
	b.ReportMetric(grants/most, "granted")
	b.ReportMetric(float64(len(scarce.denials))/scarce.took.Seconds(), "denials/s")
	b.ReportMetric(float64(scarce.runs.Load())/grants, "aborts/grant")
	b.ReportMetric(float64(scarce.failed.Load()), "gave-up")
	base99 := p99(own.grants)
	b.ReportMetric(p99(scarce.grants)/base99, "x-p99")
	b.ReportMetric(p99(scarce.denials)/base99, "x-p99-denied")
	b.ReportMetric(base99/1e6, "base-p99-ms")
	b.ReportMetric(grants/scarce.took.Seconds(), "grants/s")
}
