package ratelimit

import (
	"math"
	"time"
)

// State is a balance: Value tokens at TS. A negative Value is owed by reservations. For a fixed window TS is the start of the
// window that the Value belongs to, so that a State means something only under rules of the same kind and the same windows.
// The zero State is a limit never used, which is full.
type State struct {
	Value float64
	TS    time.Time
}

// Decision is what a request meets in one balance.
type Decision struct {
	OK      bool      // granted, at once or ahead
	State   State     // the balance at now, after the take; a denial takes nothing, and leaves the stored one as it was
	RunAt   time.Time // granted ahead of time: when the debt is repaid. Else zero.
	RetryAt time.Time // denied: the first instant at which the same request would be granted. Else zero.
}

// Decide is the algebra alone: what the request would meet at now in the balance s, without a database. Clients use it to
// foretell, tests to compare. The limiter decides by the same arithmetic, in SQL.
//
// With steps = elapsed/period for a token bucket and the number of windows begun since s.TS for a fixed window, elapsed
// never below 0:
//
//	value' = min(value + rate*steps, capacity)
//
// and n tokens are granted if value'-n is not below 0 or, with OrReserve, not below -MaxReserved.
//
// Times count in whole microseconds, as in Postgres. A bad request is refused as by [Limiter.RateLimit].
func Decide(r Request, s State, now time.Time) (Decision, error) {
	c, err := r.resolve()
	if err != nil {
		return Decision{}, err
	}
	if y := now.UTC().Year(); y < 1 || y > 9999 {
		return Decision{}, &InvalidError{Limit: c.name, Field: "now", Value: now, Want: "a year from 1 to 9999"}
	}
	b := balance{}
	if s.TS.IsZero() && s.Value != 0 {
		return Decision{}, &InvalidError{Limit: c.name, Field: "State", Value: s, Want: "the TS that the Value belongs to, or the zero State"}
	}
	if !s.TS.IsZero() {
		if y := s.TS.UTC().Year(); y < 1 || y > 9999 || !(s.Value < math.Inf(1)) {
			return Decision{}, &InvalidError{Limit: c.name, Field: "State", Value: s, Want: "a Value below infinity, and a year from 1 to 9999"}
		}
		b = balance{exists: true, value: s.Value, ts: s.TS.UnixMicro()}
	}
	return c.decide(b, now.UnixMicro()), nil
}

// balance is a row as it was read: whether there is one, and its two numbers.
type balance struct {
	exists bool
	value  float64
	ts     int64
}

// at is the balance refilled up to now; ts does not move back.
func (c *call) at(b balance, now int64) balance {
	if !b.exists {
		return balance{true, c.capacity, now}
	}
	return balance{true, c.refilled(b.value, b.ts, now), max(b.ts, now)}
}

// decide is TAKE and LOOK in one. The times of a denial are computed from the row as it stands: refilled up to now first,
// they would round differently from the take that comes then.
func (c *call) decide(b balance, now int64) Decision {
	after := c.at(b, now)
	if after.value -= c.count; after.value >= c.least() {
		return Decision{OK: true, State: c.state(after), RunAt: c.runAt(after)}
	}
	return Decision{State: c.state(c.at(b, now)), RetryAt: fromMicro(c.earliest(b.value, b.ts, now, c.count, c.least()))}
}

// runAt is when the debt of b is repaid, or zero if it has none.
func (c *call) runAt(b balance) time.Time {
	if b.value >= 0 {
		return time.Time{}
	}
	return fromMicro(c.earliest(b.value, b.ts, b.ts, 0, 0))
}

func (c *call) state(b balance) State { return State{b.value, fromMicro(c.windowStart(b.ts))} }
