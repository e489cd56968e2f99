package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/test/pair"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/shard"
)

// BenchmarkHotReserve is one limit of 32 shards that is in debt, from which 16 callers reserve in
// transactions that work for 2 ms after that, against the same with a key of their own for each.
// x-uncontended is the throughput by the base's.
//
// late-p99 is how much later the callers are told to run than by one line, repaid-after how much
// later the last shard has repaid its debt than if all had the same: both in units, the time in
// which each shard repays the mean count. late-by-wait-p99 is how much later relative to the wait
// in one line, or to a unit if that is longer. debt-p1 and debt-p99 are what one line owes when a
// caller reserves, in units.
//
// The short lines only begin so. The paced ones stay so: their callers come as fast as the line
// repays.
func BenchmarkHotReserve(b *testing.B) {
	for _, level := range []pgx.TxIsoLevel{pgx.Serializable, pgx.ReadCommitted} {
		b.Run(string(level), func(b *testing.B) {
			run := func(name string, does func(*testing.B, pgx.TxIsoLevel, func() float64),
				count func() float64,
			) {
				b.Run(name, func(b *testing.B) { does(b, level, count) })
			}
			run("equal", hotReserve, equal)
			run("heavy", hotReserve, heavy)
			run("short", hotReserveOfShort, equal)
			run("paced", pacedReserve, equal)
			run("paced-heavy", pacedReserve, heavy)
			run("grown", hotReserveOfGrown, equal)
			run("grown-heavy", hotReserveOfGrown, heavy)
			run("thousand-keys", hotReserveOfKeys, equal)
			run("thousand-keys-heavy", hotReserveOfKeys, heavy)
			run("sixteen-processes", hotReserveOfProcesses, equal)
			run("sixteen-processes-heavy", hotReserveOfProcesses, heavy)
			run("paced-sixteen-processes", pacedReserveOfProcesses, equal)
			run("paced-sixteen-processes-heavy", pacedReserveOfProcesses, heavy)
		})
	}
}

// The line of BenchmarkHotReserve: its rate, in tokens a second, is less than half of what the
// callers want, who come half of the time: so it stays in debt.
const lineShards, lineMean, lineRate = 32, 5.0, 6_000.0

// lineCapacity is eight mean counts for each shard.
const lineCapacity = 8 * lineShards * lineMean

func lineOf(shards int) ratelimit.Limit {
	return ratelimit.MustDefine("line", ratelimit.TokenBucket{Rate: lineRate, Period: time.Second,
		Capacity: ratelimit.Tokens(lineCapacity)}, ratelimit.Shards(shards))
}

var hotLine = lineOf(lineShards)

// reserve is one transaction of it.
func reserve(
	ctx context.Context, l *ratelimit.Limiter, on ratelimit.Beginner, level pgx.TxIsoLevel,
	request ratelimit.Request, runs *atomic.Int64,
) (res ratelimit.Result, err error) {
	err = l.InTxOptions(ctx, on, pgx.TxOptions{IsoLevel: level}, func(ctx context.Context, tx pgx.Tx) (err error) {
		runs.Add(1)
		if res, err = l.RateLimit(ctx, tx, request.OrReserve()); rig.Granted(res, err) != nil {
			return rig.Granted(res, err)
		}
		_, err = tx.Exec(ctx, `SELECT pg_sleep(0.002)`)
		return err
	})
	return res, err
}

// equal and heavy are counts with a mean of lineMean. The heavy ones are from 1 to 100: most are
// small, and some are larger than a shard's part of the capacity.
func equal() float64 { return lineMean }

func heavy() float64 {
	if rand.IntN(97) >= 6 {
		return float64(1 + rand.IntN(3))
	}
	return float64(1 + rand.IntN(100))
}

// reservations are what a crowd reserves of one line.
type reservations struct {
	ideal
	runs, commits atomic.Int64
}

// do reserves what is requested, and notes what one line would have said.
func (r *reservations) do(
	ctx context.Context, l *ratelimit.Limiter, on ratelimit.Beginner, level pgx.TxIsoLevel,
	request ratelimit.Request, one *ideal,
) error {
	res, err := reserve(ctx, l, on, level, request, &r.runs)
	if err == nil {
		r.commits.Add(1)
		one.take(res.At, res.RunAt, request.N())
	}
	return err
}

func (r *reservations) abortsPerCommit() float64 {
	return counted{runs: &r.runs, commits: &r.commits}.abortsPerCommit()
}

// against compares them with what callers take of keys of their own. Each reservation is of what
// which returns.
func (r *reservations) against(
	b *testing.B, c crowd, l *ratelimit.Limiter, level pgx.TxIsoLevel, count func() float64,
	which func() (ratelimit.Request, *ideal),
) {
	b.Helper()
	base := c.sleepAfter(l, level, "0.002", "", ownRequest)
	do := func(ctx context.Context, worker int) error {
		request, one := which()
		return r.do(ctx, l, c.conns[worker], level, request.Count(count()), one)
	}
	pair.Slices(b, pair.Crowd{Metric: "x-uncontended", Base: base.do, Ours: do, Workers: hotCallers})
	b.ReportMetric(r.abortsPerCommit(), "aborts/commit")
	b.ReportMetric(base.abortsPerCommit(), "base-aborts/commit")
}

// newCrowdBesideKeys is a crowd that may also take of keys of their own.
func newCrowdBesideKeys(b *testing.B) crowd {
	b.Helper()
	c := newCrowd(b, hotCallers)
	fill(b, c.pool, "sendMessage", manyKeys, ample, "NULL")
	rig.Exec(b, c.pool, `VACUUM ANALYZE weir_balance`)
	return c
}

func (r *reservations) ofLine() (ratelimit.Request, *ideal) { return hotLine.Global(), &r.ideal }

// hotReserve begins with a debt of a hundred units.
func hotReserve(b *testing.B, level pgx.TxIsoLevel, count func() float64) {
	hotReserveFrom(b, level, 100, count)
}

// hotReserveOfShort begins with a debt of three units, which grows.
func hotReserveOfShort(b *testing.B, level pgx.TxIsoLevel, count func() float64) {
	hotReserveFrom(b, level, 3, count)
}

func hotReserveFrom(b *testing.B, level pgx.TxIsoLevel, units float64, count func() float64) {
	b.Helper()
	c, l := newCrowdBesideKeys(b), rig.Limiter(b, ratelimit.Config{})
	var r reservations
	r.fill(b, l, c.pool, hotLine, units)
	r.against(b, c, l, level, count, r.ofLine)
	report(b, c.pool, &r.ideal)
}

// hotReserveOfGrown is the same with a limit that has come into debt with four shards, and got the
// others then.
func hotReserveOfGrown(b *testing.B, level pgx.TxIsoLevel, count func() float64) {
	c, l := newCrowdBesideKeys(b), rig.Limiter(b, ratelimit.Config{})
	var r reservations
	four := lineOf(4)
	r.fill(b, l, c.pool, four, 100)
	if err := pgx.BeginFunc(b.Context(), c.pool, func(tx pgx.Tx) error {
		return l.Reshard(b.Context(), tx, lineShards, four.Global())
	}); err != nil {
		b.Fatal(err)
	}
	r.against(b, c, l, level, count, r.ofLine)
	report(b, c.pool, &r.ideal)
	var row int32
	var open int
	if err := c.pool.QueryRow(b.Context(), `SELECT min(shard), count(*) FROM weir_balance
		WHERE name = 'line' AND shard > 0 AND value > '-Infinity'`).Scan(&row, &open); err != nil {
		b.Fatal(err)
	}
	grown := shard.Layout{Shards: lineShards, Generation: 2}
	if layout, _ := shard.Address(row); layout != grown || open != lineShards {
		b.Fatalf("the limit has %d shards of %+v, want those of %+v", open, layout, grown)
	}
}

// hotReserveOfKeys is the same with a thousand keys, each of which owes what it repays in some
// minutes. Half of the calls are for the first key, the others for any.
func hotReserveOfKeys(b *testing.B, level pgx.TxIsoLevel, count func() float64) {
	const keys, owed = 1000, 300 * lineRate
	c := newCrowdBesideKeys(b)
	first := rig.Limiter(b, ratelimit.Config{}).Autocommit(c.pool)
	for i := range keys { // makes the shards
		if _, err := first.RateLimit(b.Context(), hotLine.For(key(i))); err != nil {
			b.Fatal(err)
		}
	}
	var at time.Time
	var rows int
	if err := c.pool.QueryRow(b.Context(), `
		WITH owing AS (
			UPDATE weir_balance SET value = $1, ts = now()
			WHERE name = 'line' AND shard > 0 AND value > '-Infinity' RETURNING 1
		) SELECT now(), count(*) FROM owing`, -owed/lineShards).Scan(&at, &rows); err != nil {
		b.Fatal(err)
	}
	if rows != keys*lineShards {
		b.Fatalf("%d keys have %d shards, want %d", keys, rows, keys*lineShards)
	}
	rig.Exec(b, c.pool, `VACUUM ANALYZE weir_balance`)
	lines := make([]*ideal, keys)
	for i := range lines {
		lines[i] = &ideal{owed: owed, at: at}
	}
	l := rig.Limiter(b, ratelimit.Config{}) // which knows none of this yet
	var r reservations
	r.against(b, c, l, level, count, func() (ratelimit.Request, *ideal) {
		i := rand.IntN(2) * rand.IntN(keys)
		return hotLine.For(key(i)), lines[i]
	})
	report(b, c.pool, lines...)
}

// hotReserveOfProcesses is the same with a process for each caller.
func hotReserveOfProcesses(b *testing.B, level pgx.TxIsoLevel, count func() float64) {
	c := newCrowdOfProcesses(b)
	var r reservations
	r.fill(b, rig.Limiter(b, ratelimit.Config{}), c.pool, hotLine, 100)
	do := func(_ context.Context, worker int) error { return r.ask(c, worker, level, count()) }
	base := func(_ context.Context, worker int) error {
		var ran, at, runAt int64
		return c.ask(worker, "own "+string(level), &ran, &at, &runAt)
	}
	pair.Slices(b, pair.Crowd{Metric: "x-uncontended", Base: base, Ours: do, Workers: hotCallers})
	b.ReportMetric(r.abortsPerCommit(), "aborts/commit")
	report(b, c.pool, &r.ideal)
}

// ask is do by a process.
func (r *reservations) ask(c *crowdOfProcesses, worker int, level pgx.TxIsoLevel, n float64) error {
	var ran, at, runAt int64
	if err := c.ask(worker, fmt.Sprintf("reserve %v %v", n, level), &ran, &at, &runAt); err != nil {
		return err
	}
	r.runs.Add(ran)
	r.commits.Add(1)
	r.take(time.UnixMicro(at), time.UnixMicro(runAt), n)
	return nil
}
