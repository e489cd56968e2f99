package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
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
//	granted        the tokens that are granted, divided by those that flow in
//	x-p99          how long the slowest per cent of grants take, re-runs included, by those of the base; x-p99-denied of denials
//	trips/grant    round trips of a call that is granted, without COMMIT; trips/denial of one that is denied
//	aborts/grant   how often a transaction runs again
//	gave-up        calls that fail
//	control        the throughput of every second slice of the base, divided by that of its others; outside of 0.97 to 1.03 the run is void
func BenchmarkHotScarce(b *testing.B) {
	b.Run("one-row", func(b *testing.B) { hotScarce(b, scarcity{percent: 5, shards: 1}) })
	b.Run("one-row/read-committed", func(b *testing.B) {
		hotScarce(b, scarcity{percent: 5, shards: 1, level: pgx.ReadCommitted})
	})
	for _, percent := range []float64{5, 25, 50, 90} {
		s := scarcity{percent: percent, shards: 32}
		run := func(name string, s scarcity) {
			b.Run(fmt.Sprintf("%v%%%s", percent, name), func(b *testing.B) { hotScarce(b, s) })
		}
		run("", s)
		patient, mixed, reserve := s, s, s
		patient.patient, mixed.count, reserve.reserve = true, mixedCount, true
		run("/at-retry", patient)
		run("/mixed", mixed)
		run("/reserve", reserve)
	}
}

// scarcity is one way to ask for more than there is.
type scarcity struct {
	percent float64 // of what callers could do
	shards  int
	level   pgx.TxIsoLevel // InTx's default if empty
	patient bool           // who is denied calls again at RetryAt
	reserve bool           // calls reserve, until MaxReserved is reached
	count   func() float64 // nil: lineMean each
}

// mixedCount is a count from 1 to 100, some of which are more than a share: 5 in the mean.
func mixedCount() float64 {
	if rand.IntN(16) > 0 {
		return float64(1 + rand.IntN(3))
	}
	return float64(1 + rand.IntN(100))
}

// tried is what one call has cost.
type tried struct {
	count, runs, trips int
}

// triesOf adds up the trips of a call in the tried that its context has.
type triesOf struct{}

func (triesOf) Decided(ctx context.Context, e ratelimit.DecidedEvent) {
	if t, ok := ctx.Value(triesOf{}).(*tried); ok {
		t.trips += e.Trips
	}
}

func (triesOf) Transacted(context.Context, ratelimit.TransactedEvent) {}

// answered are the calls that got the same answer.
type answered struct {
	times []time.Duration
	trips int
}

func (a *answered) add(took time.Duration, t *tried) {
	a.times = append(a.times, took)
	a.trips += t.trips
}

func (a *answered) tripsEach() float64 { return float64(a.trips) / float64(max(1, len(a.times))) }

// sliceOf is what a crowd does in some slices.
type sliceOf struct {
	grants, denials answered
	tokens          int // granted
	took            time.Duration
	again, failed   int // runs of transactions, after the first; calls
}

// join returns what was done in the slices of both.
func (s *sliceOf) join(other *sliceOf) (both sliceOf) {
	both.grants.times = slices.Concat(s.grants.times, other.grants.times)
	both.took = s.took + other.took
	return both
}

func (s *sliceOf) grantsPerSecond() float64 {
	return float64(len(s.grants.times)) / s.took.Seconds()
}

// work has the callers do something for seven tenths of a second, and counts what ends after the
// first two.
func (s *sliceOf) work(
	ctx context.Context,
	do func(ctx context.Context, worker int, t *tried) (*ratelimit.Result, error), patient bool,
) error {
	const d = 500 * time.Millisecond
	begin := time.Now().Add(200 * time.Millisecond)
	end := begin.Add(d)
	var wg sync.WaitGroup
	var mu sync.Mutex
	errs := make([]error, hotCallers)
	for w := range hotCallers {
		wg.Go(func() {
			for errs[w] == nil && time.Now().Before(end) {
				var t tried
				began := time.Now()
				res, err := do(context.WithValue(ctx, triesOf{}, &t), w, &t)
				took := time.Since(began)
				counts := time.Now().After(begin) && time.Now().Before(end)
				var gaveUp *ratelimit.ConflictError
				mu.Lock()
				switch {
				case errors.As(err, &gaveUp):
					s.failed++
				case err != nil:
					errs[w] = err
				case !counts:
				case res.OK:
					s.grants.add(took, &t)
					s.tokens += t.count
					s.again += t.runs - 1
				default:
					s.denials.add(took, &t)
					s.again += max(0, t.runs-1)
				}
				mu.Unlock()
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

func hotScarce(b *testing.B, s scarcity) {
	c := newCrowd(b, hotCallers)
	fill(b, c.pool, "sendMessage", manyKeys, ample, "NULL")
	rig.Exec(b, c.pool, `VACUUM ANALYZE weir_balance`)
	l := rig.Limiter(b, ratelimit.Config{Observer: triesOf{}})
	in := func(request func(int) ratelimit.Request) func(context.Context, int, *tried) (*ratelimit.Result, error) {
		return func(ctx context.Context, worker int, t *tried) (*ratelimit.Result, error) {
			var res ratelimit.Result
			r := request(worker)
			t.count = int(r.N())
			err := l.InTxOptions(ctx, c.conns[worker], pgx.TxOptions{IsoLevel: s.level}, func(ctx context.Context, tx pgx.Tx) (err error) {
				t.runs++
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
	var first, scarce sliceOf
	if err := first.work(b.Context(), base, false); err != nil {
		b.Fatal(err)
	}
	rate := s.percent / 100 * first.grantsPerSecond() * lineMean // tokens a second
	most := ratelimit.Tokens(float64(8*s.shards) * lineMean)
	line := ratelimit.MustDefine("line", ratelimit.TokenBucket{Rate: rate, Period: time.Second,
		Capacity: most, MaxReserved: most}, ratelimit.Shards(s.shards))
	request := func(n float64) ratelimit.Request {
		if s.reserve {
			return line.Global().Count(n).OrReserve()
		}
		return line.Global().Count(n)
	}
	ours := in(func(int) ratelimit.Request {
		if s.count != nil {
			return request(s.count())
		}
		return request(lineMean)
	})
	if err := new(sliceOf).work(b.Context(), ours, false); err != nil {
		b.Fatal(err)
	}
	var halves [2]sliceOf // of the base
	for round := range 8 {
		if err := halves[round%2].work(b.Context(), base, false); err != nil {
			b.Fatal(err)
		}
		for range 1000 { // what has flowed in meanwhile
			if res, err := l.Autocommit(c.pool).RateLimit(b.Context(), request(lineMean)); err != nil {
				b.Fatal(err)
			} else if !res.OK {
				break
			}
		}
		if err := scarce.work(b.Context(), ours, s.patient); err != nil {
			b.Fatal(err)
		}
	}
	own := halves[0].join(&halves[1])
	seconds, grants := scarce.took.Seconds(), float64(len(scarce.grants.times))
	b.ReportMetric(float64(scarce.tokens)/seconds/min(rate, own.grantsPerSecond()*lineMean), "granted")
	b.ReportMetric(float64(len(scarce.denials.times))/seconds, "denials/s")
	b.ReportMetric(float64(scarce.again)/grants, "aborts/grant")
	b.ReportMetric(float64(scarce.failed), "gave-up")
	base99 := p99(own.grants.times)
	b.ReportMetric(p99(scarce.grants.times)/base99, "x-p99")
	b.ReportMetric(p99(scarce.denials.times)/base99, "x-p99-denied")
	b.ReportMetric(scarce.grants.tripsEach(), "trips/grant")
	b.ReportMetric(scarce.denials.tripsEach(), "trips/denial")
	b.ReportMetric(base99/1e6, "base-p99-ms")
	b.ReportMetric(grants/seconds, "grants/s")
	b.ReportMetric(halves[0].grantsPerSecond()/halves[1].grantsPerSecond(), "control")
}
