package ratelimit

import (
	"sync"
	"time"
)

// denials remembers which rows were lately denied, to know when LOOK should go before TAKE. Unless Config.RememberDenials says
// more, it only ever chooses the order of the two: LOOK decides on what is in the database, so that a reset elsewhere is seen
// at once, by whoever has no older snapshot.
type denials struct {
	mu   sync.Mutex
	rows map[row]denial

	// changes counts what makes tokens come sooner: resets, settlements and the like of this process.
	changes uint64
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
	answers  bool // the same call may be answered with it
}

// trip is how much earlier than its RetryAt a denial is not answered from memory any more: longer than most answers took to
// come from the database.
const trip = 10 * time.Millisecond

// mostDenials bounds the memory: some megabytes with long keys.
const mostDenials = 10_000

// row names the balance of c, by which its callers queue.
func (c *call) row() row { return row{c.name, c.key, c.shard} }

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

// watch allows note to remember how these calls are denied. It is for calls that are the first in a
// transaction, or a transaction of their own: others may read an old snapshot, or what their own
// transaction has written and may roll back.
func (d *denials) watch(calls []call) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range calls {
		calls[i].watched = d.changes + 1
	}
}

// note remembers a denial that somebody has met at the database's time at, or forgets one if the row grants again. If tokens
// have come meanwhile by a change of this process it may have been read before that: then it answers nobody.
func (d *denials) note(c *call, decision *Decision, at int64) {
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
	d.rows[c.row()] = denial{now.Add(wait), demand, *decision, now, at, c.algebra, c.count, c.ahead, c.watched == d.changes+1}
}

// answer is what a call of one limit was told before, if it is the same and not yet over.
func (d *denials) answer(calls []call, requests int, clock func() time.Time) (Result, bool) {
	if len(calls) != 1 {
		return Result{}, false
	}
	c := &calls[0]
	d.mu.Lock()
	e, ok := d.rows[c.row()]
	d.mu.Unlock()
	if !ok || !e.answers || e.count != c.count || e.ahead != c.ahead || e.rule != c.algebra {
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
	d.changes++
	for i := range calls {
		delete(d.rows, row{calls[i].name, calls[i].key, alone})
	}
}

// forgetKey forgets what is known of a key, of whatever limit.
func (d *denials) forgetKey(key string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.changes++
	for r := range d.rows {
		if r.key == key {
			delete(d.rows, r)
		}
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
