package ratelimit

import (
	"math/rand/v2"
	"slices"

	"github.com/weir-go/weir/internal/where"
	"github.com/weir-go/weir/shard"
)

// aim says from which shards one call should take.
type aim struct {
	c      *call
	layout shard.Layout
	from   []int // candidates, one of which is enough. If there are none:
	plan   plan
	wait   bool    // wait for the first candidate if others hold all of them
	level  float64 // the least that a take from a candidate is expected to leave
	sent   []*statement
}

// locked returns the last row that takes have locked without taking from it, as far as that can be
// told; 0 for none. A shard that has enough did not deny: another transaction held it.
func locked(aims []aim, seen []*whole) (last int32) {
	for i := range aims {
		a, w := &aims[i], seen[i]
		for _, s := range a.sent {
			if s.whole == nil || a.layout != w.Layout {
				continue
			}
			rows := s.shards
			if rows == nil {
				rows = []int32{s.c.Shard}
			}
			for _, row := range rows {
				_, k := shard.Address(row)
				r := s.whole.of(w.Layout, k)
				if s.found || r.At(w.rows[k], w.at).Value-s.c.Count < s.args[9].(float64) { //nolint:forcetypeassert // what is to be left
					last = max(last, row)
				}
			}
		}
	}
	return last
}

// guess aims each call by what is remembered. It reports whether enough is known of all limits.
func (l *Limiter) guess(x executor, calls []call, aims []aim) bool {
	for i := range calls {
		c := &calls[i]
		layout, known := l.books.layout(c)
		switch {
		case !known && c.shards <= 1: // one row, as far as is known
			aims[i] = aim{c: c, layout: shard.Single}
		case c.Leave > 0: // depends on all shards together
			return false
		case layout.Shards < c.shards || !l.choose(&aims[i], c, x.session()) &&
			!l.divide(&aims[i], c, x.session()):
			return false
		}
	}
	return true
}

// choose aims at one of several shards by what is remembered. It reports whether it knows one with
// enough tokens.
func (l *Limiter) choose(a *aim, c *call, session uint32) bool {
	layout, from, enough, level := l.books.choose(c, session, l.clock)
	if len(from) == 0 {
		return false
	}
	*a = aim{c: c, layout: layout, from: from, level: level,
		wait: len(from) > 1 && 2*enough > layout.Shards}
	return true
}

// divide aims at several shards by what is remembered, if the call may wait.
func (l *Limiter) divide(a *aim, c *call, session uint32) bool {
	w := l.books.known(c, l.clock)
	if w == nil || !c.Pausable() {
		return false
	}
	p, ok := c.plan(w, w.at, false, l.books.free(c, w.Layout, session))
	*a = aim{c: c, layout: w.Layout, plan: p}
	return ok && len(p.parts) > 0
}

// aim aims by what was just seen, which grants each call. The last time, the takes ignore how
// others have changed the shards since.
func (l *Limiter) aim(x executor, calls []call, aims []aim, seen []*whole, last bool) {
	for i := range calls {
		c, w := &calls[i], seen[i]
		aims[i] = aim{c: c, layout: w.Layout}
		if w.Layout == shard.Single {
			continue
		}
		free := l.books.free(c, w.Layout, x.session())
		p, ok := c.plan(w, w.at, last && c.Pausable(), free)
		if !ok {
			p, _ = c.plan(w, w.at, last && c.Pausable(), nil)
		}
		if len(p.able) == 0 {
			aims[i].plan, aims[i].wait = p, last
		} else {
			aims[i].among(p.able, w, free)
		}
		if last {
			aims[i].anyLevel()
			aims[i].wait = aims[i].wait || c.Pausable()
		}
	}
}

// among aims at one of the shards that were seen to grant the call alone.
func (a *aim) among(able []int, w *whole, free func(int) bool) {
	shares := a.c.Shares(w.Shards)
	view := func(k int) shard.View {
		i := able[k]
		return shard.View{Tokens: shares.Of(i).At(w.rows[i], w.at).Value, Busy: !free(i)}
	}
	chosen, _ := shard.Choose(len(able), -1, a.c.Count, closed, view, rand.IntN)
	for _, k := range chosen {
		a.from = append(a.from, able[k])
		a.level = min(a.level, view(k).Tokens-a.c.Count)
	}
	a.level -= muchWorse * a.c.Count
	a.wait = len(a.from) > 1 && 2*len(able) > w.Shards
}

// anyLevel makes the takes ignore how others have changed the shards since.
func (a *aim) anyLevel() {
	a.level = closed
	for k := range a.plan.parts {
		p := &a.plan.parts[k]
		row := a.c.take(a.layout, p.shard, p.count)
		p.least = row.Least()
	}
}

// send makes the statements. If the transaction has locked a row for nothing, it may only take from
// rows after it, in the order in which everything locks; if that is impossible, a.sent stays empty.
func (l *Limiter) send(a *aim, held int32) {
	ahead := func(i int) bool { return a.layout.Row(i) <= held }
	if held > 0 && a.layout != shard.Single {
		parts := len(a.plan.parts)
		a.from = slices.DeleteFunc(a.from, ahead)
		if slices.ContainsFunc(a.plan.parts, func(p part) bool { return ahead(p.shard) }) ||
			parts == 0 && len(a.from) == 0 {
			a.sent = nil
			return
		}
	}
	switch {
	case a.layout == shard.Single:
		c := *a.c
		c.shards = 0
		a.sent = []*statement{l.takeOf(&c)}
	case a.from != nil:
		a.sent = []*statement{l.takeShard(a)}
	default:
		a.sent = nil
		for _, p := range a.plan.parts {
			a.sent = append(a.sent, l.takePart(a, p))
		}
	}
}

// takeShard takes from the first candidate that no other transaction holds.
func (l *Limiter) takeShard(a *aim) *statement {
	c, k := a.c, len(a.from)
	row := c.of(a.layout, a.from[0])
	least := max(row.Least(), a.level)
	if l.portable {
		return l.takeRow(c, &row, least)
	}
	if k == 1 && !a.wait && c.Within == 0 {
		s := l.write(&row, l.sql.For(c.Windowed).TakeOwn, row.Count, least, c.Pausable(),
			c.Busy(row.Shard), nil)
		s.whole, s.row, s.lone, s.writes = c, row.Shard, true, false
		return s
	}
	shares := c.Shares(a.layout.Shards)
	rows, locks := make([]int32, k), make([]int32, k)
	capacities, rates := make([]float64, k), make([]float64, k)
	for j, i := range a.from {
		s := shares.Of(i)
		rows[j], capacities[j], rates[j] = a.layout.Row(i), s.Capacity, s.Rate
		locks[j] = c.Busy(rows[j])
	}
	s := &statement{
		c: &row, whole: c, sql: l.sql.For(c.Windowed).TakeShard, shards: rows,
		args: []any{c.Name, c.Key, rows, capacities, rates, c.Period, row.Count, l.now(),
			c.originTime(), least, c.Pausable(), locks, a.wait},
	}
	if c.Within > 0 {
		s.sql = l.sql.For(c.Windowed).TakeShardWithin
		s.args[10] = float64(c.Within)
		s.args = append(s.args, row.Credited())
	}
	return s
}

// takePart takes one part of a call's count. If it gathers tokens that are there, it takes no shard
// that others hold, and one caller gathers at a time.
func (l *Limiter) takePart(a *aim, p part) *statement {
	row := a.c.take(a.layout, p.shard, p.count)
	if !a.plan.ahead {
		row.Leave = p.least
	}
	switch {
	case l.portable && a.plan.ahead:
		return l.takeRow(a.c, &row, p.least)
	case l.portable:
		return l.takeRow(a.c, &row, 0)
	case a.plan.ahead:
		one := *a.c
		one.Count, one.Before = row.Count, row.Before
		s := l.takeShard(
			&aim{c: &one, layout: a.layout, from: []int{p.shard}, wait: a.wait, level: p.least},
		)
		s.whole = a.c
		return s
	}
	s := l.write(&row, l.sql.For(row.Windowed).TakeOwn, row.Count, row.Leave, false,
		a.c.Busy(row.Shard), a.c.Busy(where.Gathering))
	s.whole, s.row, s.writes = a.c, row.Shard, false
	return s
}

// takeRow takes from one shard, and waits for the transaction that holds it: for engines without
// advisory locks.
func (l *Limiter) takeRow(c, row *call, least float64) *statement {
	one := *row
	s := l.takeOf(&one)
	s.args[9] = max(s.args[9].(float64), least) //nolint:forcetypeassert // the least balance to leave
	s.whole, s.row, s.writes = c, row.Shard, false
	return s
}
