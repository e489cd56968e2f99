package ratelimit

import (
	"context"
	"errors"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/weir-go/weir/shard"
)

// The protocol where limits have shards. It is that of protocol.go, with a choice before it: TAKE goes
// to one shard that is known to have enough and that nobody else holds. If no such shard is known, or
// the guess was wrong, LOOK reads all shards, decides for the limit as a whole, and says where to take.
//
// A take does not wait for a shard that others hold, except where nearly all shards would do. So no
// caller waits for a row while there are no tokens for it.
//
// A take that was denied has locked its shard none the less. If nothing else was sent in the
// transaction, it is rolled back, LOOK goes out by itself, and TAKE begins a new one: nobody has seen
// the first. Else the transaction takes only from rows that come after that shard, as two callers could
// wait for each other.

// alone is the number of the row of a limit without shards.
const alone = 0

// aim is where one of the calls is to take from.
type aim struct {
	c      *call
	layout shard.Layout
	from   []int // the candidates, of which one will do; else
	plan   plan
	wait   bool    // for the first of them, if others hold them all
	level  float64 // to which the candidates are expected to be left, at the least
	sent   []*statement
}

func (l *Limiter) rateLimitShards(ctx context.Context, x executor, calls []call, requests int) (Result, error) {
	for i := range calls {
		calls[i].most = l.books.asked(&calls[i])
	}
	first := x.alone()
	held := int32(0) // the last row that the transaction has locked for nothing
	aims := make([]aim, len(calls))
	var seen []*whole
	var err error
	if x.fresh() && l.denials.expected(calls) || !l.guess(x, calls, aims) {
		if seen, err = l.look(ctx, x, calls); err != nil {
			return Result{}, err
		}
	}
	for round := 1; ; round++ {
		if seen != nil {
			if res := l.judgeWholes(seen, calls, requests); !res.OK {
				x.doubt(l.stillDenied(calls))
				return res, nil
			}
			l.aim(x, calls, aims, seen, round == rounds)
		}
		var takes []*statement
		for i := range aims {
			l.send(&aims[i], held)
			for _, s := range aims[i].sent { // so that calls that come before the answer keep out of its way
				l.books.claim(s.c, s.c.shard, x.session())
			}
			takes = append(takes, aims[i].sent...)
		}
		if len(takes) == 0 {
			return l.takenAgain(aims, seen, calls, requests), nil
		}
		if x.single() && len(takes) > 1 {
			return Result{}, errUndecided
		}
		failed := x.run(ctx, takes)
		l.arrive(x, takes, failed)
		switch {
		case failed == nil:
			if res, ok := l.grantedShards(aims, seen, calls, requests); ok {
				return res, nil
			}
		case !first || round == rounds || !isConflict(failed) || slices.ContainsFunc(takes, ofOneRow):
			if x.stepwise() {
				l.undo(ctx, x, takes)
			}
			return Result{}, explain(ctx, failed, "take", calls)
		}
		var restarted bool
		if seen, restarted, err = l.lookAgain(ctx, x, takes, calls, first, failed); err != nil {
			return Result{}, err
		}
		if !restarted && !x.single() {
			held = max(held, locked(aims, seen))
		}
		if round == rounds {
			res := l.judgeWholes(seen, calls, requests)
			if !res.OK {
				x.doubt(l.stillDenied(calls))
				return res, nil
			}
			return l.takenAgain(aims, seen, calls, requests), nil
		}
	}
}

// ofOneRow tells of a take from a limit without shards, for whose row InTx queues after a conflict.
func ofOneRow(s *statement) bool { return s.whole == nil }

// locked is the last row that takes have locked for nothing, as far as can be seen: 0, if they have locked none. A shard that
// has enough was not denied, but held by somebody else.
func locked(aims []aim, seen []*whole) (last int32) {
	for i := range aims {
		a, w := &aims[i], seen[i]
		for _, s := range a.sent {
			if s.whole == nil || a.layout != w.Layout {
				continue
			}
			rows := s.shards
			if rows == nil {
				rows = []int32{s.c.shard}
			}
			for _, row := range rows {
				_, k := shard.Address(row)
				r := s.whole.of(w.Layout, k)
				if s.found || r.at(w.rows[k], w.at).value-s.c.count < s.args[9].(float64) { //nolint:forcetypeassert // what is to be left
					last = max(last, row)
				}
			}
		}
	}
	return last
}

// guess aims by what is known, at one shard for each call. It reports whether enough is known for all
// of them.
func (l *Limiter) guess(x executor, calls []call, aims []aim) bool {
	for i := range calls {
		c := &calls[i]
		layout, known := l.books.layout(c)
		switch {
		case !known && c.shards <= 1: // one row, as far as is known
			aims[i] = aim{c: c, layout: shard.Single}
		case c.leave > 0: // what all shards have decides
			return false
		case layout.Shards < c.shards || !l.choose(&aims[i], c, x.session()) && !l.divide(&aims[i], c, x.session()):
			return false
		}
	}
	return true
}

// choose aims at one of several shards, by what is known.
// It reports whether one is known that would do.
func (l *Limiter) choose(a *aim, c *call, session uint32) bool {
	layout, from, enough, level := l.books.choose(c, session, l.clock)
	if len(from) == 0 {
		return false
	}
	*a = aim{c: c, layout: layout, from: from, level: level, wait: len(from) > 1 && 2*enough > layout.Shards}
	return true
}

// divide aims at several shards, by what is known, if the call may wait.
func (l *Limiter) divide(a *aim, c *call, session uint32) bool {
	w := l.books.known(c, l.clock)
	if w == nil || !c.pausable() {
		return false
	}
	p, ok := c.plan(w, w.at, false, l.books.free(c, w.Layout, session))
	*a = aim{c: c, layout: w.Layout, plan: p}
	return ok && len(p.parts) > 0
}

// aim aims by what was seen, in which each of the calls is granted. The last time it does so however others have left the
// shards since.
func (l *Limiter) aim(x executor, calls []call, aims []aim, seen []*whole, last bool) {
	for i := range calls {
		c, w := &calls[i], seen[i]
		aims[i] = aim{c: c, layout: w.Layout}
		if w.Layout == shard.Single {
			continue
		}
		free := l.books.free(c, w.Layout, x.session())
		p, ok := c.plan(w, w.at, last && c.pausable(), free)
		if !ok {
			p, _ = c.plan(w, w.at, last && c.pausable(), nil)
		}
		if len(p.able) == 0 {
			aims[i].plan, aims[i].wait = p, last
		} else {
			aims[i].among(p.able, w, free)
		}
		if last {
			aims[i].anyLevel()
			aims[i].wait = aims[i].wait || c.pausable()
		}
	}
}

// among aims at one of the shards that were seen to grant the call.
func (a *aim) among(able []int, w *whole, free func(int) bool) {
	shares := a.c.shares(w.Shards)
	view := func(k int) shard.View {
		i := able[k]
		return shard.View{Tokens: shares.of(i).at(w.rows[i], w.at).value, Busy: !free(i)}
	}
	chosen, _ := shard.Choose(len(able), -1, a.c.count, closed, view, rand.IntN)
	for _, k := range chosen {
		a.from = append(a.from, able[k])
		a.level = min(a.level, view(k).Tokens-a.c.count)
	}
	a.level -= muchWorse * a.c.count
	a.wait = len(a.from) > 1 && 2*len(able) > w.Shards
}

// anyLevel has the call take from what it is aimed at however that stands by now.
func (a *aim) anyLevel() {
	a.level = closed
	for k := range a.plan.parts {
		p := &a.plan.parts[k]
		row := a.c.take(a.layout, p.shard, p.count)
		p.least = row.least()
	}
}

// send makes the statements. A transaction that holds a row for nothing takes from rows behind it only, in which order
// everybody waits, or there is none.
func (l *Limiter) send(a *aim, held int32) {
	ahead := func(i int) bool { return a.layout.Row(i) <= held }
	if held > 0 && a.layout != shard.Single {
		parts := len(a.plan.parts)
		a.from = slices.DeleteFunc(a.from, ahead)
		if slices.ContainsFunc(a.plan.parts, func(p part) bool { return ahead(p.shard) }) || parts == 0 && len(a.from) == 0 {
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

// takeShard takes from the first of the candidates that nobody else holds.
func (l *Limiter) takeShard(a *aim) *statement {
	c, k := a.c, len(a.from)
	row := c.of(a.layout, a.from[0])
	least := max(row.least(), a.level)
	if l.portable {
		return l.takeRow(c, &row, least)
	}
	if k == 1 && !a.wait && c.within == 0 {
		s := l.write(&row, l.sql.of(c).takeOwn, row.count, least, c.pausable(), c.lock(row.shard), nil)
		s.whole, s.row, s.lone, s.writes = c, row.shard, true, false
		return s
	}
	shares := c.shares(a.layout.Shards)
	rows, locks := make([]int32, k), make([]int32, k)
	capacities, rates := make([]float64, k), make([]float64, k)
	for j, i := range a.from {
		s := shares.of(i)
		rows[j], capacities[j], rates[j] = a.layout.Row(i), s.capacity, s.rate
		locks[j] = c.lock(rows[j])
	}
	s := &statement{
		c: &row, whole: c, sql: l.sql.of(c).takeShard, shards: rows,
		args: []any{c.name, c.key, rows, capacities, rates, c.period, row.count, l.now(), c.originTime(), least, c.pausable(), locks, a.wait},
	}
	if c.within > 0 {
		s.sql = l.sql.of(c).takeShardWithin
		s.args[10] = float64(c.within)
		s.args = append(s.args, row.credited())
	}
	return s
}

// takePart takes a part of what a call asks for. Of those who gather the tokens that are there, one
// goes first, and takes no shard that others hold.
func (l *Limiter) takePart(a *aim, p part) *statement {
	row := a.c.take(a.layout, p.shard, p.count)
	if !a.plan.ahead {
		row.leave = p.least
	}
	switch {
	case l.portable && a.plan.ahead:
		return l.takeRow(a.c, &row, p.least)
	case l.portable:
		return l.takeRow(a.c, &row, 0)
	case a.plan.ahead:
		one := *a.c
		one.count, one.before = row.count, row.before
		s := l.takeShard(&aim{c: &one, layout: a.layout, from: []int{p.shard}, wait: a.wait, level: p.least})
		s.whole = a.c
		return s
	}
	s := l.write(&row, l.sql.of(&row).takeOwn, row.count, row.leave, false, a.c.lock(row.shard), a.c.lock(gathering))
	s.whole, s.row, s.writes = a.c, row.shard, false
	return s
}

// takeRow takes from one shard, and waits for whoever holds it: where there are no advisory locks.
func (l *Limiter) takeRow(c, row *call, least float64) *statement {
	one := *row
	s := l.takeOf(&one)
	s.args[9] = max(s.args[9].(float64), least) //nolint:forcetypeassert // the least balance to leave
	s.whole, s.row, s.writes = c, row.shard, false
	return s
}

// gathering stands for a row in the number of the lock of who gathers.
const gathering = -1

// lock is the number of the advisory lock of a shard. Only who finds it free takes from the shard,
// which spares waiting. Nothing goes wrong without it, or if two rows have the same.
func (c *call) lock(row int32) int32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(c.name))
	_, _ = h.Write([]byte{0})
	_, _ = h.Write([]byte(c.key))
	return int32(h.Sum32()) + row //nolint:gosec // wraps
}

// arrive notes which shards the takes have come to, and how they stand.
func (l *Limiter) arrive(x executor, takes []*statement, err error) {
	for _, s := range takes {
		if s.whole == nil {
			stamp([]*statement{s})
			continue
		}
		if s.closed() {
			s.found = false // nor was it there
		}
		switch {
		case s.found:
			if layout, i := shard.Address(s.row); s.row != s.c.shard {
				l.books.disclaim(s.c, s.c.shard, x.session())
				*s.c = s.whole.take(layout, i, s.c.count)
			}
			s.c.stamp(s.balance())
			l.books.took(s.c, s.balance(), x.session())
			if a, ok := x.transaction().(*attempt); ok {
				a.shards = append(a.shards, *s.c)
			}
		case err != nil && isConflict(err):
			l.books.lost(s.c, s.c.shard)
		case s.lone && err == nil: // somebody else holds it or has taken from it: it is the session's own no more
			l.books.lost(s.c, s.row)
		default:
			l.books.disclaim(s.c, s.c.shard, x.session())
		}
	}
}

// grantedShards is granted: the Result of takes that all answered with a row.
func (l *Limiter) grantedShards(aims []aim, seen []*whole, calls []call, requests int) (Result, bool) {
	decisions, at := make([]Decision, len(aims)), make([]int64, len(aims))
	for i := range aims {
		a := &aims[i]
		if len(a.sent) == 0 || slices.ContainsFunc(a.sent, func(s *statement) bool { return !s.found }) {
			return Result{}, false
		}
		c, b := a.c, a.sent[0].balance()
		if c.parts = nil; a.layout == shard.Single {
			c.stamp(b)
			decisions[i], at[i] = c.granted(b), b.ts
			continue
		}
		for k, s := range a.sent {
			c.parts = append(c.parts, *s.c)
			if k > 0 {
				b = b.and(s.balance())
			}
		}
		c.stamp(b)
		if total, known := l.books.total(c, b.ts); known {
			b.value = total
		} else if seen != nil && seen[i].Layout == a.layout { // the books know a new layout when it is committed
			b.value = c.sum(seen[i].after(a.sent), b.ts).value
		}
		decisions[i], at[i] = c.grantedParts(c.parts, b), b.ts
	}
	res := summarize(calls, decisions, at, requests)
	res.id = l.idOf(calls, res.At.UnixMicro())
	return res, true
}

// takenAgain denies calls for which the tokens were there each time that it was looked, and taken by
// others when it was their turn.
func (l *Limiter) takenAgain(aims []aim, seen []*whole, calls []call, requests int) Result {
	decisions, at := make([]Decision, len(calls)), make([]int64, len(calls))
	for i := range calls {
		at[i] = seen[i].at
		if decisions[i] = calls[i].decideWhole(seen[i]); aims[i].layout != shard.Single || len(aims) == 1 {
			decisions[i] = calls[i].takenAgain(seen[i])
		}
		l.denials.note(&calls[i], &decisions[i], at[i])
		calls[i].forget()
	}
	return summarize(calls, decisions, at, requests)
}

// look reads limits as a whole, before the transaction begins if it can, and gives those the shards
// that they are to have that have fewer.
func (l *Limiter) look(ctx context.Context, x executor, calls []call) ([]*whole, error) {
	looks := l.looksAtShards(calls)
	if did, err := x.aside(ctx, looks, false); err != nil {
		return nil, explain(ctx, err, "look at", calls)
	} else if !did {
		if err := x.run(ctx, looks); err != nil {
			return nil, explain(ctx, err, "look at", calls)
		}
	}
	return l.grown(ctx, x, looks, calls)
}

// lookAgain reads limits after a take was denied, or has failed because of a concurrent transaction.
// What the transaction has taken goes back. If it has done nothing else it is rolled back, and nothing
// of the caller's need run again.
func (l *Limiter) lookAgain(
	ctx context.Context, x executor, takes []*statement, calls []call, first bool, failed error,
) (seen []*whole, restarted bool, err error) {
	looks := l.looksAtShards(calls)
	if first {
		restarted, err = x.restart(ctx, looks)
	}
	switch {
	case !restarted && failed != nil:
		return nil, false, explain(ctx, failed, "take", calls)
	case !restarted && err == nil:
		gives := l.gives(takes)
		if len(gives) > 0 {
			var cancel context.CancelFunc
			ctx, cancel = detached(ctx) // or the transaction would go on with a part of the call
			defer cancel()
		}
		err = x.run(ctx, append(gives, looks...))
	}
	if err != nil {
		return nil, false, explain(ctx, err, "look at", calls)
	}
	for i := range calls {
		calls[i].forget()
	}
	seen, err = l.grown(ctx, x, looks, calls)
	return seen, restarted, err
}

// grown is what looks have seen, after limits were given the shards that they lack.
func (l *Limiter) grown(ctx context.Context, x executor, looks []*statement, calls []call) ([]*whole, error) {
	for range rounds {
		seen, err := l.seen(x, looks, calls)
		if err != nil {
			return nil, explain(ctx, err, "look at", calls)
		}
		again := false
		for i := range calls {
			lacks := seen[i].lacks()
			if seen[i].Shards >= calls[i].shards && !lacks {
				continue
			}
			if x.single() {
				return nil, errUndecided
			}
			if lacks {
				if err := l.mend(ctx, x, &calls[i], seen[i].Layout); err != nil {
					return nil, explain(ctx, err, "mend the shards of", calls[i:])
				}
			}
			if err := l.reshard(ctx, x, &calls[i], calls[i].shards, false); err != nil {
				return nil, explain(ctx, err, "give shards to", calls[i:])
			}
			again = true
		}
		if !again {
			return seen, nil
		}
		looks = l.looksAtShards(calls)
		if err := x.run(ctx, looks); err != nil {
			return nil, explain(ctx, err, "look at", calls)
		}
	}
	return nil, explain(ctx, errMoving, "look at", calls)
}

var errMoving = errors.New("its shards keep changing")

// seen is what looks have seen.
func (l *Limiter) seen(x executor, looks []*statement, calls []call) ([]*whole, error) {
	seen := make([]*whole, len(calls))
	for i, s := range looks {
		c := &calls[i]
		w, valid := s.look.whole()
		if !valid {
			l.books.forget(c)
			return nil, errHead(s.look.number)
		}
		if seen[i] = w; w.Layout == shard.Single {
			l.books.forget(c)
		} else {
			l.books.look(c, w, x.transaction())
		}
	}
	return seen, nil
}

func (l *Limiter) looksAtShards(calls []call) []*statement {
	looks := make([]*statement, len(calls))
	for i := range calls {
		c := &calls[i]
		looks[i] = &statement{c: c, sql: l.sql.lookShards, args: []any{c.name, c.key, l.now()}, look: new(look)}
		if l.spread && c.key == "" {
			looks[i].sql, looks[i].args = l.sql.lookSpread, append(looks[i].args, l.homes(c.key))
		}
	}
	return looks
}

// checkShards is checkRateLimit: it gives no limit the shards that it is to have, as it writes nothing.
func (l *Limiter) checkShards(ctx context.Context, x executor, calls []call, requests int) (Result, error) {
	seen, err := l.see(ctx, x, calls)
	if err != nil {
		return Result{}, err
	}
	return l.judgeWholes(seen, calls, requests), nil
}

// see reads limits as a whole.
func (l *Limiter) see(ctx context.Context, x executor, calls []call) ([]*whole, error) {
	looks := l.looksAtShards(calls)
	err := x.run(ctx, looks)
	var seen []*whole
	if err == nil {
		seen, err = l.seen(x, looks, calls)
	}
	if err != nil {
		return nil, explain(ctx, err, "look at", calls)
	}
	return seen, nil
}

// judgeWholes is judge.
func (l *Limiter) judgeWholes(seen []*whole, calls []call, requests int) Result {
	decisions, at := make([]Decision, len(calls)), make([]int64, len(calls))
	denied := false
	for i := range calls {
		at[i] = seen[i].at
		decisions[i] = calls[i].decideWhole(seen[i])
		l.denials.note(&calls[i], &decisions[i], at[i])
		denied = denied || !decisions[i].OK
	}
	if denied {
		for i := range calls {
			decisions[i].State = calls[i].state(calls[i].sum(seen[i], at[i]))
			decisions[i].RunAt, decisions[i].PacedAt = time.Time{}, time.Time{}
		}
	}
	return summarize(calls, decisions, at, requests)
}

// stillDenied confirms, within a transaction, a denial that was read before it began.
func (l *Limiter) stillDenied(calls []call) func() *confirmation {
	return func() *confirmation {
		again := l.looksAtShards(calls)
		return &confirmation{again, func() bool {
			for i, s := range again {
				w, valid := s.look.whole()
				if !valid {
					return true // which the next look says
				}
				if _, ok := calls[i].plan(w, w.at, false, nil); !ok {
					return true
				}
			}
			return false
		}}
	}
}

// closed reports whether a row has been left for good, as the limit has another layout now.
func (s *statement) closed() bool {
	return s.found && s.answer.value.Valid && isClosed(s.answer.value.Float64)
}
