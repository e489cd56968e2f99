package bench

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pair"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// BenchmarkHotReserve is one limit of 32 shards that is in debt, from which 16 callers reserve in
// transactions that work for 2 ms after that, against the same with a key of their own for each.
// x-uncontended is the throughput by the base's.
//
// late-p99 is how much later the callers are told to run than by one line, repaid-after how much
// later the last shard has repaid its debt than if all had the same: both in the time in which each
// shard repays the mean count.
func BenchmarkHotReserve(b *testing.B) {
	for _, level := range []pgx.TxIsoLevel{pgx.Serializable, pgx.ReadCommitted} {
		b.Run(string(level), func(b *testing.B) {
			b.Run("equal", func(b *testing.B) { hotReserve(b, level, 100, func() float64 { return 5 }) })
			b.Run("heavy", func(b *testing.B) { hotReserve(b, level, 100, heavy) })
			b.Run("short", func(b *testing.B) { hotReserve(b, level, 3, func() float64 { return 5 }) })
			b.Run("sixteen-processes", func(b *testing.B) { hotReserveOfProcesses(b, level, "equal") })
			b.Run("sixteen-processes-heavy", func(b *testing.B) { hotReserveOfProcesses(b, level, "heavy") })
		})
	}
}

// The line of BenchmarkHotReserve: its rate, in tokens a second, is less than half of what the
// callers want, who come half of the time: so it stays in debt.
const lineShards, lineMean, lineRate = 32, 5.0, 6_000.0

var hotLine = ratelimit.MustDefine("line", ratelimit.TokenBucket{Rate: lineRate, Period: time.Second,
	Capacity: ratelimit.Tokens(8 * lineShards * lineMean)}, ratelimit.Shards(lineShards))

// reserve is one transaction of it.
func reserve(
	ctx context.Context, l *ratelimit.Limiter, on ratelimit.Beginner, level pgx.TxIsoLevel,
	n float64, runs *atomic.Int64,
) (res ratelimit.Result, err error) {
	err = l.InTxOptions(ctx, on, pgx.TxOptions{IsoLevel: level}, func(ctx context.Context, tx pgx.Tx) (err error) {
		runs.Add(1)
		if res, err = l.RateLimit(ctx, tx, hotLine.Global().Count(n).OrReserve()); rig.Granted(res, err) != nil {
			return rig.Granted(res, err)
		}
		_, err = tx.Exec(ctx, `SELECT pg_sleep(0.002)`)
		return err
	})
	return res, err
}

// ideal is one line in place of the shards, and how much later callers were told to run.
type ideal struct {
	mu   sync.Mutex
	owed float64
	at   time.Time
	late []float64 // in units
}

// unit is the time in which each shard repays the mean count.
const unit = lineShards * lineMean / lineRate * float64(time.Second)

func (i *ideal) take(at, runAt time.Time, n float64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.at.IsZero() {
		i.owed, i.at = -8*lineShards*lineMean, at
	}
	if d := at.Sub(i.at).Seconds(); d > 0 {
		i.owed, i.at = max(-8*lineShards*lineMean, i.owed-d*lineRate), at
	}
	i.owed += n
	told := runAt
	if told.IsZero() {
		told = at
	}
	i.late = append(
		i.late, float64(told.Sub(i.at.Add(time.Duration(max(0, i.owed)/lineRate*float64(time.Second)))))/unit,
	)
}

// fill has the line owe so many units.
func (i *ideal) fill(b *testing.B, l *ratelimit.Limiter, pool *pgxpool.Pool, units float64) {
	b.Helper()
	want := (units+1)*lineShards*lineMean + 8*lineShards*lineMean
	for want > 0 {
		n := min(want, 8*lineShards*lineMean)
		res, err := l.Autocommit(pool).RateLimit(b.Context(), hotLine.Global().Count(n).OrReserve())
		if err != nil {
			b.Fatal(err)
		}
		i.take(res.At, res.RunAt, n)
		want -= n
	}
	i.late = nil
}

func (i *ideal) report(b *testing.B, pool *pgxpool.Pool) {
	b.Helper()
	slices.Sort(i.late)
	b.ReportMetric(i.late[len(i.late)/2], "late-p50")
	b.ReportMetric(i.late[len(i.late)*99/100], "late-p99")
	var after float64
	if err := pool.QueryRow(b.Context(),
		`SELECT extract(epoch FROM max(ts - make_interval(secs => value / $1)) - min(ts)) -
			extract(epoch FROM max(ts) - min(ts)) - sum(-value) / sum(rate)
		FROM weir_balance WHERE name = 'line' AND shard > 0 AND value > '-Infinity'`,
		lineRate/lineShards).Scan(&after); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(after*float64(time.Second)/unit, "repaid-after")
}

// heavy is a count from 1 to 63, most of which are small: 5 in the mean.
func heavy() float64 {
	if rand.IntN(10) > 0 {
		return float64(1 + rand.IntN(3))
	}
	return float64(1 + rand.IntN(63))
}

// hotReserve begins with a debt of so many units.
func hotReserve(b *testing.B, level pgx.TxIsoLevel, units float64, count func() float64) {
	c := newCrowd(b, hotCallers)
	fill(b, c.pool, "sendMessage", manyKeys, ample, "NULL")
	rig.Exec(b, c.pool, `VACUUM ANALYZE weir_balance`)
	l := rig.Limiter(b, ratelimit.Config{})
	var one ideal
	one.fill(b, l, c.pool, units)
	base := c.sleepAfter(l, level, "0.002", "", ownRequest)
	var runs, commits atomic.Int64
	do := func(ctx context.Context, worker int) error {
		n := count()
		res, err := reserve(ctx, l, c.conns[worker], level, n, &runs)
		if err == nil {
			commits.Add(1)
			one.take(res.At, res.RunAt, n)
		}
		return err
	}
	pair.Slices(b, pair.Crowd{Metric: "x-uncontended", Base: base.do, Ours: do, Workers: hotCallers})
	b.ReportMetric(counted{runs: &runs, commits: &commits}.abortsPerCommit(), "aborts/commit")
	b.ReportMetric(base.abortsPerCommit(), "base-aborts/commit")
	one.report(b, c.pool)
}

// hotReserveOfProcesses is the same with a process for each caller.
func hotReserveOfProcesses(b *testing.B, level pgx.TxIsoLevel, counts string) {
	c := newCrowdOfProcesses(b)
	var one ideal
	one.fill(b, rig.Limiter(b, ratelimit.Config{}), c.pool, 100)
	var runs, commits atomic.Int64
	do := func(ctx context.Context, worker int) error {
		var n float64
		var ran, at, runAt int64
		if err := c.ask(worker, "reserve "+counts+" "+string(level), &ran, &n, &at, &runAt); err != nil {
			return err
		}
		runs.Add(ran)
		commits.Add(1)
		one.take(time.UnixMicro(at), time.UnixMicro(runAt), n)
		return nil
	}
	base := func(ctx context.Context, worker int) error {
		var n float64
		var ran, at, runAt int64
		return c.ask(worker, "own "+string(level), &ran, &n, &at, &runAt)
	}
	pair.Slices(b, pair.Crowd{Metric: "x-uncontended", Base: base, Ours: do, Workers: hotCallers})
	b.ReportMetric(counted{runs: &runs, commits: &commits}.abortsPerCommit(), "aborts/commit")
	one.report(b, c.pool)
}
