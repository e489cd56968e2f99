package ratelimit

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// How calls are decided together. Most are foreseen rightly: those of a row are expected to be granted, all of them, and their
// sum is taken; or the row was denied before and is only looked at, and all of them are denied. Both go out in one trip, for all
// rows. What turned out otherwise, and calls that are never so simple, of several limits or reserving, are decided in a second
// transaction: it locks their rows, decides on them one call after the other by the algebra, and writes what is left.

// waiter is one call, of which the caller waits for an answer.
type waiter struct {
	calls    []call
	requests int
	order    int // of arrival
	state    atomic.Int32
	batch    *batch
	done     chan struct{}

	// The answer.
	err       error
	res       *Result // where it was decided alone
	decisions []Decision
	at        []int64

	oneDecision [1]Decision
	oneTime     [1]int64
	oneRow      [1]*standing
}

const (
	queued int32 = iota
	taken        // by a lane
	left         // its caller waits no more
	answered
)

var waiters = sync.Pool{New: func() any { return &waiter{done: make(chan struct{}, 1)} }}

func (w *waiter) free() {
	*w = waiter{done: w.done}
	waiters.Put(w)
}

// batch is what is decided together. It ends early if the callers of all its calls have left.
type batch struct {
	live   atomic.Int64
	cancel context.CancelFunc
}

func (b *batch) leave() {
	if b.live.Add(-1) == 0 {
		b.cancel()
	}
}

// room is where the decisions go.
func (w *waiter) room() {
	if len(w.calls) == 1 {
		w.decisions, w.at = w.oneDecision[:], w.oneTime[:]
		return
	}
	w.decisions, w.at = make([]Decision, len(w.calls)), make([]int64, len(w.calls))
}

func (w *waiter) result(ctx context.Context) (Result, error) {
	switch {
	case w.err != nil:
		return Result{}, explain(ctx, w.err, "take", w.calls)
	case w.res != nil:
		return *w.res, nil
	}
	res := summarize(w.calls, w.decisions, w.at, w.requests)
	if res.OK {
		res.id = newID(res.At.UnixMicro())
	}
	return res, nil
}

// lane decides calls, a batch after the other. It has a goroutine while there are any.
type lane struct {
	c       *Coalesced
	mu      sync.Mutex
	queue   []*waiter
	spare   []*waiter
	running bool
	_       [64]byte // lanes are used by different processors
}

func (n *lane) add(w *waiter) {
	n.mu.Lock()
	n.queue = append(n.queue, w)
	start := !n.running
	n.running = true
	n.mu.Unlock()
	if start {
		n.c.running.Add(1)
		go n.run()
	}
}

func (n *lane) run() {
	defer n.c.running.Done()
	for {
		n.mu.Lock()
		if len(n.queue) == 0 {
			n.running = false
			n.mu.Unlock()
			return
		}
		some := n.queue
		if len(some) <= mostTogether {
			n.queue, n.spare = n.spare[:0], some
		} else {
			some, n.queue = some[:mostTogether:mostTogether], some[mostTogether:]
		}
		n.mu.Unlock()
		n.c.decide(some)
		clear(some)
	}
}

// decide answers the calls of some waiters.
func (c *Coalesced) decide(some []*waiter) {
	ctx, cancel := context.WithCancel(context.Background())
	b := &batch{cancel: cancel}
	b.live.Store(int64(len(some)))
	here := some[:0]
	for _, w := range some {
		w.batch = b
		if !w.state.CompareAndSwap(queued, taken) {
			b.leave()
			c.waiting.Add(-1)
			continue
		}
		w.order = len(here)
		w.room()
		here = append(here, w)
	}
	if len(here) == 0 {
		return
	}
	p := c.plan(here)
	for i := 1; ; i++ {
		err := c.foreseen(ctx, p)
		if err == nil {
			err = c.locked(ctx, p)
		}
		if !isConflict(err) && stateOf(err) != "23505" || i == maxAttempts { // or a row that there was not
			c.fail(ctx, p, err)
			break
		}
	}
	c.decideAlone(ctx, p.alone)
}

// scheme is how some calls are to be decided.
type scheme struct {
	takes, looks []*standing // foreseen
	late         []*waiter   // to be decided in a second transaction
	alone        []*waiter   // and one by one
}

// plan foresees what the calls will meet.
func (c *Coalesced) plan(some []*waiter) *scheme {
	p := &scheme{}
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
	slices.SortStableFunc(plain, func(a, b *waiter) int {
		return cmp.Or(cmp.Compare(a.calls[0].name, b.calls[0].name), cmp.Compare(a.calls[0].key, b.calls[0].key))
	})
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

// plain says that the call is granted if the tokens are there.
func (c *call) plain() bool { return !c.reserve }

// foreseen runs the first transaction.
func (c *Coalesced) foreseen(ctx context.Context, p *scheme) error {
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
	err := c.on(ctx, func(conn *pgxpool.Conn) error { return roundTrip(ctx, conn, true, true, statements...) })
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
			c.answer(w)
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
				c.answer(w)
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
func (c *Coalesced) locked(ctx context.Context, p *scheme) error {
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
	slices.SortFunc(rows, func(a, b *standing) int {
		return cmp.Or(cmp.Compare(a.c.name, b.c.name), cmp.Compare(a.c.key, b.c.key))
	})
	var decided, alone []*waiter
	err := c.on(ctx, func(conn *pgxpool.Conn) error {
		var clock time.Time
		if err := roundTrip(ctx, conn, true, false, c.l.lockMany(rows, &clock)...); err != nil {
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
		return roundTrip(ctx, conn, false, true, c.l.putMany(rows)...)
	})
	if err != nil {
		return err
	}
	for _, w := range decided {
		for i := range w.calls {
			c.l.denials.note(&w.calls[i], &w.decisions[i], w.at[i])
		}
		c.answer(w)
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

// decideAlone decides calls one by one that cannot be decided with others, a few at a time, and those of a limit and key in
// their order. It does not wait for them: others go on.
func (c *Coalesced) decideAlone(ctx context.Context, some []*waiter) {
	of := map[place][]*waiter{}
	for _, w := range some {
		p := w.calls[0].place()
		of[p] = append(of[p], w)
	}
	for _, group := range of {
		c.running.Add(1)
		go func() {
			defer c.running.Done()
			c.singly <- struct{}{}
			defer func() { <-c.singly }()
			for _, w := range group {
				w.err = c.decided(ctx, w.calls, func(x executor, calls []call) error {
					res, err := c.l.rateLimit(ctx, x, calls, w.requests)
					w.res = &res
					return err
				})
				c.answer(w)
			}
		}()
	}
}

// fail answers the calls that are not decided yet. An error that the database has answered with may be that of one of them.
func (c *Coalesced) fail(ctx context.Context, p *scheme, err error) {
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
	if len(some) > 1 && errors.As(err, &answer) && isRolledBack(err) && ctx.Err() == nil {
		p.alone = append(p.alone, some...)
		return
	}
	for _, w := range some {
		w.err = err
		c.answer(w)
	}
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
