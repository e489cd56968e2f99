package ratelimit

import (
	"fmt"
	"math"
	"time"

	"github.com/weir-go/weir/internal/limits/algebra"
)

// A Rule is the numbers of a limit: a [TokenBucket] or a [FixedWindow].
type Rule interface {
	// compile checks the rule. Its error has no limit's name yet: compileRule adds that.
	compile() (algebra.Rule, *InvalidError)
	bounded() bool // it has a MaxReserved
}

// TokenBucket is a rule under which tokens flow in evenly: Rate tokens per Period, up to Capacity.
// After a quiet time a caller may take the whole Capacity at once. So in any interval of length t
// at most Capacity + Rate*t/Period tokens are granted: up to twice the Rate in one Period if
// Capacity is unset. Use a [FixedWindow] if a calendar interval must never see more than its Rate.
//
// Rate and Period have no default.
type TokenBucket struct {
	Rate   float64       // tokens that flow in during one Period; above 0
	Period time.Duration // whole microseconds; at least one

	// Capacity is the most that the bucket holds: the largest burst. Use [Tokens] to set it. 0 is
	// allowed: such a bucket only grants reservations. Default: Rate.
	Capacity *float64

	// MaxReserved bounds the debt that [Request.OrReserve] may run up, in tokens. Use [Tokens] to
	// set it; 0 allows none. Set it for limits that calls reserve from, as their backlog has no
	// other bound. Leave it unset for those that only limit the workers of package scheduler, whose
	// jobs are in the queue already. Default: unbounded (a thousand years of tokens). In any case a
	// request owes no more than 2^40 times its count: beyond that it would be lost in rounding.
	MaxReserved *float64
}

// FixedWindow is a rule under which Rate tokens come at once at the start of every window of length
// Period. Capacity is how much unused quota can roll over: with the default nothing does, and no
// window sees more than Rate. Around the border of two windows, twice the Rate may be granted
// within a moment.
//
// Rate and Period have no default.
type FixedWindow struct {
	Rate   float64       // tokens that come with each window; above 0
	Period time.Duration // length of a window: whole microseconds; at least one

	// Capacity is the most that can roll over and be granted in one window. Use [Tokens] to set it;
	// 0 is allowed. Default: Rate.
	Capacity *float64

	// MaxReserved bounds the debt of reservations, as that of a [TokenBucket] does.
	MaxReserved *float64

	// Start is the first instant of some window, past or future; windows extend from it in both
	// directions, each exactly one Period long. A Period of 24 hours therefore starts at the same
	// time of day in UTC, and drifts by an hour against a local clock that observes daylight
	// saving. Default: a phase derived from the limit's name and the key, so that keys do not all
	// start a window together; it never changes, not even by a reset.
	Start time.Time
}

// Tokens returns a pointer to n tokens, for fields in which 0 differs from unset. n may be any
// integer or a fraction.
func Tokens[N ~int | ~int32 | ~int64 | ~float64](n N) *float64 {
	tokens := float64(n)
	return &tokens
}

const (
	// above it, float64 cannot represent every integer
	maxTokens = algebra.Full
	maxDebt   = int64(1000*365.2425*24) * 3_600e6 // a thousand years, in microseconds
	maxFill   = 5 * maxDebt
)

func (r TokenBucket) compile() (algebra.Rule, *InvalidError) {
	return compile(algebra.Rule{}, r.Rate, r.Period, r.Capacity, r.MaxReserved)
}

func (r FixedWindow) compile() (algebra.Rule, *InvalidError) {
	a, err := compile(algebra.Rule{Windowed: true}, r.Rate, r.Period, r.Capacity, r.MaxReserved)
	if err != nil {
		return a, err
	}
	if a.Phased = r.Start.IsZero(); a.Phased {
		return a, nil
	}
	if y := r.Start.UTC().Year(); y < 1 || y > 9999 {
		return a, &InvalidError{Field: "Start", Value: r.Start, Want: "a year from 1 to 9999"}
	}
	a.SetOrigin(r.Start.UnixMicro())
	return a, nil
}

func compile(
	a algebra.Rule, rate float64, period time.Duration, capacity, maxReserved *float64,
) (algebra.Rule, *InvalidError) {
	switch {
	case !(rate > 0) || rate > maxTokens: // NaN is neither above nor below
		return a, &InvalidError{Field: "Rate", Value: rate,
			Want: "a number of tokens above 0 and at most 2^53"}
	case period < time.Microsecond || period%time.Microsecond != 0:
		return a, &InvalidError{Field: "Period", Value: period,
			Want: "a duration of whole microseconds, at least one"}
	}
	a.Rate, a.Period, a.Capacity = rate, period.Microseconds(), rate

	if capacity != nil {
		a.Capacity = *capacity
	}
	if !(a.Capacity >= 0) || a.Capacity > maxTokens {
		return a, &InvalidError{Field: "Capacity", Value: a.Capacity,
			Want: "a number of tokens from 0 to 2^53, or unset for the Rate"}
	}
	if a.ToFill(a.Capacity) > float64(maxFill) {
		return a, &InvalidError{Field: "Capacity", Value: a.Capacity,
			Want: fmt.Sprintf("one that fills within five thousand years; at %v tokens in %v this takes longer",
				rate, period)}
	}

	a.Debt = min(maxTokens, a.Rate*math.Floor(float64(maxDebt)/float64(a.Period)))
	if maxReserved != nil {
		a.Debt = *maxReserved
	}
	if !(a.Debt >= 0) || a.Debt > maxTokens {
		return a, &InvalidError{Field: "MaxReserved", Value: a.Debt,
			Want: "a number of tokens from 0 to 2^53, or unset for no bound"}
	}
	if maxReserved != nil && a.ToFill(a.Debt) > float64(maxDebt) {
		return a, &InvalidError{Field: "MaxReserved", Value: a.Debt,
			Want: fmt.Sprintf("a debt that is repaid within a thousand years; at %v tokens in %v this takes longer",
				rate, period)}
	}
	return a, nil
}

func (r TokenBucket) bounded() bool { return r.MaxReserved != nil }
func (r FixedWindow) bounded() bool { return r.MaxReserved != nil }
