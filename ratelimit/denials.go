package ratelimit

import (
	"sync"
	"time"

	"github.com/weir-go/weir/internal/algebra"
	"github.com/weir-go/weir/internal/where"
)

// denials remembers which rows denied calls lately, to know when LOOK should go before TAKE.
// Without Config.RememberDenials it affects only that order: LOOK still decides on the database's
// rows, so a reset by another process is noticed at once.
type denials struct {
	mu   sync.Mutex
	rows map[where.Row]denial

	// changes counts changes by this process that make tokens available sooner: resets, settlements
	// and so on.
	changes uint64
}

type denial struct {
	until  time.Time // by this process's monotonic clock, so only an estimate
	demand float64   // the balance that would have been enough

	// The decision, when it was made by this process's clock (told) and by the database's (at), and
	// the call that got it.
	decision Decision
	told     time.Time
	at       int64
	rule     algebra.Rule
	count    float64
	ahead    algebra.Ahead
	answers  bool // the same call may be answered with the decision
}

// trip is how long before its RetryAt a denial is no longer answered from memory. It is longer than
// the database usually takes to answer.
const trip = 10 * time.Millisecond

// mostDenials bounds the memory, to some megabytes with long keys.
const mostDenials = 10_000

// expected reports whether one of the calls is likely to be denied.
func (d *denials) expected(calls []call) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.rows) == 0 {
		return false
	}
	for i := range calls {
		if e, ok := d.rows[calls[i].Row]; ok && calls[i].Demand() >= e.demand &&
			time.Now().Before(e.until) {
			return true
		}
	}
	return false
}

// watch allows note to remember denials of these calls as answers. It is for calls that are a
// transaction of their own, or the first in one. Others may read an old snapshot, or what their own
// transaction has written and may roll back.
func (d *denials) watch(calls []call) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range calls {
		calls[i].watched = d.changes + 1
	}
}

// note remembers a denial that was made at the database's time at, or forgets the row's denial if
// it grants again. If this process has made tokens available since watch, the denial may have been
// read before that: then note does not keep it as an answer.
func (d *denials) note(c *call, decision *Decision, at int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if decision.OK {
		// a grant of less says nothing about more
		if e, ok := d.rows[c.Row]; ok && c.Demand() >= e.demand {
			delete(d.rows, c.Row)
		}
		return
	}
	if d.rows == nil {
		d.rows = make(map[where.Row]denial)
	}
	if len(d.rows) >= mostDenials {
		d.drop()
	}
	until, demand := decision.RetryAt, c.Demand()
	// until then every count is denied
	if paused := decision.State.PausedUntil; !paused.IsZero() && !c.Pausable() {
		until, demand = paused, 0
	}
	wait := time.Duration(min(until.UnixMicro()-at,
		int64(24*time.Hour/time.Microsecond))) * time.Microsecond
	now := time.Now()
	d.rows[c.Row] = denial{now.Add(wait), demand, *decision, now, at, c.Rule, c.Count, c.Ahead,
		c.watched == d.changes+1}
}

// answer returns the remembered denial for a call of one limit, if it is the same call and its
// RetryAt is not near yet.
func (d *denials) answer(calls []call, requests int, clock func() time.Time) (Result, bool) {
	if len(calls) != 1 {
		return Result{}, false
	}
	c := &calls[0]
	d.mu.Lock()
	e, ok := d.rows[c.Row]
	d.mu.Unlock()
	if !ok || !e.answers || e.count != c.Count || e.ahead != c.Ahead || e.rule != c.Rule {
		return Result{}, false
	}
	at := e.at + time.Since(e.told).Microseconds()
	if clock != nil {
		at = clock().UnixMicro()
	}
	if at < e.at || at > e.decision.RetryAt.UnixMicro()-trip.Microseconds() {
		return Result{}, false
	}
	// tokens have come, but too few
	if b, err := c.stored(e.decision.State, fromMicro(at)); err == nil {
		e.decision.State = c.state(c.At(b, at))
	}
	res := summarize(calls, []Decision{e.decision}, []int64{at}, requests)
	res.recalled = true
	return res, true
}

// drop makes room: it forgets all expired denials, and then any others until half are left.
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
		delete(d.rows, where.Of(calls[i].Name, calls[i].Key, alone))
	}
}

// forgetKey forgets the denials of a key, of all limits.
func (d *denials) forgetKey(key string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.changes++
	for r := range d.rows {
		if r.Key == key {
			delete(d.rows, r)
		}
	}
}

// freed forgets denials because tokens became available: at once, and in a transaction of InTx once
// more after COMMIT, as until then other calls are still denied.
func freed(x executor, forget func()) {
	forget()
	if a, ok := x.transaction().(*attempt); ok {
		a.freed = append(a.freed, forget)
	}
}
