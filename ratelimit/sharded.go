package ratelimit

import (
	"context"
	"errors"
	"hash/fnv"
	"math"
	"slices"
	"time"

	"github.com/weir-go/weir/shard"
)

// The protocol, where limits have shards. It is that of protocol.go, with a choice before it: TAKE goes to one shard that is
// known to have enough and that nobody else holds. Is none known, or was it not so, LOOK reads all of them, decides for the
// limit as a whole, and says from which of them to take: the next TAKE asks for just that.
//
// Nobody waits for a shard while holding a row that others may take after it. A TAKE that was denied has locked its shard, and
// one of a later limit in the same call that limit's row. So if the limit has the tokens elsewhere InTx runs the transaction
// again, which knows then where. A transaction that would not run again has a savepoint to go back to.

// aim is where one of the calls is to take from.
type aim struct {
	c    *call
	n    int   // shards
	from []int // the candidates, of which one will do; else
	plan []part
	seen *whole // what the plan was made by
	sent []*statement
}

func (l *Limiter) rateLimitShards(ctx context.Context, x executor, calls []call, requests int) (Result, error) {
	aims := make([]aim, len(calls))
	looked := x.fresh() && l.denials.expected(calls) || !l.guess(x, calls, aims)
	var seen []*whole
	held := false // a row that others may be waiting for
	for round := 1; ; round++ {
		if looked && !held { // to look may be to give a limit other shards
			var err error
			if seen, err = l.look(ctx, x, calls); err != nil {
				return Result{}, err
			}
		}
		if seen != nil {
			if res := l.judgeWholes(seen, calls, requests); !res.OK {
				return res, nil
			}
			l.aim(x, calls, aims, seen)
			if x.single() && slices.ContainsFunc(aims, aim.inPause) {
				return Result{}, errUndecided // what turns out to be taken in a longer one must be given back before it is seen
			}
		}
		if held {
			x.wrong(calls...)
			return Result{}, explain(ctx, errBusy{}, "take", calls)
		}
		var takes []*statement
		for i := range aims {
			l.send(&aims[i], len(aims) == 1)
			takes = append(takes, aims[i].sent...)
		}
		guarded := !l.savepoints.holds(x.own(), takes)
		undo, err := l.guarded(ctx, x, takes, guarded)
		l.arrive(x, takes, err)
		stamp(takes)
		if err != nil {
			if x.stepwise() {
				l.undo(ctx, x, takes)
			}
			return Result{}, explain(ctx, err, "take", calls)
		}
		if res, ok := l.grantedShards(aims, calls, requests); ok {
			if guarded {
				if err := l.letStand(ctx, x, takes); err != nil {
					return Result{}, explain(ctx, err, "take", calls)
				}
			}
			return res, nil
		}
		var gives []*statement
		if x.single() || x.again() || !guarded {
			gives = l.gives(takes)
		} else if err := undo(ctx); err != nil {
			return Result{}, explain(ctx, err, "let go of", calls)
		}
		if seen, err = l.deniedShards(ctx, x, gives, calls); err != nil {
			return Result{}, err
		}
		held = x.again() && (seen == nil || holds(aims, seen))
		looked = seen == nil
		if round >= rounds && x.single() || round == rounds+shard.Max {
			return Result{}, errUndecided
		}
	}
}

// guess aims by what is known, at one shard for each call. It reports whether enough is known for all of them.
func (l *Limiter) guess(x executor, calls []call, aims []aim) bool {
	session := x.session()
	for i := range calls {
		c := &calls[i]
		n, from := l.books.choose(c, session, l.clock)
		switch {
		case !x.known(c):
			return false
		case c.leave > 0 && (n > 1 || c.shards > 1): // one shard does not tell what is left
			return false
		case n == 0 && c.shards <= 1: // one row, as far as is known
			aims[i] = aim{c: c, n: 1}
		case n < c.shards || len(from) == 0:
			return false
		default:
			aims[i] = aim{c: c, n: n, from: from}
		}
	}
	return true
}

// aim aims by what was seen, in which each of the calls is granted.
func (l *Limiter) aim(x executor, calls []call, aims []aim, seen []*whole) {
	session := x.session()
	for i := range calls {
		c, w := &calls[i], seen[i]
		aims[i] = aim{c: c, n: w.n, seen: w}
		if w.n == 1 {
			continue
		}
		plan, _ := c.plan(w, w.at)
		if len(plan) == 1 && plan[0].count == c.count && plan[0].least == 0 && x.known(c) {
			// Since the look other callers may have changed what the books say, and even of how many shards.
			if n, from := l.books.choose(c, session, l.clock); n == w.n && len(from) > 0 {
				aims[i].from = from
			}
		}
		if aims[i].from == nil {
			aims[i].plan = plan
		}
	}
}

// inPause says that the call may run in time although its limit is paused, as it was seen.
func (a aim) inPause() bool {
	return a.seen != nil && a.n > 1 && a.c.within > 0 && a.c.sum(a.seen, a.seen.at).pausedUntil != open
}

// holds tells whether takes that were not all granted have left a row locked: one that was granted and given back, or one that
// was denied. Where the shard has enough it was not denied, but held by somebody else.
func holds(aims []aim, seen []*whole) bool {
	for i := range aims {
		for _, s := range aims[i].sent {
			if s.whole == nil || s.found || s.shards != nil || aims[i].n != seen[i].n {
				return true
			}
			_, k := shard.Address(s.row)
			if s.c.at(seen[i].rows[k], seen[i].at).value < s.c.count {
				return true
			}
		}
	}
	return false
}

// errBusy says that a transaction holds a shard that was the wrong one, and must not wait for others. To InTx it is a conflict.
type errBusy struct{}

func (errBusy) Error() string    { return "its shards were not as they were known to be" }
func (errBusy) SQLState() string { return "40001" }

// send makes the statements. A lone one that fails can be told from one that was denied.
func (l *Limiter) send(a *aim, lone bool) {
	paused := a.c.reserve && !a.c.bounded || a.inPause()
	switch {
	case a.n == 1:
		c := *a.c
		c.shards = 0
		a.sent = []*statement{l.takeOf(&c)}
	case a.from != nil:
		p := part{count: a.c.count}
		a.sent = []*statement{l.takeShard(a.c, a.n, a.from, p, paused, !lone || a.seen != nil || len(a.from) > 1, l.now())}
		a.sent[0].writes = false // if it fails, it will be another
		a.sent[0].lone = len(a.from) == 1 && a.sent[0].shards == nil
	default:
		a.sent = nil
		for _, p := range a.plan {
			a.sent = append(a.sent, l.takeShard(a.c, a.n, []int{p.shard}, p, paused, true, fromMicro(a.seen.at))) // one clock for all parts
		}
	}
}

// takeShard takes p from one of the candidates, in a pause too if that is said.
func (l *Limiter) takeShard(c *call, n int, candidates []int, p part, paused, wait bool, now any) *statement {
	row := c.of(n, candidates[0])
	row.count = p.count
	if l.portable {
		s := l.write(&row, l.sql.of(c).take, p.count, p.least, paused)
		s.args[7] = now
		s.whole, s.row = c, row.shard
		return s
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(c.name))
	_, _ = h.Write([]byte{0})
	_, _ = h.Write([]byte(c.key))
	k := len(candidates)
	if k == 1 && !wait {
		s := l.write(&row, l.sql.of(c).takeOwn, p.count, p.least, paused, int32(h.Sum32())+row.shard) //nolint:gosec // wraps
		s.whole, s.row = c, row.shard
		return s
	}
	shares := c.shares(n)
	rows, locks := make([]int32, k), make([]int32, k)
	capacities, rates := make([]float64, k), make([]float64, k)
	for j, i := range candidates {
		s := shares.of(i)
		rows[j], capacities[j], rates[j] = shard.Row(n, i), s.capacity, s.rate
		locks[j] = int32(h.Sum32()) + rows[j] //nolint:gosec // wraps
	}
	return &statement{
		c: &row, whole: c, writes: true, sql: l.sql.of(c).takeShard, shards: rows,
		args: []any{c.name, c.key, rows, capacities, rates, c.period, p.count, now, c.originTime(), p.least, paused, locks, wait},
	}
}

// arrive notes which shards the takes have come to, and how they stand.
func (l *Limiter) arrive(x executor, takes []*statement, err error) {
	for _, s := range takes {
		if s.whole != nil && s.closed() {
			s.found = false // nor was it there
		}
		switch {
		case s.whole != nil && s.found:
			n, i := shard.Address(s.row)
			count := s.c.count
			*s.c = s.whole.of(n, i)
			s.c.count = count
			l.books.took(s.c, s.row, s.balance(), x.session())
		case s.whole != nil && err != nil && isConflict(err):
			l.books.lost(s.c, s.c.shard)
		case s.lone && err == nil: // somebody else holds it or has taken from it: it is the session's own no more
			l.books.lost(s.c, s.row)
		}
	}
}

// grantedShards is granted: the Result of takes that all answered with a row.
func (l *Limiter) grantedShards(aims []aim, calls []call, requests int) (Result, bool) {
	decisions, at := make([]Decision, len(aims)), make([]int64, len(aims))
	for i := range aims {
		a := &aims[i]
		for _, s := range a.sent {
			if !s.found {
				return Result{}, false
			}
		}
		c, left := a.c, a.sent[0].balance()
		switch {
		case a.n == 1:
			c.layout, c.parts = 0, nil
		case a.seen == nil:
			left.value, _ = l.books.total(c, left.ts)
			left.value = max(0, left.value)
			left.moved = 0
		default:
			w, level := a.left()
			before := c.sum(a.seen, a.seen.at)
			left = c.sum(w, w.at)
			if !level || c.within > 0 && left.pausedUntil > before.pausedUntil {
				return Result{}, false
			}
			if c.bounded && left.value < 0 { // as it was planned: not a rounding later
				left.value = before.value - c.count
			}
		}
		decisions[i], at[i] = c.granted(left), left.ts
		c.taken, c.owed, c.delay, c.moved = left.since(), -left.value, left.delay, left.moved
		if a.n > 1 {
			c.layout, c.parts, c.left = a.n, nil, nil
			if c.owed <= 0 { // else it is a debt of all
				for _, s := range a.sent {
					_, k := shard.Address(s.c.shard)
					c.parts = append(c.parts, part{shard: k, count: s.c.count})
					c.left = append(c.left, s.balance())
					c.taken = min(c.taken, s.c.taken)
				}
			}
			if a.seen == nil {
				c.owed = -plenty
			}
		}
	}
	res := summarize(calls, decisions, at, requests)
	res.id = newID(res.At.UnixMicro())
	return res, true
}

// left is what takes that were planned have left of their limit. A debt is level only if all shards stood as they were seen: if
// they were reset since, what was taken from each leaves tokens in some while others owe, and those must not be granted.
func (a *aim) left() (w *whole, level bool) {
	w = &whole{a.n, slices.Clone(a.seen.rows), 0}
	shares := a.c.shares(a.n)
	owes, changed := false, false
	for _, s := range a.sent {
		_, k := shard.Address(s.c.shard)
		b := s.balance()
		had := shares.of(k).at(a.seen.rows[k], max(a.seen.at, b.ts)).value
		owes = owes || b.value < 0
		changed = changed || math.Abs(had-s.c.count-b.value) > (math.Abs(had)+s.c.count)*smallest
		w.rows[k], w.at = b, max(w.at, b.ts)
	}
	return w, !owes || !changed
}

// plenty is what a shard had left that was not alone, as far as matters to those who wait: nobody does.
const plenty = full * 1024

// deniedShards gives back what was taken and looks at all limits, in one trip. It returns nil if they were being moved to
// another layout.
func (l *Limiter) deniedShards(ctx context.Context, x executor, gives []*statement, calls []call) ([]*whole, error) {
	if len(gives) > 0 {
		var cancel context.CancelFunc
		ctx, cancel = detached(ctx)
		defer cancel()
	}
	return l.lookAfter(ctx, x, gives, calls)
}

// look reads limits as a whole, and gives those the shards that they are to have that have fewer.
func (l *Limiter) look(ctx context.Context, x executor, calls []call) ([]*whole, error) {
	for range rounds {
		seen, err := l.see(ctx, x, calls)
		if err != nil {
			return nil, err
		}
		again := false
		for i := range calls {
			lacks := seen[i].lacks()
			if seen[i].n >= calls[i].shards && !lacks {
				continue
			}
			if x.single() {
				return nil, errUndecided
			}
			if lacks {
				if err := l.mend(ctx, x, &calls[i], seen[i].n); err != nil {
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
	}
	return nil, explain(ctx, errMoving, "look at", calls)
}

var errMoving = errors.New("its shards change all the time")

// lookAfter looks at limits, in the same trip as other statements and after them. It returns nil if one of them was being
// moved to another layout.
func (l *Limiter) lookAfter(ctx context.Context, x executor, trip []*statement, calls []call) ([]*whole, error) {
	first := len(trip)
	for i := range calls {
		trip = append(trip, l.lookShardsOf(&calls[i]))
	}
	if err := x.run(ctx, trip); err != nil {
		return nil, explain(ctx, err, "look at", calls)
	}
	seen := make([]*whole, len(calls))
	moving := false
	for i, s := range trip[first:] {
		c := &calls[i]
		c.forget()
		w, valid := s.look.whole()
		if !valid {
			l.books.forget(c)
			moving = true
			continue
		}
		if seen[i] = w; w.n > 1 || c.layout > 1 {
			l.books.look(c, w, x.transaction())
		} else {
			l.books.forget(c)
		}
	}
	if moving {
		return nil, nil //nolint:nilnil // see above
	}
	return seen, nil
}

func (l *Limiter) lookShardsOf(c *call) *statement {
	return &statement{c: c, sql: l.sql.lookShards, args: []any{c.name, c.key, l.now()}, look: new(look)}
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
	for range rounds {
		if seen, err := l.lookAfter(ctx, x, nil, calls); err != nil || seen != nil {
			return seen, err
		}
	}
	return nil, explain(ctx, errMoving, "look at", calls)
}

// judgeWholes is judge.
func (l *Limiter) judgeWholes(seen []*whole, calls []call, requests int) Result {
	if seen == nil {
		return Result{}
	}
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

// closed reports whether a row has been left for good, as the limit has another layout now.
func (s *statement) closed() bool {
	return s.found && s.answer.value.Valid && math.IsInf(s.answer.value.Float64, -1)
}
