package ratelimit

import (
	"math"
	"time"
)

// State is a balance: Value tokens at TS. A negative Value is owed by reservations. For a fixed
// window TS is the start of the window that the Value belongs to, so a State is only valid with
// rules of the same kind and the same windows. The zero State is a limit that was never used, which
// is full.
type State struct {
	Value float64
	TS    time.Time

	// PausedUntil is when the pause ends: nothing flows in before. Zero: it is not paused.
	PausedUntil time.Time

	// Delay is the total time by which pauses have delayed waiting work. Only differences matter:
	// work that was reserved when Delay was smaller runs that much later than its RunAt.
	Delay time.Duration

	// Moved is by how many tokens waiting work has moved up in total: what settlements have given
	// back, minus what they have charged in addition. Only differences matter. See [Take.RunAt].
	Moved float64
}

// Decision is the outcome of a request for one balance.
type Decision struct {
	OK      bool      // granted, at once or ahead
	State   State     // the balance at now, after the take; a denial takes nothing, and leaves the stored one as it was
	RunAt   time.Time // granted ahead of time: when the debt is repaid, and a pause over. Else zero.
	PacedAt time.Time // granted ahead of time: RunAt, moved on within its window. See [Outcome]. Else zero.
	RetryAt time.Time // denied: the first instant at which the same request would be granted. Else zero.
}

// Decide is the arithmetic alone, without a database: the outcome of a request at now for the
// balance s. Use it to predict, or to compare in tests. The limiter decides with the same
// arithmetic, in SQL.
//
// For a token bucket steps is elapsed/period, with elapsed the time since s.TS, never below 0. For a
// fixed window steps is the number of windows that have begun since s.TS. Then
//
//	value' = min(value + rate*steps, capacity)
//
// and n tokens are granted if value'-n is not below 0. With OrReserve it may be as low as
// -MaxReserved. With Within it must also be 0 or more again within that time. With OnCredit, value'
// alone is compared instead of value'-n. The time of a pause does not count as elapsed, and during
// it nothing is granted without OrReserve.
//
// Times count in whole microseconds, as in Postgres. A bad request is refused as by [Limiter.RateLimit].
func Decide(r Request, s State, now time.Time) (Decision, error) {
	c, err := r.resolve()
	if err != nil {
		return Decision{}, err
	}
	b, err := c.stored(s, now)
	if err != nil {
		return Decision{}, err
	}
	return c.decide(b, now.UnixMicro()), nil
}

// stored checks a State, and returns it as the row to decide on at now.
func (c *call) stored(s State, now time.Time) (balance, error) {
	if y := now.UTC().Year(); y < 1 || y > 9999 {
		return balance{}, &InvalidError{Limit: c.name, Field: "now", Value: now, Want: "a year from 1 to 9999"}
	}
	b := balance{}
	if s.TS.IsZero() && (s.Value != 0 || !s.PausedUntil.IsZero()) {
		return b, &InvalidError{Limit: c.name, Field: "State", Value: s, Want: "the TS that the Value belongs to, or the zero State"}
	}
	if !s.TS.IsZero() {
		if y := s.TS.UTC().Year(); y < 1 || y > 9999 || !(s.Value < math.Inf(1)) {
			return b, &InvalidError{Limit: c.name, Field: "State", Value: s, Want: "a Value below infinity, and a year from 1 to 9999"}
		}
		b = balance{true, s.Value, s.TS.UnixMicro(), open, s.Delay.Microseconds(), s.Moved}
	}
	if !s.PausedUntil.IsZero() {
		if y := s.PausedUntil.UTC().Year(); y < 1 || y > 9999 {
			return b, &InvalidError{Limit: c.name, Field: "State", Value: s, Want: "a PausedUntil with a year from 1 to 9999"}
		}
		b.pausedUntil = min(s.PausedUntil.UnixMicro(), endOfTime)
	}
	return b, nil
}

// balance is a row as it was read.
type balance struct {
	exists      bool
	value       float64
	ts          int64
	pausedUntil int64 // or open
	delay       int64
	moved       float64
}

// open is the pausedUntil of a balance that is not paused.
const open = math.MinInt64

// since is the instant from which tokens flow in again: ts, or the end of the pause.
func (b balance) since() int64 { return max(b.ts, b.pausedUntil) }

// at returns the balance refilled up to now. Its ts never moves back, and a pause that is over is
// removed.
func (a *algebra) at(b balance, now int64) balance {
	if !b.exists {
		return balance{true, a.capacity, now, open, 0, 0}
	}
	b.value, b.ts = a.refilled(b.value, b.since(), now), max(b.ts, now)
	if b.pausedUntil <= now {
		b.pausedUntil = open
	}
	return b
}

// decide decides as TAKE and LOOK do together. It computes the RetryAt from the row as it is
// stored, as the take at that time will do. From a balance refilled up to now it would round
// differently.
func (c *call) decide(b balance, now int64) Decision {
	after, ok := c.grants(c.at(b, now))
	if ok {
		return c.granted(after)
	}
	if c.within > 0 {
		guess := float64(max(now, b.since())) + (c.demand()-b.value)*float64(c.period)/c.rate
		at := search(now, endOfTime, guess, func(t int64) bool { _, ok := c.grants(c.at(b, t)); return ok })
		return Decision{State: c.state(c.at(b, now)), RetryAt: fromMicro(at)}
	}
	from := now
	if !c.pausable() {
		from = max(now, b.pausedUntil)
	}
	return Decision{State: c.state(c.at(b, now)), RetryAt: fromMicro(c.earliest(b.value, b.since(), from, c.count, c.least()))}
}

// grants reports whether a balance that was refilled up to now grants the call, and returns the
// balance after it.
func (c *call) grants(b balance) (after balance, ok bool) {
	after = b
	after.value -= c.count
	switch {
	case !(after.value >= c.least()):
		return after, false
	case !c.pausable():
		return after, after.pausedUntil == open
	}
	return after, !c.bounded || c.repaid(c.line(after), c.within)
}

// granted returns the Decision for a take that has left b.
func (c *call) granted(b balance) Decision {
	d := Decision{OK: true, State: c.state(b)}
	line := c.line(b).value
	switch since := b.since(); {
	case line < 0:
		run := c.earliest(line, since, since, 0, 0)
		d.RunAt, d.PacedAt = fromMicro(run), fromMicro(c.paced(-line, c.count-c.credited(), since, run))
	case b.pausedUntil != open:
		d.RunAt = fromMicro(b.pausedUntil)
		d.PacedAt = d.RunAt
	}
	return d
}

func (c *call) state(b balance) State {
	s := State{Value: b.value, TS: fromMicro(c.windowStart(b.ts)), Delay: time.Duration(b.delay) * time.Microsecond, Moved: b.moved}
	if b.pausedUntil != open {
		s.PausedUntil = fromMicro(b.pausedUntil)
	}
	return s
}
