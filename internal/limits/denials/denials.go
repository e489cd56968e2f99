// Package denials remembers which rows denied calls lately: to read a row before anything is taken
// from it, and to answer the same call from memory. It knows neither limits nor statements: the
// caller tells it of each decision. It holds a bounded number of rows, and is safe for concurrent
// use.
package denials

import (
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/weir-go/weir/internal/limits/algebra"
	"github.com/weir-go/weir/internal/limits/where"
)

// Denials remembers denials. The zero Denials is ready for use.
type Denials struct {
	mu   sync.Mutex
	rows map[where.Row]*denial

	// changes counts changes by this process that make tokens available sooner: resets, settlements
	// and so on.
	changes uint64
}

type denial struct {
	until  time.Time // by this process's monotonic clock, so only an estimate
	demand float64   // the balance that would have been enough

	verdict algebra.Verdict
	told    time.Time   // when it was decided, by this process's clock
	ask     algebra.Ask // the call that got it
	answers bool        // the same call may be answered with the verdict
}

// trip is how long before its RetryAt a denial is no longer answered from memory. It is longer than
// the database usually takes to answer.
const trip = 10 * time.Millisecond

// lately is how long a row counts as short of tokens after a denial is over. It is longer than
// callers of a busy row usually stay away.
const lately = time.Second

// mostDenials bounds the memory, to some megabytes with long keys.
const mostDenials = 10_000

// Expected reports whether a call is likely to be denied.
func (d *Denials) Expected(row *where.Row, a *algebra.Ask) bool { return d.denies(row, a, 0) }

// Lately reports whether a call is likely to be denied, or was until a moment ago: of a row whose
// tokens are taken as soon as they flow in, it nearly always says so. Grants do not prolong it.
func (d *Denials) Lately(row *where.Row, a *algebra.Ask) bool { return d.denies(row, a, lately) }

// denies reports whether a call is likely to be denied, or was until no longer than ago.
func (d *Denials) denies(row *where.Row, a *algebra.Ask, ago time.Duration) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.rows) == 0 {
		return false
	}
	e, ok := d.rows[*row]
	return ok && a.Demand() >= e.demand && time.Now().Before(e.until.Add(ago))
}

// Watch allows Note to remember denials of a call as answers: give it what Watch returns. It is for
// calls that are a transaction of their own, or the first in one. Others may read an old snapshot,
// or what their own transaction has written and may roll back.
func (d *Denials) Watch() (watched uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.changes + 1
}

// Note remembers a denial, or that the row's denial is over because it grants again. If this
// process has made tokens available since Watch, the denial may have been read before that: then
// Note does not keep it as an answer.
func (d *Denials) Note(row *where.Row, a *algebra.Ask, v *algebra.Verdict, watched uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if v.OK {
		// a grant of less says nothing about more
		if e, ok := d.rows[*row]; ok && a.Demand() >= e.demand {
			e.answers = false
			if now := time.Now(); now.Before(e.until) {
				e.until = now
			}
		}
		return
	}
	if d.rows == nil {
		d.rows = make(map[where.Row]*denial)
	}
	if len(d.rows) >= mostDenials {
		d.drop()
	}
	until, demand := v.RetryAt, a.Demand()
	// until then every count is denied
	if paused := v.After.PausedUntil; paused != algebra.Open && !a.Pausable() {
		until, demand = paused, 0
	}
	wait := time.Duration(min(until-v.At, int64(24*time.Hour/time.Microsecond))) * time.Microsecond
	now, ask := time.Now(), *a
	ask.Most = 0 // the next call may not know it yet
	e := d.rows[*row]
	if e == nil {
		e = new(denial)
		r := *row
		r.Key = strings.Clone(r.Key) // which may be a small part of something large
		d.rows[r] = e
	}
	*e = denial{now.Add(wait), demand, *v, now, ask, watched == d.changes+1}
}

// Answer returns the remembered denial for a call, if it is the same call and its RetryAt is not
// near yet.
func (d *Denials) Answer(
	row *where.Row, a *algebra.Ask, clock func() time.Time,
) (algebra.Verdict, bool) {
	var e denial
	d.mu.Lock()
	if known := d.rows[*row]; known != nil {
		e = *known
	}
	d.mu.Unlock()
	v := e.verdict
	if !e.answers || e.ask != *a {
		return v, false
	}
	at := v.At + time.Since(e.told).Microseconds()
	if clock != nil {
		at = clock().UnixMicro()
	}
	if at < v.At || at > v.RetryAt-trip.Microseconds() {
		return v, false
	}
	v.At, v.After = at, a.At(v.After, at) // tokens have come, but too few
	return v, true
}

// drop makes room: it forgets all expired denials, and then any others until half are left.
func (d *Denials) drop() {
	now := time.Now()
	maps.DeleteFunc(d.rows, func(_ where.Row, e *denial) bool { return !now.Before(e.until) })
	for r := range d.rows {
		if len(d.rows) <= mostDenials/2 {
			return
		}
		delete(d.rows, r)
	}
}

// Forget forgets the denials of a row, because it has or may have tokens now.
func (d *Denials) Forget(row where.Row) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.changes++
	delete(d.rows, row)
}

// ForgetKey forgets the denials of a key, of all limits.
func (d *Denials) ForgetKey(key string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.changes++
	maps.DeleteFunc(d.rows, func(r where.Row, _ *denial) bool { return r.Key == key })
}
