package ratelimit

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
)

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

	trips, together int // what it took, with how many others

	oneDecision [1]Decision
	oneTime     [1]int64
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

// leave is for a caller who waits no more. It reports false if the answer is there already. A call may be taken, and moved to
// another lane's queue, at any time.
func (w *waiter) leave() bool {
	for {
		switch w.state.Load() {
		case queued:
			if w.state.CompareAndSwap(queued, left) {
				return true
			}
		case taken:
			if w.state.CompareAndSwap(taken, left) {
				w.batch.leave()
				return true
			}
		default:
			return false
		}
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
	aside   *place // the only place of its calls, which somebody else held; nil for most lanes
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
		n.gather()
		n.mu.Lock()
		if len(n.queue) == 0 {
			n.running = false
			n.c.asides.close(n)
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
		n.decide(some)
		clear(some)
	}
}

// gather gives way to goroutines that are about to add their calls, those most of all who were answered just before: a batch of
// twice as many costs little more. It does not sleep.
func (n *lane) gather() {
	for had, still := 0, 0; still < 2; still++ {
		runtime.Gosched()
		n.mu.Lock()
		has := len(n.queue)
		n.mu.Unlock()
		if has != had {
			had, still = has, 0
		}
	}
}

// decide answers the calls of some waiters.
func (n *lane) decide(some []*waiter) {
	ctx, cancel := context.WithCancel(context.Background())
	b := &batch{cancel: cancel}
	b.live.Store(int64(len(some)))
	here := some[:0]
	for _, w := range some {
		w.batch = b
		if !w.state.CompareAndSwap(queued, taken) {
			b.leave()
			n.c.waiting.Add(-1)
			continue
		}
		w.order = len(here)
		w.room()
		here = append(here, w)
	}
	if len(here) == 0 {
		return
	}
	for _, w := range here {
		w.together = len(here)
	}
	p := n.c.plan(here)
	p.impatient = n.aside == nil
	for i := 1; ; i++ {
		err := p.foreseen(ctx)
		if err == nil {
			err = p.locked(ctx)
		}
		again := false
		switch {
		case i == maxAttempts:
		case p.waitedInVain(err):
			err = p.putAside(ctx, err)
			again = err == nil
		default:
			again = isConflict(err) || stateOf(err) == "23505" // or a row that there was not
		}
		if !again {
			p.fail(ctx, err)
			p.decideAlone(ctx)
			return
		}
	}
}

// asides are the lanes of rows that were held by others for long, or may have been: only those who want the row wait for it.
type asides struct {
	n  atomic.Int32
	mu sync.Mutex
	of map[place]*lane
}

// mostAside bounds them, as each has a connection while it decides.
const mostAside = 64

// lane is that of one of the places, or nil.
func (a *asides) lane(calls []call) *lane {
	if a.n.Load() == 0 {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range calls {
		if n := a.of[calls[i].place()]; n != nil {
			return n
		}
	}
	return nil
}

// open returns the lane of a place, or nil if there are too many.
func (a *asides) open(c *Coalesced, p place) *lane {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := a.of[p]; n != nil || len(a.of) == mostAside {
		return n
	}
	if a.of == nil {
		a.of = make(map[place]*lane)
	}
	n := &lane{c: c, aside: &p}
	a.of[p] = n
	a.n.Store(int32(len(a.of))) //nolint:gosec // at most mostAside
	return n
}

// close ends a lane that has nothing to do. Who has found it before then uses it once more.
func (a *asides) close(n *lane) {
	if n.aside == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.of[*n.aside] == n {
		delete(a.of, *n.aside)
		a.n.Store(int32(len(a.of))) //nolint:gosec // at most mostAside
	}
}
