package ratelimit

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/internal/limits/algebra"
)

// waiter is one call whose caller waits for the answer.
type waiter struct {
	calls []call
	order int64 // the order of arrival
	state atomic.Int32
	done  chan struct{} // gets an element for the answer, and one when the timer fires
	timer *time.Timer
	spent bool        // the timer has fired: done may get, or have, one element more
	rows  []*standing // the rows of the calls, while they are decided

	// Set while another transaction holds one of its rows.
	since time.Time // when that was found
	tries int       // how often since
	waits int       // how often a connection has waited for the row since

	// The answer.
	err      error
	res      *Result // the answer of a call that was decided alone
	verdicts []algebra.Verdict
	took     []took

	trips, together int // how many trips it took, and how many calls were decided together

	oneRow     [1]*standing
	oneVerdict [1]algebra.Verdict
	oneTook    [1]took
}

const (
	queued int32 = iota
	taken        // into a batch
	left         // its caller no longer waits
	answered
)

func newWaiter() any {
	w := &waiter{done: make(chan struct{}, 2)}
	w.timer = time.AfterFunc(time.Hour, func() { w.done <- struct{}{} })
	w.timer.Stop()
	return w
}

// free keeps the waiter of a call that is answered for another one. It does so for calls of this
// Coalesced only: what is made in a bubble of testing/synctest must not be used outside of it.
func (c *Coalesced) free(w *waiter) {
	*w = waiter{done: w.done, timer: w.timer}
	c.waiters.Put(w)
}

// wait waits until the call is answered or ctx ends, and no longer than Config.Timeout, of which
// spent has passed, if ctx has no deadline. It returns nil for an answer only. The timer wakes the
// caller through the channel for the answer, as waiting for three channels, or making a context,
// would cost much of what a call costs here.
func (w *waiter) wait(ctx context.Context, l *Limiter, spent time.Duration) (late error) {
	d := l.patience(ctx)
	if d > 0 {
		w.timer.Reset(d - spent)
	}
	select {
	case <-w.done:
		if w.state.Load() != answered {
			late = l.errTimeout(context.DeadlineExceeded)
		}
	case <-ctx.Done():
		late = ctx.Err()
	}
	w.spent = d > 0 && !w.timer.Stop()
	return late
}

// answerTime is how long a caller whose context has ended still waits for an answer that is under
// way.
const answerTime = 50 * time.Millisecond

// leave is for a caller whose context has ended. It returns left if nothing was sent for the call,
// answered if the answer is there, and taken if the database has not answered in time. A call that
// was sent is not cancelled, as it may have committed.
func (w *waiter) leave() int32 {
	end := time.Now().Add(answerTime)
	for {
		switch state := w.state.Load(); {
		case state == answered:
			return answered
		case state == queued || time.Now().After(end):
			if w.state.CompareAndSwap(state, left) {
				if state == queued {
					return left
				}
				return taken
			}
		default:
			select {
			case <-w.done: // unless that was the timer
			case <-time.After(time.Until(end)):
			}
		}
	}
}

// room makes room for the verdicts.
func (w *waiter) room() {
	n := len(w.calls)
	w.rows = slices.Grow(w.oneRow[:0], n)[:n]
	w.verdicts = slices.Grow(w.oneVerdict[:0], n)[:n]
	w.took = slices.Grow(w.oneTook[:0], n)[:n]
	clear(w.took)
}

func (w *waiter) result(ctx context.Context) (Result, error) {
	switch {
	case w.err != nil:
		return Result{}, explain(ctx, w.err, "take", w.calls)
	case w.res != nil:
		return *w.res, nil
	}
	res := summarize(w.calls, w.verdicts, w.took)
	if res.OK {
		res.id = newID(res.At.UnixMicro())
	}
	return res, nil
}

// lane decides calls, one batch after the other, in a goroutine that exists only while there are
// calls. If a batch is overdue, a new goroutine takes over, and the old one ends with its batch:
// its connection may be dead, and calls of other keys must not wait for that.
type lane struct {
	c       *Coalesced
	mu      sync.Mutex
	queue   []*waiter
	spare   []*waiter
	runner  int      // the number of the goroutine that decides; 0: none
	runners int      // how many goroutines were started
	_       [64]byte // padding: different processors use the lanes
}

func (n *lane) add(some ...*waiter) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.queue = append(n.queue, some...)
	if n.runner == 0 {
		n.start()
	}
}

func (n *lane) start() {
	n.runners++
	runner := n.runners
	n.runner = runner
	n.c.running.Go(func() { n.run(runner) })
}

// replace starts another goroutine in place of an overdue one, unless half of the connections are
// overdue already.
func (n *lane) replace(runner int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.runner != runner:
	case n.c.overdue.Add(1) > n.c.connections()/2:
		n.c.overdue.Add(-1)
	default:
		n.spare = nil // still in use
		n.start()
	}
}

func (n *lane) run(runner int) {
	for {
		n.gather()
		n.mu.Lock()
		if n.runner != runner {
			n.mu.Unlock()
			n.c.overdue.Add(-1)
			return
		}
		if len(n.queue) == 0 {
			n.runner = 0
			n.mu.Unlock()
			return
		}
		some := n.queue
		switch {
		case n.c.l.cfg.Portable:
			some, n.queue = n.c.l.ofOneNode(n.queue)
		case len(some) <= mostTogether:
			n.queue, n.spare = n.spare[:0], some
		default:
			some, n.queue = some[:mostTogether:mostTogether], some[mostTogether:]
		}
		n.mu.Unlock()
		n.c.decide(&scheme{c: n.c, late: some, lane: n, runner: runner})
		clear(some)
	}
}

// gather lets other goroutines run that are about to add calls, above all callers that were just
// answered. It does not sleep. A batch of twice as many calls costs little more. It ends after a
// moment: if the processors are busy, others run for long each time, and calls come each time.
func (n *lane) gather() {
	began := time.Now()
	for had, still := 0, 0; still < 2; still++ {
		runtime.Gosched()
		n.mu.Lock()
		has := len(n.queue)
		n.mu.Unlock()
		if has >= mostTogether || time.Since(began) > time.Millisecond {
			return
		}
		if has != had {
			had, still = has, 0
		}
	}
}

// ofOneNode splits a queue into the calls that are decided together with the first one, and the
// others. A distributed engine has all rows of a key on one node, so the calls for this key are.
// On Citus those for all keys of a range of hashes are: see package ranges.
func (l *Limiter) ofOneNode(queue []*waiter) (some, others []*waiter) {
	next := queue[:min(len(queue), mostTogether)]
	key, ok := next[0].key()
	if !ok {
		return next[:1:1], queue[1:]
	}
	keys := map[string]bool{key: true}
	for _, w := range next {
		k, ok := w.key()
		if ok = ok && (keys[k] || len(keys) < mostKeys && l.ranges.together(k, key)); ok {
			keys[k] = true
			some = append(some, w)
		} else {
			others = append(others, w)
		}
	}
	return some, append(others, queue[len(next):]...)
}

// key returns the key that all limits of the call have, if they have the same.
func (w *waiter) key() (key string, ok bool) {
	key = w.calls[0].Key
	for i := range w.calls {
		if w.calls[i].Key != key {
			return "", false
		}
	}
	return key, true
}
