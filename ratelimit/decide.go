package ratelimit

import (
	"math"
	"time"

	"github.com/weir-go/weir/internal/limits/algebra"
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
	OK bool // granted, at once or ahead
	// the balance at now, after the take; a denial takes nothing, and leaves the stored one as it
	// was
	State State
	// granted ahead of time: when the debt is repaid, and a pause over. Else zero.
	RunAt time.Time
	// granted ahead of time: RunAt, moved on within its window. See [Outcome]. Else zero.
	PacedAt time.Time
	// denied: the first instant at which the same request would be granted. Else zero.
	RetryAt time.Time
}

// Decide is the arithmetic alone, without a database: the outcome of a request at now for the
// balance s. Use it to predict, or to compare in tests. The limiter decides with the same
// arithmetic, in SQL.
//
// For a token bucket steps is elapsed/period, with elapsed the time since s.TS, never below 0. For
// a fixed window steps is the number of windows that have begun since s.TS. Then
//
//	value' = min(value + rate*steps, capacity)
//
// and n tokens are granted if value'-n is not below 0. With OrReserve it may be as low as
// -MaxReserved. With Within it must also be 0 or more again within that time. With OnCredit, value'
// alone is compared instead of value'-n. The time of a pause does not count as elapsed, and during
// it nothing is granted without OrReserve.
//
// Times count in whole microseconds, as in Postgres. A bad request is refused as by
// [Limiter.RateLimit].
func Decide(r Request, s State, now time.Time) (Decision, error) {
	c, err := r.resolve()
	if err != nil {
		return Decision{}, err
	}
	b, err := c.stored(s, now)
	if err != nil {
		return Decision{}, err
	}
	v := c.Decide(b, now.UnixMicro())
	d := Decision{OK: v.OK, State: c.state(v.After)}
	d.RunAt, d.PacedAt, d.RetryAt = times(&v)
	return d, nil
}

// stored checks a State, and returns it as the row to decide on at now.
func (c *call) stored(s State, now time.Time) (algebra.Balance, error) {
	if y := now.UTC().Year(); y < 1 || y > 9999 {
		return algebra.Balance{}, &InvalidError{Limit: c.Name, Field: "now", Value: now,
			Want: "a year from 1 to 9999"}
	}
	b := algebra.Balance{}
	if s.TS.IsZero() && (s.Value != 0 || !s.PausedUntil.IsZero()) {
		return b, &InvalidError{Limit: c.Name, Field: "State", Value: s,
			Want: "the TS that the Value belongs to, or the zero State"}
	}
	if !s.TS.IsZero() {
		if y := s.TS.UTC().Year(); y < 1 || y > 9999 || !(s.Value < math.Inf(1)) {
			return b, &InvalidError{Limit: c.Name, Field: "State", Value: s,
				Want: "a Value below infinity, and a year from 1 to 9999"}
		}
		b = algebra.Balance{Exists: true, Value: s.Value, TS: s.TS.UnixMicro(),
			PausedUntil: algebra.Open, Delay: s.Delay.Microseconds(), Moved: s.Moved}
	}
	if !s.PausedUntil.IsZero() {
		if y := s.PausedUntil.UTC().Year(); y < 1 || y > 9999 {
			return b, &InvalidError{Limit: c.Name, Field: "State", Value: s,
				Want: "a PausedUntil with a year from 1 to 9999"}
		}
		b.PausedUntil = min(s.PausedUntil.UnixMicro(), algebra.EndOfTime)
	}
	return b, nil
}

func (c *call) state(b algebra.Balance) State {
	s := State{Value: b.Value, TS: fromMicro(c.WindowStart(b.TS)),
		Delay: time.Duration(b.Delay) * time.Microsecond, Moved: b.Moved}
	if b.PausedUntil != algebra.Open {
		s.PausedUntil = fromMicro(b.PausedUntil)
	}
	return s
}
