package ratelimit

import (
	"database/sql"
	"math"
	"slices"
	"time"

	"github.com/weir-go/weir/shard"
)

// A limit of n shards is n balances, each with an n-th of its capacity, of its rate and of
// MaxReserved. Each is a limit by itself, with its own debt and line. So no more than capacity +
// rate*t is granted in all, as long as no call takes more than a share from one shard: otherwise
// lines that start at the same time could start work for more than the capacity at once. A larger
// count is taken from several shards, in parts, and the work may run when all parts may.

// shares are the rules of a limit's shards. The first shard also gets what does not divide evenly.
type shares struct{ first, each algebra }

func (a *algebra) shares(n int) shares {
	s := shares{*a, *a}
	s.first.capacity, s.each.capacity = shard.Split(a.capacity, n)
	s.first.rate, s.each.rate = shard.Split(a.rate, n)
	s.first.debt, s.each.debt = shard.Split(a.debt, n)
	return s
}

func (s *shares) of(i int) *algebra {
	if i == 0 {
		return &s.first
	}
	return &s.each
}

// mostShards returns the largest number of shards, up to n, that the rule can be divided into. Each
// shard of a bucket must get a token; those of a window whole ones, and all as many.
func (a *algebra) mostShards(n int) int {
	if !a.windowed {
		return max(1, min(n, int(min(a.capacity, shard.Max))))
	}
	for n = min(n, int(min(a.rate, a.capacity, shard.Max))); n > 1; n-- {
		if math.Mod(a.rate, float64(n)) == 0 && math.Mod(a.capacity, float64(n)) == 0 {
			return n
		}
	}
	return 1
}

// largest returns how much the call should wait for in one shard at most, and how much it may: a
// share, with room for rounding.
func (c *call) largest(s *shares) (most, share float64) {
	share = s.each.capacity * (1 + 1e-9)
	if c.most > 0 {
		return min(share, c.most), share
	}
	return share, share
}

// of returns c for a single shard, to read and write it like a balance of its own.
func (c *call) of(layout shard.Layout, i int) call {
	r := *c
	if layout.Shards > 1 {
		s := c.shares(layout.Shards)
		r.algebra, r.args = *s.of(i), nil
		r.leave = c.leaves(layout.Shards, i)
	}
	r.shard, r.parts, r.shards = layout.Row(i), nil, 0
	return r
}

// leaves returns what a call must leave in one of n shards: its part of Leave. Concurrent calls may
// each have seen enough in all shards; this keeps them from leaving less together.
func (c *call) leaves(n, i int) float64 {
	first, each := shard.Split(c.leave, n)
	if i == 0 {
		return first
	}
	return each
}

// take is of for a take of count tokens.
func (c *call) take(layout shard.Layout, i int, count float64) call {
	r := c.of(layout, i)
	if r.count = count; c.count > 0 && c.before > 0 {
		r.before *= count / c.count
	}
	return r
}

// follow returns what c, a take from a shard of a former layout, is in the layout to.
func (c *call) follow(to shard.Layout) []call {
	from, i := shard.Address(c.shard)
	var all []call
	for _, o := range shard.Overlaps(from.Shards, i, to.Shards) {
		r := *c
		size := float64(from.Shards) / float64(to.Shards) // the size of a new shard relative to an old one
		r.shard, r.args = to.Row(o.Shard), nil
		r.capacity, r.rate, r.debt = r.capacity*size, r.rate*size, r.debt*size
		r.count, r.used = r.count*o.Share, r.used*o.Share
		r.owed, r.moved = r.owed*o.Share, r.moved*o.Share
		all = append(all, r)
	}
	return all
}

// whole is a limit as it was read: the shards of its layout. Shards that were never used do not
// exist.
type whole struct {
	shard.Layout
	rows []balance
	at   int64 // by the clock
}

// look is the answer to lookShardsSQL.
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
	w = &whole{layout, make([]balance, layout.Shards), l.at.UnixMicro()}
	for k, row := range l.shards {
		if isClosed(l.values[k]) && layout != shard.Single {
			continue // as if it was not there
		}
		w.rows[row-layout.Row(0)] = balance{
			true, number(l.values[k]), l.times[k], min(l.pauses[k], endOfTime), l.delays[k], l.moves[k],
		}
	}
	return w, true
}

// after returns the limit as takes have left it.
func (w *whole) after(takes []*statement) *whole {
	left := &whole{w.Layout, slices.Clone(w.rows), w.at}
	for _, s := range takes {
		if layout, i := shard.Address(s.c.shard); layout == w.Layout {
			left.rows[i] = s.balance()
		}
	}
	return left
}

// lacks reports whether a shard is missing that should exist according to the head: somebody has
// deleted it by hand.
func (w *whole) lacks() bool {
	return w.Layout != shard.Single && slices.ContainsFunc(w.rows, func(b balance) bool { return !b.exists })
}

// sum returns the balance of a limit at now: its shards added up.
func (c *call) sum(w *whole, now int64) balance {
	shares := c.shares(w.Shards)
	b := shares.of(0).at(w.rows[0], now)
	for i := 1; i < w.Shards; i++ {
		b = b.and(shares.of(i).at(w.rows[i], now))
	}
	return b
}

// and adds up two shards. A pause or a delay of a limit applies to all of its shards, so the later
// one counts.
func (b balance) and(s balance) balance {
	b.value += s.value
	b.moved += s.moved
	b.ts = max(b.ts, s.ts)
	b.pausedUntil = max(b.pausedUntil, s.pausedUntil)
	b.delay = max(b.delay, s.delay)
	return b
}

// decideWhole is decide for a limit of shards.
func (c *call) decideWhole(w *whole) Decision {
	before := c.sum(w, w.at)
	if p, ok := c.plan(w, w.at, false, nil); ok {
		after := &whole{w.Layout, slices.Clone(w.rows), w.at}
		parts := p.parts
		if len(p.able) > 0 {
			parts = []part{{shard: p.able[0], count: c.count}}
		}
		rows := make([]call, len(parts))
		for k, q := range parts {
			rows[k] = c.take(w.Layout, q.shard, q.count)
			b := rows[k].at(w.rows[q.shard], w.at)
			b.value -= q.count
			rows[k].stamp(b)
			after.rows[q.shard] = b
		}
		return c.grantedParts(rows, c.sum(after, w.at))
	}
	// The shards need not be paused for the same time: see merged.
	guess := float64(w.at)
	if !c.pausable() {
		guess = max(guess, float64(before.pausedUntil))
	}
	guess += max(0, c.demand()-before.value) * float64(c.period) / c.rate
	at := search(w.at, endOfTime, guess, func(t int64) bool { _, ok := c.plan(w, t, false, nil); return ok })
	return Decision{State: c.state(before), RetryAt: fromMicro(at)}
}

// grantedParts is granted, for parts that left the limit with b.
func (c *call) grantedParts(parts []call, b balance) Decision {
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
	anew := c.earliest(0, w.at, w.at, min(c.count, c.capacity), 0)
	d.RetryAt = fromMicro(min(anew, w.at+longTransaction))
	return d
}

// longTransaction is within how many microseconds after its take a transaction usually ends.
const longTransaction = 100_000
