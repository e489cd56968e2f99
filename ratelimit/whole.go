package ratelimit

import (
	"cmp"
	"database/sql"
	"math"
	"slices"
	"time"

	"github.com/weir-go/weir/shard"
)

// A limit of n shards is n balances, each with an n-th of its capacity, of its rate and of what may be
// reserved. Each is a limit by itself, with a debt and a line of its own. So whatever is done to each of
// them, no more is granted than capacity + rate*t, as long as no call takes more than a share from one:
// lines that start together would otherwise start more than the capacity in one instant. A larger count
// is taken from several shards, in parts, and may run when all of its parts may.

// shares are the rules of the shards of a limit: the first has what does not divide evenly.
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

// mostShards is how many of n shards the rule can be divided into: each has a token, and of a window
// whole ones, as many as each other one.
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

// largest is the most that the call is to wait for in one shard, and the most that it may: a share, which
// may have been rounded.
func (c *call) largest(s *shares) (most, share float64) {
	share = s.each.capacity * (1 + 1e-9)
	if c.most > 0 {
		return min(share, c.most), share
	}
	return share, share
}

// of is c for a shard alone, to be read and written like a balance of its own.
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

// leaves is what a call leaves in one of n shards: its part of what it is to leave in all of them.
// So concurrent calls, each of which has seen enough in all of them, do not leave less together.
func (c *call) leaves(n, i int) float64 {
	first, each := shard.Split(c.leave, n)
	if i == 0 {
		return first
	}
	return each
}

// take is of, to take count tokens.
func (c *call) take(layout shard.Layout, i int, count float64) call {
	r := c.of(layout, i)
	if r.count = count; c.count > 0 && c.before > 0 {
		r.before *= count / c.count
	}
	return r
}

// follow is what c, which is for a shard of a layout that is no more, became in another one.
func (c *call) follow(to shard.Layout) []call {
	from, i := shard.Address(c.shard)
	var all []call
	for _, o := range shard.Overlaps(from.Shards, i, to.Shards) {
		r := *c
		size := float64(from.Shards) / float64(to.Shards) // of a new shard against an old one
		r.shard, r.args = to.Row(o.Shard), nil
		r.capacity, r.rate, r.debt = r.capacity*size, r.rate*size, r.debt*size
		r.count, r.used = r.count*o.Share, r.used*o.Share
		r.owed, r.moved = r.owed*o.Share, r.moved*o.Share
		all = append(all, r)
	}
	return all
}

// whole is a limit as it was looked at: the shards of its layout, of which those that were never used
// do not exist.
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

// whole is the answer. It is not valid if the head row says nonsense.
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

// after is the limit as takes have left it.
func (w *whole) after(takes []*statement) *whole {
	left := &whole{w.Layout, slices.Clone(w.rows), w.at}
	for _, s := range takes {
		if layout, i := shard.Address(s.c.shard); layout == w.Layout {
			left.rows[i] = s.balance()
		}
	}
	return left
}

// lacks tells whether a shard is missing, which the head says that there is. Somebody has deleted it by
// hand.
func (w *whole) lacks() bool {
	return w.Layout != shard.Single && slices.ContainsFunc(w.rows, func(b balance) bool { return !b.exists })
}

// sum is the balance of a limit at now: that of its shards together.
func (c *call) sum(w *whole, now int64) balance {
	shares := c.shares(w.Shards)
	b := shares.of(0).at(w.rows[0], now)
	for i := 1; i < w.Shards; i++ {
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

// part is what is to be taken from one shard.
type part struct {
	shard int
	count float64 // tokens
	most  float64 // that may be taken
	least float64 // that must be left
}

// plan is how a call is granted by a limit.
type plan struct {
	able  []int  // the shards of which each grants it alone, the fullest first; else
	parts []part // what to take from several, in the order of their rows
	ahead bool   // and that is reserved
}

// plan tells how the limit would grant the call at now. If no single shard does, it takes the tokens
// that there are from the fullest shards, or reserves in several so that their lines stay level; if it
// is to be ahead, it does not gather. From several it takes only where free allows it; nil allows all.
func (c *call) plan(w *whole, now int64, ahead bool, free func(int) bool) (p plan, ok bool) {
	shares := c.shares(w.Shards)
	most, share := c.largest(&shares)
	if most < share && most*float64(w.Shards) >= c.count {
		if p, ok := c.planBy(w, now, ahead, free, shares, most); ok {
			return p, true
		}
	}
	return c.planBy(w, now, ahead, free, shares, share)
}

// planBy is plan for parts of so many tokens, unless they must be larger.
func (c *call) planBy(
	w *whole, now int64, ahead bool, free func(int) bool, shares shares, most float64,
) (p plan, ok bool) {
	there := make([]part, 0, w.Shards)
	var loose []part // those that are not paused
	row := c.of(w.Layout, 0)
	var values []float64
	left := -c.count
	for i := range w.Shards {
		row.algebra, row.leave = *shares.of(i), c.leaves(w.Shards, i)
		b := row.at(w.rows[i], now)
		values = append(values, b.value)
		left += max(0, b.value)
		if one := (part{shard: i, count: b.value - row.leave, most: shares.each.capacity}); free == nil || free(i) {
			if there = append(there, one); b.pausedUntil == open {
				loose = append(loose, one)
			}
		}
		if c.count <= most || b.value >= c.count || w.Shards == 1 || !c.pausable() {
			if _, ok := row.grants(b); ok {
				p.able = append(p.able, i)
			}
		}
	}
	if w.Shards > 1 && left < c.leave && c.leave > 0 {
		return plan{}, false
	}
	if len(p.able) > 0 {
		slices.SortStableFunc(p.able, func(a, b int) int { return cmp.Compare(values[b], values[a]) })
		return p, true
	}
	if w.Shards == 1 || len(there) == 0 {
		return p, false
	}
	if !ahead {
		if p.parts, ok = gather(loose, c.count); ok {
			for k := range p.parts {
				q := &p.parts[k]
				q.least = min(c.leaves(w.Shards, q.shard), values[q.shard]-q.count) // the latter is rounded
			}
			return p, true
		}
	}
	if !c.pausable() {
		return p, false
	}
	// As few rows as will do, of which none gives more than half a share unless it has more than others: so
	// that their lines can be level. But where little more may be reserved, several shards may have room
	// for what fewer have not.
	slices.SortStableFunc(there, byCount)
	if k := math.Ceil(c.count / min(most, shares.each.capacity/2)); 1 < k && k < float64(len(there)) {
		if p, ok := c.planAhead(w, now, there[:int(k)]); ok {
			return p, true
		}
	}
	return c.planAhead(w, now, there)
}

// planAhead reserves in some shards, or in fewer if some of them do not grant their parts. Only if all
// shards together have no room for it may a part be larger than it should.
func (c *call) planAhead(w *whole, now int64, there []part) (p plan, ok bool) {
	p.ahead = true
	for {
		room := 0.0
		for _, q := range there {
			room += q.most
		}
		if len(there) == 0 || room < c.count && len(there) < w.Shards {
			return plan{}, false
		}
		p.parts = level(there, c.count)
		var denied []int
		for k := range p.parts {
			q := &p.parts[k]
			row := c.take(w.Layout, q.shard, q.count)
			if _, ok := row.grants(row.at(w.rows[q.shard], now)); !ok {
				denied = append(denied, q.shard)
			}
			q.least = max(q.least, row.least())
		}
		if len(denied) == 0 {
			return p, true
		}
		there = slices.DeleteFunc(slices.Clone(there), func(q part) bool { return slices.Contains(denied, q.shard) })
	}
}

// byCount puts the fullest first.
func byCount(a, b part) int { return cmp.Or(cmp.Compare(b.count, a.count), a.shard-b.shard) }

func byShard(a, b part) int { return a.shard - b.shard }

// gather takes n from the fullest shards, and from no more of them than it must.
func gather(there []part, n float64) (parts []part, ok bool) {
	there = slices.SortedStableFunc(slices.Values(there), byCount)
	sum := 0.0
	for _, p := range there {
		sum += max(0, p.count)
	}
	if !(sum >= n) {
		return nil, false
	}
	for _, p := range there {
		if p.count < 0 || p.count == 0 && n > 0 {
			break
		}
		p.count = min(p.count, n)
		parts = append(parts, p)
		if n -= p.count; n <= 0 {
			slices.SortFunc(parts, byShard)
			return parts, true
		}
	}
	return nil, false
}

// level takes n so that the shards from which it takes are left with the same, and no more from one than
// may be, unless even all of them together do not have room for that.
func level(there []part, n float64) []part {
	there = slices.SortedStableFunc(slices.Values(there), byCount)
	room := 0.0
	for _, p := range there {
		room += p.most
	}
	if room < n*(1-1e-9) { // a share may have been rounded
		for k := range there {
			there[k].most = math.Inf(1)
		}
	}
	taken := func(left float64) (sum float64) {
		for _, p := range there {
			sum += min(p.most, max(0, p.count-left))
		}
		return sum
	}
	left, above := there[len(there)-1].count-n, there[0].count
	for range 64 {
		if middle := left + (above-left)/2; taken(middle) >= n {
			left = middle
		} else {
			above = middle
		}
	}
	// Of few digits, as the parts of what was divided are (see shard.Split): so that they add up without
	// rounding, and no debt of ten tokens becomes one that the window of ten does not repay.
	if _, exp := math.Frexp(max(math.Abs(there[0].count), n)); n > 0 {
		left = math.Ldexp(math.Round(math.Ldexp(left, 44-exp)), exp-44)
	}
	var parts []part
	rest := n
	for _, p := range there {
		had := p.count
		if p.count = min(p.most, max(0, had-left), rest); p.count <= n*1e-9 { // made by rounding
			continue
		}
		rest -= p.count
		p.least = had - 3*p.count
		parts = append(parts, p)
	}
	if len(parts) == 0 {
		parts = append(parts, part{shard: there[0].shard, least: math.Inf(-1)})
	}
	if last := &parts[len(parts)-1]; rest > 0 { // by rounding
		last.count += rest
		last.least -= rest
	}
	slices.SortFunc(parts, byShard)
	return parts
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
	// Not all shards need be paused, or for as long: see merged.
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

// takenAgain is a denial although the limit has the tokens, as others are taking them: until as many
// have come anew, or the others are likely to have ended.
func (c *call) takenAgain(w *whole) Decision {
	d := Decision{State: c.state(c.sum(w, w.at))}
	anew := c.earliest(0, w.at, w.at, min(c.count, c.capacity), 0)
	d.RetryAt = fromMicro(min(anew, w.at+longTransaction))
	return d
}

// longTransaction is how long most transactions are done after they have taken, in microseconds.
const longTransaction = 100_000
