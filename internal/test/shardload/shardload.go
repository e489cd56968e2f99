// Package shardload offers a limit with shards a load that is a given share of its rate, on
// Postgres, and tells which of its denials were false.
//
// The load is exact on any machine, as the clock is its own: each call moves it on by an
// exponential time. So what a transaction takes is as long as many calls, and many more are under
// way at a time than a limit of this rate would have. With Paced the calls come in real time. A
// denial is false if the shards together had as many tokens. What they had is summed up by SQL of
// this package's own, in the same transaction right after the denial, at Result.At. Above READ
// COMMITTED that is the snapshot that the denial was decided on, or an earlier one. A take that it
// does not show makes the sum too large and never too small, as nobody gives, resets or resumes
// anything here: so each false denial counts, and some that were right may. At READ COMMITTED the
// sum would be of a later snapshot, which tells nothing: there none are counted.
package shardload

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/ratelimit"
)

// Counts are from 1 to MaxCount.
const (
	MaxCount  = 5
	MeanCount = (1 + MaxCount) / 2.
)

const (
	period     = time.Second // in which the limit fills up
	share      = 0.9         // of the rate that is offered
	spreadName = "spread"
)

// Load is offered by callers, a connection each.
type Load struct {
	Shards   int
	Capacity float64
	Conns    []*pgxpool.Conn
	Looks    *Looks // the tracer of Conns
	Level    pgx.TxIsoLevel
	Work     time.Duration // of a transaction after its take
	Paced    bool          // calls come in real time, and the database's clock counts

	limit   ratelimit.Limit
	key     string
	limiter *ratelimit.Limiter

	mu      sync.Mutex
	now     time.Time
	random  *rand.Rand
	log     []offer
	runs    atomic.Int64
	falsely atomic.Int64
}

// Played is what happened under a load.
type Played struct{ Calls, Denied, Falsely, Looks, Aborts float64 }

// Add adds what happened under another.
func (p *Played) Add(q Played) {
	p.Calls += q.Calls
	p.Denied += q.Denied
	p.Falsely += q.Falsely
	p.Looks += q.Looks
	p.Aborts += q.Aborts
}

// offer is a call, and what became of it.
type offer struct {
	at      time.Time
	count   float64
	granted bool
}

// Open gives a key of its own its shards.
func (l *Load) Open(ctx context.Context, key string) (err error) {
	l.limit, err = ratelimit.Define(spreadName,
		ratelimit.TokenBucket{Rate: l.Capacity, Period: period}, ratelimit.Shards(l.Shards))
	if err != nil {
		return err
	}
	l.key = key
	l.now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	l.random = rand.New(rand.NewPCG(1, 1))
	cfg := ratelimit.Config{Clock: l.clock}
	if l.Paced {
		cfg.Clock = nil
	}
	if l.limiter, err = ratelimit.New(cfg); err != nil {
		return err
	}
	err = l.call(ctx, 0, 0)
	l.log = nil
	return err
}

func (l *Load) clock() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now
}

// Even offers 90 % of the rate, for five periods.
func (l *Load) Even(ctx context.Context) (Played, error) {
	return l.offer(ctx, int64(5*share*l.Capacity/MeanCount), share)
}

// Surge offers twice as much for two periods, in which the limit runs empty, and then nothing for
// as long.
func (l *Load) Surge(ctx context.Context) (Played, error) {
	p, err := l.offer(ctx, int64(2*2*share*l.Capacity/MeanCount), 2*share)
	if l.Paced {
		time.Sleep(2 * period)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now = l.now.Add(2 * period)
	return p, err
}

func (l *Load) offer(ctx context.Context, calls int64, load float64) (p Played, err error) {
	var wg sync.WaitGroup
	var left atomic.Int64
	left.Store(calls)
	l.runs.Store(0)
	l.falsely.Store(0)
	l.Looks.n.Store(0)
	before := len(l.log)
	if l.Paced {
		l.now = time.Now()
	}
	errs := make([]error, len(l.Conns))
	for i := range l.Conns {
		wg.Go(func() {
			for left.Add(-1) >= 0 && errs[i] == nil {
				l.mu.Lock()
				n := 1 + l.random.IntN(MaxCount)
				l.now = l.now.Add(time.Duration(
					l.random.ExpFloat64() * float64(period) * MeanCount / l.Capacity / load,
				))
				at := l.now
				l.mu.Unlock()
				if l.Paced {
					time.Sleep(time.Until(at))
				}
				errs[i] = l.call(ctx, i, float64(n))
			}
		})
	}
	wg.Wait()
	for _, o := range l.log[before:] {
		if !o.granted {
			p.Denied++
		}
	}
	p.Calls = float64(calls)
	p.Falsely = float64(l.falsely.Load())
	p.Looks = float64(l.Looks.n.Load())
	p.Aborts = float64(l.runs.Load() - calls)
	return p, errors.Join(errs...)
}

func (l *Load) call(ctx context.Context, caller int, n float64) error {
	var res ratelimit.Result
	sum := -1.0
	err := l.limiter.InTxOptions(ctx, l.Conns[caller], pgx.TxOptions{IsoLevel: l.Level},
		func(ctx context.Context, tx pgx.Tx) (err error) {
			l.runs.Add(1)
			if res, err = l.limiter.RateLimit(ctx, tx, l.limit.For(l.key).Count(n)); err != nil {
				return err
			}
			if !res.OK && l.Level != pgx.ReadCommitted {
				if err := tx.QueryRow(ctx, sumSQL, l.key, l.Shards, l.Capacity/float64(l.Shards),
					res.At).Scan(&sum); err != nil {
					return err
				}
			}
			if res.OK && l.Work > 0 {
				_, err := tx.Exec(ctx, fmt.Sprintf(`SELECT pg_sleep(%v)`, l.Work.Seconds()))
				return err
			}
			return res.Err()
		})
	if err != nil && !errors.Is(err, ratelimit.ErrDenied) {
		return err
	}
	if !res.OK && sum >= n {
		l.falsely.Add(1)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.log = append(l.log, offer{res.At, n, res.OK})
	return nil
}

// sumSQL is what the shards have at $4. Those without a row are full.
//
// $1 key $2 shards $3 capacity of each
const sumSQL = `SELECT sum(coalesce(least($3, value + $3 * greatest(0, extract(epoch FROM $4::timestamptz - ts)::float8)), $3::float8))
FROM generate_series(1, $2::integer) AS s (number)
FULL JOIN (
	SELECT row_number() OVER (), value, ts FROM weir_balance
	WHERE name = '` + spreadName +
	`' AND key = $1 AND shard >= 0 AND value > '-Infinity') b ON b.row_number = s.number`

// OneRow counts, of all calls so far, those that one row in place of the shards would have denied.
func (l *Load) OneRow() (denied float64) {
	slices.SortStableFunc(l.log, func(a, b offer) int { return a.at.Compare(b.at) })
	left, last := l.Capacity, l.log[0].at
	for _, o := range l.log {
		left = min(l.Capacity, left+l.Capacity*o.at.Sub(last).Seconds()/period.Seconds())
		last = o.at
		if left < o.count {
			denied++
			continue
		}
		left -= o.count
	}
	return denied
}

// Looks is a tracer of connections that counts how often all shards of a limit are looked at.
type Looks struct{ n atomic.Int64 }

// Count is how often they were.
func (l *Looks) Count() int64 { return l.n.Load() }

func (l *Looks) note(sql string) {
	if strings.HasPrefix(sql, "SELECT h.layout, b.shards") {
		l.n.Add(1)
	}
}

// TraceQueryStart is called by pgx, as the others are.
func (l *Looks) TraceQueryStart(
	ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData,
) context.Context {
	l.note(d.SQL)
	return ctx
}

// TraceQueryEnd does nothing.
func (*Looks) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchStart does nothing.
func (*Looks) TraceBatchStart(
	ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData,
) context.Context {
	return ctx
}

// TraceBatchQuery is called for each statement of a batch.
func (l *Looks) TraceBatchQuery(_ context.Context, _ *pgx.Conn, d pgx.TraceBatchQueryData) {
	l.note(d.SQL)
}

// TraceBatchEnd does nothing.
func (*Looks) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}
