package ratelimit

import (
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/weir-go/weir/internal/limits/algebra"
	"github.com/weir-go/weir/internal/limits/book"
	"github.com/weir-go/weir/internal/limits/spread"
	"github.com/weir-go/weir/internal/limits/where"
	"github.com/weir-go/weir/shard"
)

// aim says from which shards one call should take.
type aim struct {
	c      *call
	layout shard.Layout
	from   []int // candidates, one of which is enough. If there are none:
	plan   spread.Plan
	parts  int     // take equal parts from so many candidates; 0: all from one
	wait   bool    // wait for the first candidate if others hold all of them
	level  float64 // the least that a take from a candidate is expected to leave
	sent   []*statement

	// the rows of shards that the call has lost, as they were seen before. Other transactions hold
	// them until they change.
	lost   map[int32]algebra.Balance
	barred bool // from gathering: another call gathers
}

// holds is which rows a transaction has locked for a call that it could not grant.
type holds struct {
	taken []where.Row // for certain: it has taken from them, and given back
	last  where.Row   // the last row that it may have locked; the zero Row if there is none
}

// allow reports whether the transaction may lock a row now: if it has it, or if the row comes after
// all that it may have, in the order in which everything locks. It may lock the last row again:
// either it has locked it, or all that it has locked comes before it.
func (h *holds) allow(r where.Row) bool {
	return r.Compare(&h.last) >= 0 || slices.Contains(h.taken, r)
}

// add notes the rows that takes have locked, as far as it is known. A take that took nothing has
// locked its row if the row did not grant it: had too few tokens, say, or was paused. If it did,
// another transaction held it, and the take has not locked it. before is how long before the
// reading of seen the takes were sent: tokens that came in between were not there for the takes.
func (h *holds) add(aims []aim, seen []*spread.Whole, before time.Duration) {
	for i := range aims {
		a, w := &aims[i], seen[i]
		for _, s := range a.sent {
			// The only row of a limit is locked, granted or not. So may be the row of a former
			// layout, and the rows of the present one come after it.
			if s.whole == nil || a.layout != w.Layout {
				h.upTo(s.c.Row)
				continue
			}
			if s.found {
				h.taken = append(h.taken, s.c.Row)
				h.upTo(s.c.Row)
				continue
			}
			at := w.At - before.Microseconds() - 1
			if clock, ok := s.args[argClock].(time.Time); ok {
				at = min(at, clock.UnixMicro())
			}
			for _, row := range s.tried() {
				_, k := shard.Address(row)
				r := s.whole.take(w.Layout, k, s.c.Count)
				r.Leave = s.c.Leave
				least := s.args[argLeast].(float64) //nolint:forcetypeassert // it always is one
				if left, ok := r.Grants(r.At(w.Rows[k], at)); !ok || left.Value < least {
					h.upTo(r.Row)
				}
			}
		}
	}
}

func (h *holds) upTo(r where.Row) {
	if r.Compare(&h.last) > 0 {
		h.last = r
	}
}

// tried returns the rows of the shards from which the take could take.
func (s *statement) tried() []int32 {
	if s.shards != nil {
		return s.shards
	}
	return []int32{s.c.Shard}
}

// guess aims each call by what is remembered. It reports whether enough is known of all limits.
func (l *Limiter) guess(x executor, calls []call, aims []aim) bool {
	for i := range calls {
		c := &calls[i]
		layout, known := l.books.Layout(c.Place)
		switch {
		case !known && c.shards <= 1: // one row, as far as is known
			aims[i] = aim{c: c, layout: shard.Single}
		case c.Leave > 0: // depends on all shards together
			return false
		case layout.Shards < c.shards || !l.choose(&aims[i], c, x.session()) &&
			!l.divide(x, &aims[i], c):
			return false
		}
	}
	return true
}

// choose aims at one of several shards by what is remembered. It reports whether it knows one with
// enough tokens.
func (l *Limiter) choose(a *aim, c *call, session uint32) bool {
	layout, from, enough, level := l.books.Choose(c.Place, &c.Ask, session, l.cfg.Clock)
	if len(from) == 0 {
		return false
	}
	*a = aim{c: c, layout: layout, from: from, level: level,
		wait: len(from) > 1 && 2*enough > layout.Shards}
	return true
}

// divide aims at several shards by what is remembered, if the call may wait, or if they have enough
// for equal parts.
func (l *Limiter) divide(x executor, a *aim, c *call) bool {
	w := l.books.Known(c.Place, l.cfg.Clock)
	if w == nil {
		return false
	}
	free := l.books.Free(c.Place, w.Layout, x.session())
	p, ok := w.Plan(&c.Ask, w.At, false, free)
	*a = aim{c: c, layout: w.Layout, plan: p}
	l.split(x, a, w, free)
	return ok && len(p.Parts) > 0 && !p.Scarce && (c.Pausable() || a.parts > 0)
}

// aim aims each call at rows that the transaction may lock, by what was just seen: that grants each
// call. It reports whether each call has such rows. The shards that a call has lost are left out
// until they change, except for a call that may wait and has no others. If few shards have room for
// its count, they are left out for that call, too. The last time, the takes ignore how others have
// changed the shards since.
func (l *Limiter) aim(
	x executor, calls []call, aims []aim, seen []*spread.Whole, held *holds, last bool,
) (all bool) {
	all = true
	for i := range calls {
		c, w, a := &calls[i], seen[i], &aims[i]
		maps.DeleteFunc(a.lost, func(row int32, was algebra.Balance) bool {
			layout, k := shard.Address(row)
			changed := layout != w.Layout || w.Rows[k] != was
			a.barred = a.barred && !changed
			return changed
		})
		*a = aim{c: c, layout: w.Layout, lost: a.lost, barred: a.barred}
		if w.Layout == shard.Single {
			continue
		}
		free := l.books.Free(c.Place, w.Layout, x.session())
		allowed := func(k int) bool {
			return held.allow(where.Row{Place: c.Place, Shard: w.Row(k)})
		}
		may := func(k int) bool {
			_, lost := a.lost[w.Row(k)]
			return !lost && allowed(k)
		}
		ahead := last && c.Pausable()
		p, ok := w.Plan(&c.Ask, w.At, ahead, may)
		if !ok && c.Pausable() {
			may = allowed
			p, ok = w.Plan(&c.Ask, w.At, ahead, may)
			ok = ok && !p.Scarce
		}
		switch {
		case !ok || a.barred && p.Gathers():
			all = false
		case len(p.Able) > 0:
			a.among(p.Able, w, free)
		default:
			a.plan, a.wait = p, last && !p.Scarce
			mayNow := func(k int) bool { return free(k) && may(k) }
			if p, ok := w.Plan(&c.Ask, w.At, ahead, mayNow); ok && p.Scarce == a.plan.Scarce {
				a.plan = p
			}
			if !last {
				l.split(x, a, w, mayNow)
			}
		}
		if last {
			a.level = algebra.Closed
			for k := range a.plan.Parts {
				p := &a.plan.Parts[k]
				row := c.take(w.Layout, p.Shard, p.Count)
				p.Least = row.Least()
			}
			a.wait = a.wait || c.Pausable() && !p.Scarce
		}
	}
	return all
}

// lose notes the shards that did not grant what was seen in them: other transactions hold them. If
// a call gets none of the parts that it gathers, another call probably gathers. A take that waits
// has lost nothing: the shard for which it has waited has changed. Of equal parts it is not known
// which shards were held: those that are reserved are left out next time, as there are others.
func (l *Limiter) lose(a *aim, seen *spread.Whole) {
	if a.wait || a.parts > 0 && !a.plan.Ahead {
		return
	}
	none := true
	for _, s := range a.sent {
		if s.found {
			none = false
			continue
		}
		for _, row := range s.tried() {
			if a.lost == nil {
				a.lost = make(map[int32]algebra.Balance)
			}
			_, k := shard.Address(row)
			a.lost[row] = seen.Rows[k]
		}
	}
	gathers := a.from == nil && a.plan.Gathers() && (a.plan.Scarce || !a.c.Pausable())
	if none && gathers && !l.cfg.Portable { // which has no lock for gathering
		a.barred = true
	}
}

// split aims at several shards for equal parts of the count, if the plan is to take from several.
// Any of the candidates will do, so the call need not run again because another transaction holds
// one of them. The answer may have several rows, which database/sql's sender does not read, or only
// some of the parts, which must then be given back.
//
// If the shards have the tokens, equal parts must not wait either, and there must be two candidates
// for each. Only InTx takes such parts, as it can roll back a take that was denied: that holds the
// advisory locks of some candidates.
func (l *Limiter) split(x executor, a *aim, w *spread.Whole, may func(int) bool) {
	if a.c.Within > 0 || a.c.Leave > 0 || x.single || x.stepwise || l.cfg.Portable {
		return
	}
	e, ok := w.Even(&a.c.Ask, w.At, may)
	switch {
	case !ok:
	case a.plan.Ahead:
		a.from, a.parts, a.level = e.From, e.Parts, e.Least
	case e.AtOnce >= 2*e.Parts && x.lazy != nil:
		a.from, a.parts, a.level = e.From[:e.AtOnce], e.Parts, max(0, e.Least)
	}
}

// apart replaces statements that took several parts by one for each part, and returns them all.
func (l *Limiter) apart(x executor, aims []aim) (all []*statement) {
	for i := range aims {
		a := &aims[i]
		sent := a.sent
		a.sent = nil
		for _, s := range sent {
			if s.parts == 0 {
				a.sent = append(a.sent, s)
				continue
			}
			for row := range s.claims {
				l.books.Disclaim(row, x.session())
			}
			a.sent = append(a.sent, s.apart()...)
		}
		all = append(all, a.sent...)
	}
	return all
}

// among aims at one of the shards that were seen to grant the call alone.
func (a *aim) among(able []int, w *spread.Whole, free func(int) bool) {
	shares := a.c.Shares(w.Shards)
	view := func(k int) shard.View {
		i := able[k]
		return shard.View{Tokens: shares.Of(i).At(w.Rows[i], w.At).Value, Busy: !free(i)}
	}
	chosen, _ := shard.Choose(len(able), -1, a.c.Count, algebra.Closed, view, rand.IntN)
	for _, k := range chosen {
		a.from = append(a.from, able[k])
		a.level = min(a.level, view(k).Tokens-a.c.Count)
	}
	a.level -= book.MuchWorse * a.c.Count
	a.wait = len(a.from) > 1 && 2*len(able) > w.Shards
}

// send makes the statements.
func (l *Limiter) send(a *aim) {
	switch {
	case a.layout == shard.Single:
		c := *a.c
		c.shards = 0
		a.sent = []*statement{l.takeOf(&c)}
	case a.from != nil:
		a.sent = []*statement{l.takeShard(a)}
	default:
		a.sent = nil
		for _, p := range a.plan.Parts {
			a.sent = append(a.sent, l.takePart(a, p))
		}
	}
}

// takeShard takes from the first candidate that no other transaction holds, or from several.
func (l *Limiter) takeShard(a *aim) *statement {
	c, k := a.c, len(a.from)
	row := c.of(a.layout, a.from[0])
	if a.parts > 0 {
		row = c.take(a.layout, a.from[0], c.Count/float64(a.parts))
	}
	least := max(row.Least(), a.level)
	if l.cfg.Portable {
		return l.takeRow(c, &row, least)
	}
	if k == 1 && !a.wait && c.Within == 0 {
		var gathering any
		if a.plan.Scarce {
			gathering = c.Busy(where.Gathering)
		}
		s := l.write(&row, l.sql.For(c.Windowed).TakeOwn, row.Count, least, c.Pausable(),
			c.Busy(row.Shard), gathering)
		s.whole, s.row, s.lone, s.writes = c, row.Shard, true, false
		return s
	}
	shares, rows := c.Shares(a.layout.Shards), make([]int32, k)
	for j, i := range a.from {
		rows[j] = a.layout.Row(i)
	}
	s := &statement{
		c: &row, whole: c, sql: l.sql.For(c.Windowed).TakeShard, shards: rows,
		args: []any{c.Name, c.Key, rows, shares.Each.Capacity, shares.Each.Rate, c.Period, row.Count,
			l.now(), c.originTime(), least, c.Pausable(), c.Busy(0), a.wait,
			a.layout.Row(0), shares.First.Capacity, shares.First.Rate},
	}
	if a.parts > 0 {
		s.sql, s.parts, s.args[argParts] = l.sql.For(c.Windowed).TakeParts, a.parts, a.parts
	}
	if c.Within > 0 {
		s.sql = l.sql.For(c.Windowed).TakeShardWithin
		s.args[argAhead] = float64(c.Within)
		s.args = append(s.args, row.Credited())
	}
	return s
}

// takePart takes one part of a call's count. If the call gathers what little the shards have, it
// takes no shard that others hold, and one caller gathers at a time. A call with Within and tokens
// that are yet to come tries no lock for gathering: if another call comes first, it loses a part.
func (l *Limiter) takePart(a *aim, p spread.Part) *statement {
	row := a.c.take(a.layout, p.Shard, p.Count)
	if !a.plan.Ahead {
		row.Leave = p.Least
	}
	switch {
	case l.cfg.Portable && a.plan.Ahead:
		return l.takeRow(a.c, &row, p.Least)
	case l.cfg.Portable:
		return l.takeRow(a.c, &row, 0)
	case a.plan.Ahead:
		one := *a.c
		one.Count, one.Before = row.Count, row.Before
		s := l.takeShard(&aim{c: &one, layout: a.layout, from: []int{p.Shard}, plan: a.plan,
			wait: a.wait, level: p.Least})
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
	s.args[argLeast] = max(s.args[argLeast].(float64), least) //nolint:forcetypeassert // as in add
	s.whole, s.row, s.writes = c, row.Shard, false
	return s
}
