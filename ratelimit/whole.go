package ratelimit

import (
	"database/sql"
	"slices"
	"time"

	"github.com/weir-go/weir/internal/algebra"
	"github.com/weir-go/weir/shard"
)

// A limit of n shards is n balances, each with an n-th of its capacity, of its rate and of
// MaxReserved. Each is a limit by itself, with its own debt and line. So no more than capacity +
// rate*t is granted in all, as long as no call takes more than a share from one shard: otherwise
// lines that start at the same time could start work for more than the capacity at once. A larger
// count is taken from several shards, in parts, and the work may run when all parts may.

// largest returns how much the call should wait for in one shard at most, and how much it may: a
// share, with room for rounding.
func (c *call) largest(s *algebra.Shares) (most, share float64) {
	share = s.Each.Capacity * (1 + 1e-9)
	if c.most > 0 {
		return min(share, c.most), share
	}
	return share, share
}

// of returns c for a single shard, to read and write it like a balance of its own.
func (c *call) of(layout shard.Layout, i int) call {
	r := *c
	if layout.Shards > 1 {
		s := c.Shares(layout.Shards)
		r.Rule, r.args = *s.Of(i), nil
		r.Leave = c.leaves(layout.Shards, i)
	}
	r.Shard, r.parts, r.shards = layout.Row(i), nil, 0
	return r
}

// leaves returns what a call must leave in one of n shards: its part of Leave. Concurrent calls may
// each have seen enough in all shards; this keeps them from leaving less together.
func (c *call) leaves(n, i int) float64 {
	first, each := shard.Split(c.Leave, n)
	if i == 0 {
		return first
	}
	return each
}

// take is of for a take of count tokens.
func (c *call) take(layout shard.Layout, i int, count float64) call {
	r := c.of(layout, i)
	if r.Count = count; c.Count > 0 && c.Before > 0 {
		r.Before *= count / c.Count
	}
	return r
}

// follow returns what c, a take from a shard of a former layout, is in the layout to.
func (c *call) follow(to shard.Layout) []call {
	from, i := shard.Address(c.Shard)
	var all []call
	for _, o := range shard.Overlaps(from.Shards, i, to.Shards) {
		r := *c
		// the size of a new shard relative to an old one
		size := float64(from.Shards) / float64(to.Shards)
		r.Shard, r.args = to.Row(o.Shard), nil
		r.Capacity, r.Rate, r.Debt = r.Capacity*size, r.Rate*size, r.Debt*size
		r.Count, r.used = r.Count*o.Share, r.used*o.Share
		r.Owed, r.Moved = r.Owed*o.Share, r.Moved*o.Share
		all = append(all, r)
	}
	return all
}

// whole is a limit as it was read: the shards of its layout. Shards that were never used do not
// exist.
type whole struct {
	shard.Layout
	rows []algebra.Balance
	at   int64 // by the clock
}

// look is the answer to LookShards.
type look struct {
	number  float64
	shards  []int32
	values  []float64
	times   []int64
	pauses  []int64
	delays  []int64
	moves   []float64
	at      time.Time
	scanner func(any) sql.Scanner // of an array, for drivers that need one
}

func (l *look) dest() []any {
	d := []any{&l.number, &l.shards, &l.values, &l.times, &l.pauses, &l.delays, &l.moves, &l.at}
	if l.scanner != nil {
		for i := 1; i < len(d)-1; i++ {
			d[i] = l.scanner(d[i])
		}
	}
	return d
}

// whole returns the answer. It is not valid if the number in the head is that of no layout.
func (l *look) whole() (w *whole, valid bool) {
	layout, valid := shard.Numbered(l.number)
	if !valid {
		return nil, false
	}
	w = &whole{layout, make([]algebra.Balance, layout.Shards), l.at.UnixMicro()}
	for k, row := range l.shards {
		if isClosed(l.values[k]) && layout != shard.Single {
			continue // as if it was not there
		}
		w.rows[row-layout.Row(0)] = algebra.Balance{
			Exists: true, Value: number(l.values[k]), TS: l.times[k], PausedUntil: min(l.pauses[k],
				algebra.EndOfTime), Delay: l.delays[k], Moved: l.moves[k],
		}
	}
	return w, true
}

// after returns the limit as takes have left it.
func (w *whole) after(takes []*statement) *whole {
	left := &whole{w.Layout, slices.Clone(w.rows), w.at}
	for _, s := range takes {
		if layout, i := shard.Address(s.c.Shard); layout == w.Layout {
			left.rows[i] = s.balance()
		}
	}
	return left
}

// lacks reports whether a shard is missing that should exist according to the head: somebody has
// deleted it by hand.
func (w *whole) lacks() bool {
	return w.Layout != shard.Single && slices.ContainsFunc(w.rows, func(b algebra.Balance) bool {
		return !b.Exists
	})
}

// sum returns the balance of a limit at now: its shards added up.
func (c *call) sum(w *whole, now int64) algebra.Balance {
	shares := c.Shares(w.Shards)
	b := shares.Of(0).At(w.rows[0], now)
	for i := 1; i < w.Shards; i++ {
		b = b.And(shares.Of(i).At(w.rows[i], now))
	}
	return b
}

// decideWhole is decide for a limit of shards.
func (c *call) decideWhole(w *whole) Decision {
	before := c.sum(w, w.at)
	if p, ok := c.plan(w, w.at, false, nil); ok {
		after := &whole{w.Layout, slices.Clone(w.rows), w.at}
		parts := p.parts
		if len(p.able) > 0 {
			parts = []part{{shard: p.able[0], count: c.Count}}
		}
		rows := make([]call, len(parts))
		for k, q := range parts {
			rows[k] = c.take(w.Layout, q.shard, q.count)
			b := rows[k].At(w.rows[q.shard], w.at)
			b.Value -= q.count
			rows[k].stamp(b)
			after.rows[q.shard] = b
		}
		return c.grantedParts(rows, c.sum(after, w.at))
	}
	// The shards need not be paused for the same time: see merged.
	guess := float64(w.at)
	if !c.Pausable() {
		guess = max(guess, float64(before.PausedUntil))
	}
	guess += max(0, c.Demand()-before.Value) * float64(c.Period) / c.Rate
	at := algebra.Search(w.at, algebra.EndOfTime, guess, func(t int64) bool {
		_, ok := c.plan(w, t, false, nil)
		return ok
	})
	return Decision{State: c.state(before), RetryAt: fromMicro(at)}
}

// grantedParts is granted, for parts that left the limit with b.
func (c *call) grantedParts(parts []call, b algebra.Balance) Decision {
	d := Decision{OK: true, State: c.state(b)}
	for i := range parts {
		p := parts[i].granted(parts[i].after)
		if p.RunAt.After(d.RunAt) {
			d.RunAt = p.RunAt
		}
		if p.PacedAt.After(d.PacedAt) {
			d.PacedAt = p.PacedAt
		}
	}
	return d
}

// takenAgain returns a denial although the limit has enough tokens, because other calls are taking
// them. RetryAt is when as many tokens have come, or the other transactions have probably ended.
func (c *call) takenAgain(w *whole) Decision {
	d := Decision{State: c.state(c.sum(w, w.at))}
	anew := c.Earliest(0, w.at, w.at, min(c.Count, c.Capacity), 0)
	d.RetryAt = fromMicro(min(anew, w.at+longTransaction))
	return d
}

// longTransaction is within how many microseconds after its take a transaction usually ends.
const longTransaction = 100_000
