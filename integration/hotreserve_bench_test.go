package integration

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/pair"
	"github.com/weir-go/weir/ratelimit"
)

// BenchmarkHotReserve is one limit of 32 shards that is in debt, from which 16 callers reserve in transactions that work for
// 2 ms after that, against the same with a key of their own for each. x-uncontended is the throughput by the base's.
//
// late-p99 is how much later the callers are told to run than by one line, repaid-after how much later the last shard has
// repaid its debt than if all had the same: both in the time in which each shard repays the mean count.
func BenchmarkHotReserve(b *testing.B) {
	for _, level := range []pgx.TxIsoLevel{pgx.Serializable, pgx.ReadCommitted} {
		b.Run(string(level), func(b *testing.B) {
			b.Run("equal", func(b *testing.B) { hotReserve(b, level, 100, func() float64 { return 5 }) })
			b.Run("heavy", func(b *testing.B) { hotReserve(b, level, 100, heavy) })
			b.Run("short", func(b *testing.B) { hotReserve(b, level, 3, func() float64 { return 5 }) })
		})
	}
}

// heavy is a count from 1 to 100, most of which are small: 5 in the mean.
func heavy() float64 {
	if rand.IntN(10) > 0 {
		return float64(1 + rand.IntN(3))
	}
	return float64(1 + rand.IntN(63))
}

// hotReserve begins with a debt of so many units.
func hotReserve(b *testing.B, level pgx.TxIsoLevel, units float64, count func() float64) {
	const shards, mean, rate = 32, 5.0, 15_000.0 // tokens a second: half of what the callers want
	c := newCrowd(b, hotCallers)
	fill(b, c.pool, "sendMessage", manyKeys, ample, "NULL")
	execSQL(b, c.pool, `VACUUM ANALYZE weir_balance`)
	l := limiter(b, ratelimit.Config{})
	line := ratelimit.MustDefine("line", ratelimit.TokenBucket{Rate: rate, Period: time.Second, Capacity: ratelimit.Tokens(8 * shards * mean)},
		ratelimit.Shards(shards))
	unit := shards * mean / rate * float64(time.Second)

	var mu sync.Mutex
	owed, at := 0.0, time.Time{} // by one line
	var late []float64
	take := func(res ratelimit.Result, n float64) {
		mu.Lock()
		defer mu.Unlock()
		if at.IsZero() {
			owed, at = -8*shards*mean, res.At
		}
		if d := res.At.Sub(at).Seconds(); d > 0 {
			owed, at = max(-8*shards*mean, owed-d*rate), res.At
		}
		owed += n
		ideal, told := at.Add(time.Duration(max(0, owed)/rate*float64(time.Second))), res.RunAt
		if told.IsZero() {
			told = res.At
		}
		late = append(late, float64(told.Sub(ideal))/unit)
	}
	drain := func(ctx context.Context) error {
		mu.Lock()
		want := (units+1)*shards*mean - owed
		if at.IsZero() {
			want += 8 * shards * mean
		}
		mu.Unlock()
		for want > 0 {
			n := min(want, 8*shards*mean)
			res, err := l.Autocommit(c.pool).RateLimit(ctx, line.Global().Count(n).OrReserve())
			if err != nil {
				return err
			}
			take(res, n)
			want -= n
		}
		return nil
	}
	if err := drain(b.Context()); err != nil {
		b.Fatal(err)
	}
	late = nil
	base := c.sleepAfter(l, level, "0.002", "", ownRequest)
	var runs, commits atomic.Int64
	do := func(ctx context.Context, worker int) error {
		n, opts := count(), pgx.TxOptions{IsoLevel: level}
		var res ratelimit.Result
		err := l.InTxOptions(ctx, c.conns[worker], opts, func(ctx context.Context, tx pgx.Tx) (err error) {
			runs.Add(1)
			if res, err = l.RateLimit(ctx, tx, line.Global().Count(n).OrReserve()); granted(res, err) != nil {
				return granted(res, err)
			}
			_, err = tx.Exec(ctx, `SELECT pg_sleep(0.002)`)
			return err
		})
		if err == nil {
			commits.Add(1)
			take(res, n)
		}
		return err
	}
	pair.Slices(b, pair.Crowd{Metric: "x-uncontended", Base: base.do, Ours: do, Workers: hotCallers})
	b.ReportMetric(counted{runs: &runs, commits: &commits}.abortsPerCommit(), "aborts/commit")
	b.ReportMetric(base.abortsPerCommit(), "base-aborts/commit")
	slices.Sort(late)
	b.ReportMetric(late[len(late)/2], "late-p50")
	b.ReportMetric(late[len(late)*99/100], "late-p99")
	var after float64
	if err := c.pool.QueryRow(b.Context(), `SELECT extract(epoch FROM max(ts - make_interval(secs => value / rate)) - min(ts)) -
			extract(epoch FROM max(ts) - min(ts)) - sum(-value) / sum(rate)
		FROM weir_balance WHERE name = 'line' AND shard > 0 AND value > '-Infinity'`).Scan(&after); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(after*float64(time.Second)/unit, "repaid-after")
}
