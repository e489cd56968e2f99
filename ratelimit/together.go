package ratelimit

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// How calls are decided together. Most are foreseen rightly: those of a row are expected to be granted, all of them, and their
// sum is taken; or the row was denied before and is only looked at, and all of them are denied. Both go out in one trip, for all
// rows. What turned out otherwise, and calls that are never so simple, of several limits or reserving, are decided in a second
// transaction: it locks their rows, decides on them one call after the other by the algebra, and writes what is left.

// scheme is how some calls are to be decided.
type scheme struct {
	c            *Coalesced
	impatient    bool        // it does not wait for long for a row that somebody else holds
	takes, looks []*standing // foreseen
	late         []*waiter   // to be decided in a second transaction
	alone        []*waiter   // and one by one
	trips        int         // to the database, so far
}

// plan foresees what the calls will meet.
func (c *Coalesced) plan(some []*waiter) *scheme {
	p := &scheme{c: c}
	plain := make([]*waiter, 0, len(some))
	var late map[place]bool // rows of calls that are not plain
	for _, w := range some {
		switch {
		case c.l.books.sharded(w.calls):
			p.alone = append(p.alone, w)
		case len(w.calls) == 1 && w.calls[0].plain():
			plain = append(plain, w)
		default:
			p.late = append(p.late, w)
			if late == nil {
				late = map[place]bool{}
			}
			for i := range w.calls {
				late[w.calls[i].place()] = true
			}
		}
	}
	slices.SortStableFunc(plain, func(a, b *waiter) int { return compareRows(&a.calls[0], &b.calls[0]) })
	rows := make([]standing, len(plain))
	for i, k := 0, 0; i < len(plain); k++ {
		r, first, same := &rows[k], &plain[i].calls[0], true
		r.c = first
		from := i
		for ; i < len(plain) && plain[i].calls[0].name == first.name && plain[i].calls[0].key == first.key; i++ {
			r.count += plain[i].calls[0].count
			same = same && plain[i].calls[0].algebra == first.algebra
		}
		r.waiters = plain[from:i:i]
		switch {
		case !same || late[first.place()]:
			p.late = append(p.late, r.waiters...)
		case c.l.denials.expected(r.waiters[0].calls):
			p.looks = append(p.looks, r)
		case r.count > first.capacity || first.capacity-(first.capacity-r.count) != r.count:
			p.late = append(p.late, r.waiters...)
		default:
			p.takes = append(p.takes, r)
		}
	}
	return p
}

// plain says that the call is granted if its tokens are there.
func (c *call) plain() bool { return !c.reserve && c.leave == 0 }

// foreseen runs the first transaction.
func (p *scheme) foreseen(ctx context.Context) error {
	c := p.c
	var statements []*many
	if len(p.takes) > 0 {
		statements = append(statements, c.l.takeMany(p.takes))
	}
	if len(p.looks) > 0 {
		statements = append(statements, c.l.lookMany(p.looks))
	}
	if len(statements) == 0 {
		return nil
	}
	p.trips++
	err := c.on(ctx, func(conn *pgxpool.Conn) error { return roundTrip(ctx, conn, p.begin(), true, statements...) })
	if err != nil {
		return err
	}
	for _, r := range p.takes {
		if !r.found {
			p.late = append(p.late, r.waiters...)
			continue
		}
		rest := r.count
		for _, w := range r.waiters {
			b := r.left
			rest -= w.calls[0].count
			b.value += rest
			w.grant(0, b)
			p.answer(w)
		}
	}
	for _, r := range p.looks {
		if r.closed() {
			p.alone = append(p.alone, r.waiters...)
			continue
		}
		denied := true
		for _, w := range r.waiters {
			w.at[0], w.decisions[0] = r.at, w.calls[0].decide(r.left, r.at)
			c.l.denials.note(&w.calls[0], &w.decisions[0], r.at)
			denied = denied && !w.decisions[0].OK
		}
		for _, w := range r.waiters {
			if denied {
				p.answer(w)
			}
		}
		if !denied {
			p.late = append(p.late, r.waiters...)
		}
	}
	p.takes, p.looks = nil, nil
	return nil
}

// grant notes that the i-th of the calls was granted, and left b.
func (w *waiter) grant(i int, b balance) {
	call := &w.calls[i]
	w.decisions[i], w.at[i] = call.granted(b), b.ts
	call.taken, call.owed, call.delay, call.moved = b.since(), -b.value, b.delay, b.moved
}

// locked runs the second transaction.
func (p *scheme) locked(ctx context.Context) error {
	c := p.c
	if len(p.late) == 0 {
		return nil
	}
	slices.SortFunc(p.late, func(a, b *waiter) int { return a.order - b.order })
	of := make(map[place]*standing, len(p.late))
	var rows []*standing
	for _, w := range p.late {
		for i := range w.calls {
			if of[w.calls[i].place()] == nil {
				r := &standing{c: &w.calls[i]}
				of[r.c.place()] = r
				rows = append(rows, r)
			}
		}
	}
	slices.SortFunc(rows, func(a, b *standing) int { return compareRows(a.c, b.c) })
	var decided, alone []*waiter
	p.trips += 2
	err := c.on(ctx, func(conn *pgxpool.Conn) error {
		var clock time.Time
		if err := roundTrip(ctx, conn, p.begin(), false, c.l.lockMany(rows, &clock)...); err != nil {
			return err
		}
		for _, r := range rows {
			r.at = clock.UnixMicro()
		}
		for _, w := range p.late {
			if w.decide(of) {
				decided = append(decided, w)
			} else {
				alone = append(alone, w)
			}
		}
		return roundTrip(ctx, conn, nil, true, c.l.putMany(rows)...)
	})
	if err != nil {
		return err
	}
	for _, w := range decided {
		for i := range w.calls {
			c.l.denials.note(&w.calls[i], &w.decisions[i], w.at[i])
		}
		p.answer(w)
	}
	p.late, p.alone = nil, append(p.alone, alone...)
	return nil
}

// decide decides on rows that are locked, and takes from them. It reports whether that is possible.
func (w *waiter) decide(of map[place]*standing) bool {
	ok := true
	for i := range w.calls {
		r := of[w.calls[i].place()]
		if r.closed() {
			return false
		}
		w.at[i], w.decisions[i] = r.at, w.calls[i].decide(r.left, r.at)
		ok = ok && w.decisions[i].OK
	}
	for i := range w.calls {
		c := &w.calls[i]
		r := of[c.place()]
		b := c.at(r.left, r.at)
		if !ok {
			c.forget()
			w.decisions[i].State = c.state(b)
			w.decisions[i].RunAt, w.decisions[i].PacedAt = time.Time{}, time.Time{}
			continue
		}
		b.value -= c.count
		w.grant(i, b)
		r.c, r.left, r.changed = c, b, true
	}
	return true
}

// decideAlone decides calls that cannot be decided with those of other rows, a few rows at a time. It does not wait for them:
// others go on.
func (p *scheme) decideAlone(ctx context.Context) {
	c := p.c
	of := map[place][]*waiter{}
	for _, w := range p.alone {
		k := w.calls[0].place()
		of[k] = append(of[k], w)
	}
	for _, group := range of {
		c.running.Add(1)
		go func() {
			defer c.running.Done()
			c.singly <- struct{}{}
			defer func() { <-c.singly }()
			trips := p.trips
			for _, w := range c.sum(ctx, group, &trips) {
				w.trips, w.together = w.trips+trips, 1
				w.err = c.decided(ctx, w.calls, func(x executor, calls []call) error {
					res, err := c.l.rateLimit(ctx, counting{x, &w.trips}, calls, w.requests)
					w.res = &res
					return err
				})
				c.answer(w)
			}
		}()
	}
}

// sum decides calls for the same limit and key, one with shards most often, as one: all of them are granted, or those are denied
// that would be if they were alone. It returns the others, which are to be decided one after the other, and counts the trips.
func (c *Coalesced) sum(ctx context.Context, group []*waiter, trips *int) []*waiter {
	all := group[0].calls[0]
	all.count, all.indexes = 0, only
	for _, w := range group {
		if len(w.calls) > 1 || !w.calls[0].plain() || w.calls[0].algebra != all.algebra {
			return group
		}
		all.count += w.calls[0].count
	}
	if len(group) == 1 || all.count > all.capacity {
		return group
	}
	var res Result
	err := c.decided(ctx, []call{all}, func(x executor, calls []call) (err error) {
		res, err = c.l.rateLimit(ctx, counting{x, trips}, calls, 1)
		return err
	})
	for _, w := range group {
		w.together = len(group)
	}
	answer := func(w *waiter) {
		w.trips += *trips
		c.answer(w)
	}
	if errors.Is(err, ErrOutcomeUnknown) { // to take again would be to take twice
		for _, w := range group {
			w.err = err
			answer(w)
		}
		return nil
	}
	if err != nil {
		return group
	}
	if res.OK {
		took := res.Outcomes[0].call
		rest, parts := took.count, slices.Clone(took.parts)
		for _, w := range group {
			one := &w.calls[0]
			rest -= one.count
			one.taken, one.delay, one.moved, one.owed, one.layout = took.taken, took.delay, took.moved, took.owed-rest, took.layout
			one.parts, parts = allot(parts, one.count)
			w.at[0] = res.At.UnixMicro()
			w.decisions[0] = Decision{OK: true, State: State{Value: res.Outcomes[0].Value + rest, TS: res.At, Delay: res.Outcomes[0].Delay}}
			answer(w)
		}
		return nil
	}
	seen, err := c.l.see(ctx, counting{poolExecutor{c.pool}, trips}, []call{all})
	if err != nil {
		return group
	}
	var others []*waiter
	for _, w := range group {
		if w.at[0], w.decisions[0] = seen[0].at, w.calls[0].decideWhole(seen[0]); w.decisions[0].OK {
			others = append(others, w)
		} else {
			answer(w)
		}
	}
	return others
}

// allot takes n tokens from the first of what was taken from shards, and returns those and the rest.
func allot(parts []part, n float64) (of, rest []part) {
	for len(parts) > 0 {
		p := part{shard: parts[0].shard, count: min(n, parts[0].count)}
		if len(parts) == 1 {
			p.count = n // but for rounding it is there
		}
		of = append(of, p)
		n -= p.count
		if parts[0].count -= p.count; parts[0].count > 0 || len(parts) == 1 {
			return of, parts
		}
		if parts = parts[1:]; n <= 0 {
			break
		}
	}
	return of, parts
}

// begin begins a transaction.
func (p *scheme) begin() []string {
	if p.impatient {
		return []string{beginTogetherSQL, patienceSQL}
	}
	return []string{beginTogetherSQL}
}

const (
	beginTogetherSQL = `BEGIN ISOLATION LEVEL READ COMMITTED`
	patienceSQL      = `SET LOCAL lock_timeout = 250`
)

// waitedInVain reports that a row was held for longer than the lane has patience.
func (p *scheme) waitedInVain(err error) bool {
	return p.impatient && stateOf(err) == "55P03" // lock_not_available
}

// putAside is for when a row was waited for in vain: those who want one that is held go to a lane of its own, and the others
// go on. If none is, it was one that another transaction makes, which nobody sees: it is among those that there are not. The
// error is why unless somebody was moved, or all rows are free by now.
func (p *scheme) putAside(ctx context.Context, why error) error {
	var rows []*standing
	of := map[place]*standing{}
	add := func(c *call) {
		if of[c.place()] == nil {
			r := &standing{c: c}
			of[c.place()], rows = r, append(rows, r)
		}
	}
	for _, r := range p.takes {
		add(r.c)
	}
	for _, w := range p.late {
		for i := range w.calls {
			add(&w.calls[i])
		}
	}
	free := make([]*standing, len(rows))
	for i, r := range rows {
		free[i] = &standing{c: r.c}
	}
	err := p.c.on(ctx, func(conn *pgxpool.Conn) error {
		return roundTrip(ctx, conn, []string{beginTogetherSQL}, true, p.c.l.freeMany(free), p.c.l.lookMany(rows))
	})
	if err != nil {
		return err
	}
	var held, missing []*standing
	for i, r := range rows {
		switch {
		case !r.found:
			missing = append(missing, r)
		case !free[i].found:
			held = append(held, r)
		}
	}
	if len(held) == 0 {
		held = missing
	}
	lanes := map[place]*lane{}
	for _, r := range held {
		if n := p.c.asides.open(p.c, r.c.place()); n != nil {
			lanes[r.c.place()] = n
		}
	}
	if len(held) > 0 && len(lanes) == 0 {
		return why
	}
	elsewhere := func(w *waiter) bool {
		for i := range w.calls {
			if n := lanes[w.calls[i].place()]; n != nil {
				w.move(n)
				return true
			}
		}
		return false
	}
	p.takes = slices.DeleteFunc(p.takes, func(r *standing) bool {
		if lanes[r.c.place()] == nil {
			return false
		}
		for _, w := range r.waiters {
			elsewhere(w)
		}
		return true
	})
	p.late = slices.DeleteFunc(p.late, elsewhere)
	return nil
}

// move takes a call to another lane.
func (w *waiter) move(n *lane) {
	if b := w.batch; w.state.CompareAndSwap(taken, queued) {
		b.leave()
		n.add(w)
	} else {
		n.c.waiting.Add(-1)
	}
}

// fail answers the calls that are not decided yet. An error that the database has answered with may be that of one of them.
func (p *scheme) fail(ctx context.Context, err error) {
	if err == nil {
		return
	}
	var some []*waiter
	for _, rows := range [][]*standing{p.takes, p.looks} {
		for _, r := range rows {
			some = append(some, r.waiters...)
		}
	}
	some = append(some, p.late...)
	var answer *pgconn.PgError
	if (len(some) > 1 || p.waitedInVain(err)) && errors.As(err, &answer) && isRolledBack(err) && ctx.Err() == nil {
		p.alone = append(p.alone, some...)
		return
	}
	for _, w := range some {
		w.err = err
		p.answer(w)
	}
}

func (p *scheme) answer(w *waiter) {
	w.trips += p.trips
	p.c.answer(w)
}

// answer hands a decision to the caller. What was taken for one who has left is given back.
func (c *Coalesced) answer(w *waiter) {
	if w.state.CompareAndSwap(taken, answered) {
		w.done <- struct{}{}
		return
	}
	c.waiting.Add(-1)
	if res, err := w.result(context.Background()); err == nil && res.OK {
		c.running.Add(1)
		go func() {
			defer c.running.Done()
			ctx, cancel := detached(context.Background())
			defer cancel()
			_ = c.GiveBack(ctx, res)
		}()
	}
}

func (c *Coalesced) on(ctx context.Context, fn func(*pgxpool.Conn) error) error {
	conn, err := c.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release() // after a failed statement it is still inside the transaction: the pool closes it for that
	return fn(conn)
}
