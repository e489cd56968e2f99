package ratelimit

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/internal/limits/where"
)

// held keeps calls whose rows other transactions hold. The calls wait here without a connection.
// After a pause that grows with each try they go back to their lanes, whose statements skip a row
// that is still held.
//
// A row may be held all the time, by one transaction after the other. So one connection at a time
// waits for a row in Postgres' own queue. It waits for a row whose first call has had the fewest
// such waits, for a time that doubles with each.
//
// A row that another transaction is inserting is not visible, so it cannot be skipped. If an
// insertion has to wait, all rows that it would insert are suspects. Another goroutine inserts
// suspects, in groups that halve with each failure.
type held struct {
	c     *Coalesced
	n     atomic.Int32 // rows
	mu    sync.Mutex
	rows  map[where.Place]*heldRow
	runs  [2]bool // the goroutine that waits for rows is running, and the one for suspects
	timer *time.Timer
	next  time.Time // when it fires
}

type heldRow struct {
	at    where.Place
	queue []*waiter // in the order of their arrival
	due   time.Time // of the next try
	pause time.Duration
	most  int  // for a suspect: how many rows may be inserted together with it; 0: the row exists
	busy  bool // a goroutine waits for it
}

const (
	mostPause = 200 * time.Millisecond // between two tries
	// how long a call waits here before a connection waits for its row
	inLine      = 100 * time.Millisecond
	mostDoubled = 5 // how often inLine is doubled

	suspects = 1 // the index in held.runs of the goroutine that inserts them

	// inserting is how long an insertion waits for another transaction that inserts the same row.
	inserting = 10 * time.Millisecond
)

// patience returns how long a connection waits for the call's row.
func (w *waiter) patience() time.Duration { return inLine << min(w.waits, mostDoubled) }

// join adds a call to those that wait for one of its rows, if there are any. A call that is
// expected to be denied does not wait for a row.
func (h *held) join(w *waiter) bool {
	if h.n.Load() == 0 {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.c.ended.Load() { // nobody looks at the rows any more
		return false
	}
	for i := range w.calls {
		r := h.rows[w.calls[i].Place]
		if r == nil || r.most == 0 && h.c.l.expected(w.calls) {
			continue
		}
		if w.since.IsZero() {
			w.since = time.Now()
		}
		r.add(w)
		return true
	}
	return false
}

func (r *heldRow) add(w *waiter) {
	i, _ := slices.BinarySearchFunc(r.queue, w, func(a, b *waiter) int {
		return cmp.Compare(a.order, b.order)
	})
	r.queue = slices.Insert(r.queue, i, w)
}

// hold makes a call wait that could not be decided.
func (h *held) hold(w *waiter, at where.Place, most int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.c.ended.Load() {
		w.err = errClosedCoalesced
		h.c.answer(w)
		return
	}
	if !w.state.CompareAndSwap(taken, queued) {
		h.c.decided() // its caller has left
		return
	}
	now := time.Now()
	if w.since.IsZero() {
		w.since = now
	}
	r := h.rows[at]
	if r == nil {
		if h.rows == nil {
			h.rows = make(map[where.Place]*heldRow)
		}
		r = &heldRow{at: at}
		h.rows[at] = r
		h.count()
	}
	r.add(w)
	r.most = most
	r.pause = min(mostPause, time.Millisecond<<min(2*w.tries, 10))
	r.due = now.Add(r.pause)
	w.tries++
	h.arm(now, r.due)
}

// arm makes the timer call tick at due, or earlier.
func (h *held) arm(now, due time.Time) {
	switch {
	case h.timer == nil:
		h.timer = time.AfterFunc(due.Sub(now), h.tick)
	case h.next.After(now) && h.next.Before(due):
		return
	default:
		h.timer.Reset(due.Sub(now))
	}
	h.next = due
}

// count updates n, the number of rows.
func (h *held) count() { h.n.Store(int32(len(h.rows))) } //nolint:gosec // far fewer

// tick sends calls that are due back to their lanes, and starts the goroutines that wait for rows.
func (h *held) tick() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.rows) == 0 {
		return
	}
	now := time.Now()
	if h.c.ended.Load() {
		h.giveUp()
		return
	}
	for k := range h.runs {
		if h.runs[k] {
			continue
		}
		if rows := h.pick(k, now); rows != nil {
			h.runs[k] = true
			h.c.running.Go(func() { h.wait(k, rows) })
		}
	}
	next := now.Add(inLine)
	for at, r := range h.rows {
		switch {
		case r.busy || r.most > 0 && !r.due.After(now):
		case r.most > 0 || r.due.After(now.Add(r.pause/2)): // so that many are retried together
			if r.due.Before(next) {
				next = r.due
			}
		default:
			delete(h.rows, at)
			for _, w := range r.queue {
				h.c.lane(w).add(w)
			}
		}
	}
	h.next = time.Time{}
	if len(h.rows) > 0 {
		h.arm(now, next)
	}
	h.count()
}

// giveUp answers all calls with ErrClosed, because Close no longer waits.
func (h *held) giveUp() {
	for at, r := range h.rows {
		for _, w := range r.queue {
			if !w.state.CompareAndSwap(queued, taken) {
				h.c.decided()
				continue
			}
			w.err = errClosedCoalesced
			h.c.answer(w)
		}
		r.queue = nil
		if !r.busy {
			delete(h.rows, at)
		}
	}
	h.count()
}

// pick returns the row to wait for next, or suspects to insert; nil if there are none.
func (h *held) pick(kind int, now time.Time) (rows []*heldRow) {
	var best *heldRow
	better := func(r *heldRow) bool {
		switch {
		case best == nil:
			return true
		case kind == suspects:
			return r.due.Before(best.due)
		}
		a, b := r.queue[0], best.queue[0]
		return cmp.Or(cmp.Compare(a.waits, b.waits), cmp.Compare(a.order, b.order)) < 0
	}
	due := func(r *heldRow) bool {
		if r.most > 0 {
			return kind == suspects && !r.due.After(now)
		}
		return kind != suspects && now.Sub(r.queue[0].since) >= r.queue[0].patience()
	}
	for _, r := range h.rows {
		if !r.busy && due(r) && better(r) {
			best = r
		}
	}
	if best == nil {
		return nil
	}
	rows = append(rows, best)
	most := best.most
	for _, r := range h.rows {
		if r != best && !r.busy && r.most > 0 && len(rows) < min(most, r.most) &&
			(!h.c.l.cfg.Portable || h.c.l.ranges.together(r.at.Key, best.at.Key)) {
			rows, most = append(rows, r), min(most, r.most)
		}
	}
	for _, r := range rows {
		r.busy = true
	}
	return rows
}

// wait decides the calls of rows, and then of the rows that pick returns, until there are none. If
// the pool has fewer than four connections it sleeps in between, so that each kind uses at most a
// quarter of the pool's time.
func (h *held) wait(kind int, rows []*heldRow) {
	for rows != nil {
		began := time.Now()
		var some []*waiter
		var at *where.Place
		h.mu.Lock()
		if kind != suspects {
			at = &rows[0].at
		}
		for _, r := range rows {
			some = append(some, r.queue...)
			r.queue = nil
		}
		h.mu.Unlock()
		h.c.decide(&scheme{c: h.c, late: some, wait: at})
		if n := time.Duration(h.c.connections()); n < 4 {
			h.rest(time.Since(began) * (4 - n) / n)
		}
		h.mu.Lock()
		for _, r := range rows {
			r.busy = false
			if len(r.queue) == 0 {
				delete(h.rows, r.at)
			}
		}
		h.count()
		rows = h.pick(kind, time.Now())
		h.runs[kind] = rows != nil
		h.mu.Unlock()
	}
}

// rest sleeps for d, or until Close no longer waits for held rows.
func (h *held) rest(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end) && !h.c.ended.Load(); {
		time.Sleep(min(inLine, time.Until(end)))
	}
}
