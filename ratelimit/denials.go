package ratelimit

import (
	"reflect"
	"sync"
	"time"
)

// denials remembers which rows were lately denied, to know when LOOK should go before TAKE. Unless Config.RememberDenials says
// more, it only ever chooses the order of the two: LOOK decides on what is in the database, so that a reset elsewhere is seen
// at once, by whoever has no older snapshot.
type denials struct {
	mu   sync.Mutex
	rows map[row]denial

	wrote, before map[row]writer // where answers are remembered: who wrote to a row last
}

// writer is a transaction that has written to a row, and may yet roll back. The next one to write comes after it has ended.
type writer uintptr

// writerOf is 0 for what is committed at once. It may be that of a transaction that has long ended: then something is not answered
// from memory that could be.
func writerOf(x executor) writer {
	if t := x.transaction(); t != nil {
		return writer(reflect.ValueOf(t).Pointer())
	}
	return 0
}

type row struct {
	name, key string
	shard     int32
}

type denial struct {
	until  time.Time // by this process's monotonic clock: a guess, as it is not the clock that decides
	demand float64   // what the balance would have had to be

	// The answer, when it came by either clock, and to what.
	decision Decision
	told     time.Time
	at       int64
	rule     algebra
	count    float64
	ahead    ahead
	unsure   bool // it is by what its own transaction has written
}

// trip is how much earlier than its RetryAt a denial is not answered from memory any more: longer than most answers took to
// come from the database.
const trip = 10 * time.Millisecond

// mostDenials bounds the memory: some megabytes with long keys.
const mostDenials = 10_000

// row names the balance of c, by which its callers queue: of a limit with shards the shards have one queue.
func (c *call) row() row {
	if c.layout > 1 {
		return row{c.name, c.key, 0}
	}
	return row{c.name, c.key, c.shard}
}

// demand is what the balance must have, at the least, for the call to be granted.
func (c *call) demand() float64 {
	least := c.least()
	if c.within > 0 {
		least = max(least, -c.comes(c.within)-c.credited())
	}
	return c.count + least
}

// expected reports whether one of the calls is likely to be denied.
func (d *denials) expected(calls []call) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.rows) == 0 {
		return false
	}
	for i := range calls {
		if e, ok := d.rows[calls[i].row()]; ok && calls[i].demand() >= e.demand && time.Now().Before(e.until) {
			return true
		}
	}
	return false
}

// note remembers a denial that somebody has met at the database's time at, or forgets one if the row grants again.
func (d *denials) note(by writer, c *call, decision *Decision, at int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if decision.OK {
		if e, ok := d.rows[c.row()]; ok && c.demand() >= e.demand { // a smaller one says nothing of a larger
			delete(d.rows, c.row())
		}
		return
	}
	if d.rows == nil {
		d.rows = make(map[row]denial)
	}
	if len(d.rows) >= mostDenials {
		d.drop()
	}
	until, demand := decision.RetryAt, c.demand()
	if paused := decision.State.PausedUntil; !paused.IsZero() && !c.pausable() { // until then whatever is asked for
		until, demand = paused, 0
	}
	wait := time.Duration(min(until.UnixMicro()-at, int64(24*time.Hour/time.Microsecond))) * time.Microsecond
	now := time.Now()
	d.rows[c.row()] = denial{now.Add(wait), demand, *decision, now, at, c.algebra, c.count, c.ahead, d.own(by, c)}
}

// own tells whether the row stands as a transaction has left it that may yet roll back.
func (d *denials) own(by writer, c *call) bool {
	if by == 0 {
		return false
	}
	last, ok := d.wrote[c.row()]
	if !ok {
		last = d.before[c.row()]
	}
	return last == by
}

// written notes to which rows a transaction has written.
func (d *denials) written(by writer, statements []*statement) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range statements {
		if s.c == nil || !s.found || s.looks || s.look != nil {
			continue
		}
		if d.wrote == nil || len(d.wrote) >= mostDenials/2 {
			d.wrote, d.before = make(map[row]writer), d.wrote
		}
		d.wrote[s.c.row()] = by
	}
}

// answer is what a call of one limit was told before, if it is the same and not yet over.
func (d *denials) answer(by writer, calls []call, requests int, clock func() time.Time) (Result, bool) {
	if len(calls) != 1 {
		return Result{}, false
	}
	c := &calls[0]
	d.mu.Lock()
	e, ok := d.rows[c.row()]
	ok = ok && !e.unsure && !d.own(by, c)
	d.mu.Unlock()
	if !ok || e.count != c.count || e.ahead != c.ahead || e.rule != c.algebra {
		return Result{}, false
	}
	at := e.at + time.Since(e.told).Microseconds()
	if clock != nil {
		at = clock().UnixMicro()
	}
	if at < e.at || at > e.decision.RetryAt.UnixMicro()-trip.Microseconds() {
		return Result{}, false
	}
	if b, err := c.stored(e.decision.State, fromMicro(at)); err == nil { // what has come since is not enough, but there
		e.decision.State = c.state(c.at(b, at))
	}
	res := summarize(calls, []Decision{e.decision}, []int64{at}, requests)
	res.recalled = true
	return res, true
}

// drop makes room: all that has expired and, if that is not half, others as they come.
func (d *denials) drop() {
	now := time.Now()
	for r, e := range d.rows {
		if !now.Before(e.until) {
			delete(d.rows, r)
		}
	}
	for r := range d.rows {
		if len(d.rows) <= mostDenials/2 {
			return
		}
		delete(d.rows, r)
	}
}

func (d *denials) forget(calls []call) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range calls {
		delete(d.rows, calls[i].row())
	}
}

// forgetKey forgets what is known of a key, of whatever limit.
func (d *denials) forgetKey(key string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for r := range d.rows {
		if r.key == key {
			delete(d.rows, r)
		}
	}
}

// wrote notes what a trip has written, of what may yet roll back.
func (l *Limiter) wrote(x executor, trip []*statement) {
	if by := writerOf(x); l.remember && by != 0 {
		l.denials.written(by, trip)
	}
}

// freed forgets denials, as what they were met by has changed: at once and, where InTx tells when that is, after COMMIT. Before it
// others still meet it.
func freed(x executor, forget func()) {
	forget()
	if a, ok := x.transaction().(*attempt); ok {
		a.freed = append(a.freed, forget)
	}
}
