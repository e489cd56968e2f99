package integration

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

// What BenchmarkShardedDenials takes from: 32 shards of 10 tokens. The period is that in which it fills up.
var spread = ratelimit.MustDefine("spread", ratelimit.TokenBucket{Rate: spreadCapacity, Period: spreadPeriod}, ratelimit.Shards(32))

const (
	spreadCapacity = 320
	spreadPeriod   = time.Second
	spreadLoad     = 0.9
	meanCount      = 3 // of 1 to 5
)

// BenchmarkShardedDenials is a limit of 32 shards of 10 tokens each, from which counts of 1 to 5 are taken at 90 % of its
// rate, in SERIALIZABLE transactions. An operation is one cycle of load: evenly for five periods; then for two and a half at
// twice the load, in which the limit runs empty, and not at all for as long. The load is exact on any machine, as the clock is
// the benchmark's own: each call moves it on by an exponential time. The sixteen callers work for 2 ms after each take.
//
//	false-denials     by the number of calls: denied although the shards together had as many tokens
//	denials           by the number of calls
//	one-row-denials   by the number of calls: what one row in place of the shards would have denied
//	looks/call        how often all shards were looked at
//	aborts/commit     runs of transactions that failed
//	even-...          the same while the load is even
//
// What the shards together had is summed up here, by SQL of the benchmark's own, in the same transaction right after the
// denial, at Result.At. That is the snapshot that the denial was decided on, or an earlier one. A take that it does not show
// makes the sum too large and never too small, as nobody gives, resets or resumes anything here: so each false denial counts,
// and some that were right may.
func BenchmarkShardedDenials(b *testing.B) {
	b.Run("lone-caller", func(b *testing.B) { shardedDenials(b, 1, `SELECT`) })
	b.Run("sixteen-callers", func(b *testing.B) { shardedDenials(b, 16, `SELECT pg_sleep(0.002)`) })
}

func shardedDenials(b *testing.B, callers int, after string) {
	looks := &lookCounter{}
	pool := pgtest.Pool(b, quick, func(c *pgxpool.Config) {
		c.MaxConns = int32(callers) + 1
		c.ConnConfig.Tracer = looks
	})
	d := &denials{crowd: crowd{pool, conns(b, pool, callers)}, looks: looks, clock: newClock(), after: after, random: rand.New(rand.NewPCG(1, 1))}
	d.limiter = limiter(b, ratelimit.Config{Clock: d.clock.now})
	if err := d.call(b.Context(), 0, 0); err != nil { // gives it its shards
		b.Fatal(err)
	}
	d.log = nil
	var even, surge played
	for b.Loop() {
		const perCycle = 5 * spreadLoad * spreadCapacity / meanCount
		d.load(b, &even, perCycle, spreadLoad)
		d.load(b, &surge, perCycle, 2*spreadLoad)
		d.clock.add(5 * spreadPeriod / 2)
	}
	all := played{even.calls + surge.calls, even.denied + surge.denied, even.falsely + surge.falsely, even.looks + surge.looks, even.aborts + surge.aborts}
	report := func(prefix string, t played) {
		b.ReportMetric(t.falsely/t.calls, prefix+"false-denials")
		b.ReportMetric(t.denied/t.calls, prefix+"denials")
		b.ReportMetric(t.looks/t.calls, prefix+"looks/call")
		b.ReportMetric(t.aborts/t.calls, prefix+"aborts/commit")
	}
	report("", all)
	report("even-", even)
	b.ReportMetric(d.oneRow()/all.calls, "one-row-denials")
}

// played is what happened under a load.
type played struct{ calls, denied, falsely, looks, aborts float64 }

// denials is what the callers of BenchmarkShardedDenials share.
type denials struct {
	crowd
	looks   *lookCounter
	limiter *ratelimit.Limiter
	clock   *clock
	after   string // what they do after a take

	mu      sync.Mutex
	random  *rand.Rand
	log     []offer
	runs    atomic.Int64
	falsely atomic.Int64
}

// offer is a call and what became of it.
type offer struct {
	at      time.Time
	count   float64
	granted bool
}

// load lets the callers make a number of calls, at a share of the limit's rate, and adds what happens to t.
func (d *denials) load(b *testing.B, t *played, calls int64, share float64) {
	b.Helper()
	var wg sync.WaitGroup
	var left atomic.Int64
	left.Store(calls)
	d.runs.Store(0)
	d.falsely.Store(0)
	d.looks.n.Store(0)
	before := len(d.log)
	errs := make([]error, len(d.conns))
	for i := range d.conns {
		wg.Go(func() {
			for left.Add(-1) >= 0 && errs[i] == nil {
				d.mu.Lock()
				n := 1 + d.random.IntN(2*meanCount-1)
				d.clock.add(time.Duration(d.random.ExpFloat64() * float64(spreadPeriod) * meanCount / spreadCapacity / share))
				d.mu.Unlock()
				errs[i] = d.call(b.Context(), i, float64(n))
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		b.Fatal(err)
	}
	for _, o := range d.log[before:] {
		t.calls++
		if !o.granted {
			t.denied++
		}
	}
	t.falsely += float64(d.falsely.Load())
	t.looks += float64(d.looks.n.Load())
	t.aborts += float64(d.runs.Load() - calls)
}

func (d *denials) call(ctx context.Context, worker int, n float64) error {
	var res ratelimit.Result
	var sum float64
	err := d.limiter.InTx(ctx, d.conns[worker], func(ctx context.Context, tx pgx.Tx) (err error) {
		d.runs.Add(1)
		if res, err = d.limiter.RateLimit(ctx, tx, spread.Global().Count(n)); err != nil {
			return err
		}
		if !res.OK {
			if err := tx.QueryRow(ctx, spreadSum, res.At).Scan(&sum); err != nil {
				return err
			}
			return res.Err()
		}
		_, err = tx.Exec(ctx, d.after)
		return err
	})
	if err != nil && !errors.Is(err, ratelimit.ErrDenied) {
		return err
	}
	if !res.OK && sum >= n {
		d.falsely.Add(1)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.log = append(d.log, offer{res.At, n, res.OK})
	return nil
}

// spreadSum is what the shards have at $1. Those without a row are full.
const spreadSum = `SELECT sum(coalesce(least(10, value + 10 * greatest(0, extract(epoch FROM $1::timestamptz - ts)::float8)), 10))
FROM generate_series(32 * 31 / 2, 32 * 33 / 2 - 1) AS s (shard)
LEFT JOIN weir_balance b ON b.name = 'spread' AND b.key = '' AND b.shard = s.shard`

// oneRow counts the same calls that one row would have denied.
func (d *denials) oneRow() (denied float64) {
	slices.SortStableFunc(d.log, func(a, b offer) int { return a.at.Compare(b.at) })
	left, last := float64(spreadCapacity), d.log[0].at
	for _, o := range d.log {
		left = min(spreadCapacity, left+spreadCapacity*o.at.Sub(last).Seconds()/spreadPeriod.Seconds())
		last = o.at
		if left < o.count {
			denied++
			continue
		}
		left -= o.count
	}
	return denied
}

// lookCounter counts the statements that look at all shards of a limit.
type lookCounter struct{ n atomic.Int64 }

func (l *lookCounter) count(sql string) {
	if strings.Contains(sql, "array_agg") {
		l.n.Add(1)
	}
}

func (l *lookCounter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	l.count(d.SQL)
	return ctx
}
func (l *lookCounter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (l *lookCounter) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}
func (l *lookCounter) TraceBatchQuery(_ context.Context, _ *pgx.Conn, d pgx.TraceBatchQueryData) {
	l.count(d.SQL)
}
func (l *lookCounter) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}
