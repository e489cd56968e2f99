package ratelimit

import (
	"cmp"
	"database/sql"
	"math"
	"slices"
	"time"

	"github.com/weir-go/weir/shard"
)

// A limit of n shards is n balances, each with an n-th of its capacity and of its rate: so they add up to the limit, and
// whatever is done to each of them alone, no more is granted than capacity + rate*t. What a caller meets is their sum. A take
// that finds enough in one shard touches that one only. One that does not gathers from several. And a debt is that of all:
// it is laid over the shards so that they all come out of it at the same instant, that at which one balance would.

// shares are the rules of the shards of a limit: the first has what does not divide evenly.
type shares struct{ first, each algebra }

func (a algebra) shares(n int) shares {
	s := shares{a, a}
	s.first.capacity, s.each.capacity = shard.Split(a.capacity, n)
	s.first.rate, s.each.rate = shard.Split(a.rate, n)
	return s
}

func (s *shares) of(i int) *algebra {
	if i == 0 {
		return &s.first
	}
	return &s.each
}

// whole is a limit as it was looked at: the shards of its layout, of which those that were never used do not exist.
type whole struct {
	n    int
	rows []balance
	at   int64 // by the clock
}

// look is the answer to lookShardsSQL.
type look struct {
	n       int32
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
	d := []any{&l.n, &l.shards, &l.values, &l.times, &l.pauses, &l.delays, &l.moves, &l.at}
	if l.scanner != nil {
		for i := 1; i < len(d)-1; i++ {
			d[i] = l.scanner(d[i])
		}
	}
	return d
}

// whole is the answer. It is not valid if the limit was being moved to another layout.
func (l *look) whole() (w *whole, valid bool) {
	n := int(l.n)
	if n < 1 || n > shard.Max {
		return nil, false
	}
	w = &whole{n, make([]balance, n), l.at.UnixMicro()}
	for k, row := range l.shards {
		if math.IsInf(l.values[k], -1) && n > 1 {
			continue // as if it was not there
		}
		w.rows[row-shard.Row(n, 0)] = balance{true, number(l.values[k]), l.times[k], min(l.pauses[k], endOfTime), l.delays[k], l.moves[k]}
	}
	return w, true
}

// lacks tells whether a shard is missing, which the head says that there is. Somebody has deleted it by hand.
func (w *whole) lacks() bool {
	return w.n > 1 && slices.ContainsFunc(w.rows, func(b balance) bool { return !b.exists })
}

// sum is the balance of a limit at now: that of its shards together.
func (c *call) sum(w *whole, now int64) balance {
	shares := c.shares(w.n)
	b := shares.of(0).at(w.rows[0], now)
	for i := 1; i < w.n; i++ {
		b = b.and(shares.of(i).at(w.rows[i], now))
	}
	return b
}

// and is two shards together. What is done to the time of a limit is done to all of its shards.
func (b balance) and(s balance) balance {
	b.value += s.value
	b.moved += s.moved
	b.ts = max(b.ts, s.ts)
	b.pausedUntil = max(b.pausedUntil, s.pausedUntil)
	b.delay = max(b.delay, s.delay)
	return b
}

// part is what is taken from one shard.
type part struct {
	shard int
	count float64
	least float64 // that must be left
}

// plan tells from which shards to take what c asks for, by the time now: few of them if the limit has it, and if it is
// reserved all of them, in their order. ok is false if it is to be denied.
func (c *call) plan(w *whole, now int64) (parts []part, ok bool) {
	after, ok := c.grants(c.sum(w, now))
	if !ok {
		return nil, false
	}
	shares := c.shares(w.n)
	there := make([]part, w.n)
	for i := range there {
		there[i] = part{shard: i, count: shares.of(i).at(w.rows[i], now).value}
	}
	if ok = after.value >= 0; ok {
		parts, ok = gather(slices.Clone(there), c.count)
	}
	if !ok && c.reserve {
		parts, ok = level(there, c.count), true
	}
	slices.SortFunc(parts, func(a, b part) int { return a.shard - b.shard })
	return parts, ok
}

// byCount puts the fullest first.
func byCount(a, b part) int { return cmp.Compare(b.count, a.count) }

// gather takes n from the fullest shards, and from no more of them than it must.
func gather(there []part, n float64) (parts []part, ok bool) {
	slices.SortStableFunc(there, byCount)
	for _, p := range there {
		if p.count < 0 || p.count == 0 && n > 0 {
			break
		}
		p.count = min(p.count, n)
		parts = append(parts, p)
		if n -= p.count; n <= 0 {
			return parts, true
		}
	}
	return nil, false
}

// level takes n from the fullest shards so that what they are left with is the same in all of them.
func level(there []part, n float64) []part {
	slices.SortStableFunc(there, byCount)
	// The k fullest, down to the level at which they have given n.
	k, sum := 1, there[0].count
	for k < len(there) && sum-float64(k)*there[k].count < n {
		sum += there[k].count
		k++
	}
	left := (sum - n) / float64(k)
	// Of few digits, as the parts of what was divided are (see shard.Split): so that they add up without rounding, and no debt
	// of ten tokens becomes one that the window of ten does not repay.
	if _, exp := math.Frexp(max(math.Abs(sum), n)); n > 0 {
		left = math.Ldexp(math.Trunc(math.Ldexp(left, 48-exp)), exp-48)
	}
	rest := n
	for i := range there {
		p := &there[i]
		had := p.count
		switch {
		case i < k-1:
			p.count = min(max(0, had-left), rest)
		case i == k-1:
			p.count = rest // but for rounding it is the same
		default:
			p.count = 0 // but what it has, or owes, is a part of the sum, and must not be less than was seen
		}
		rest -= p.count
		p.least = had - p.count - (math.Abs(had)+math.Abs(left)+n)*smallest
	}
	return there
}

// decideWhole is decide for a limit of shards.
func (c *call) decideWhole(w *whole) Decision {
	before := c.sum(w, w.at)
	if _, ok := c.plan(w, w.at); ok {
		after := before
		after.value -= c.count
		return c.granted(after)
	}
	from := w.at
	if !c.pausable() {
		from = max(from, before.pausedUntil)
	}
	grants := func(t int64) bool { _, ok := c.plan(w, t); return ok }
	at := from
	if !grants(from) {
		guess := float64(from) + (c.demand()-before.value)*float64(c.period)/c.rate
		at = search(from, endOfTime, guess, grants)
	}
	return Decision{State: c.state(before), RetryAt: fromMicro(at)}
}

// of is c for a shard alone, to be read and written like a balance of its own.
func (c *call) of(n, i int) call {
	s := c.shares(n)
	r := *c
	r.algebra, r.args, r.shard = *s.of(i), nil, shard.Row(n, i)
	r.parts, r.layout, r.shards = nil, n, 0
	return r
}

// share is of, with a share of what was taken: that of a debt.
func (c *call) share(n, i int) call {
	r := c.of(n, i)
	r.count, r.owed, r.moved = portion(c.count, &r), portion(c.owed, &r), portion(c.moved, &r)
	return r
}
