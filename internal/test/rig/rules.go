package rig

import (
	"time"

	"pgregory.net/rapid"

	"github.com/weir-go/weir/ratelimit"
)

// Never is so long a period that no token flows in during a test.
const Never = 10_000 * time.Hour

// Numbers are those of a rule.
type Numbers struct {
	Rate, Capacity float64
	Period         time.Duration
	Windowed       bool
}

// NumbersOf returns the numbers of a rule.
func NumbersOf(rule ratelimit.Rule) Numbers {
	var n Numbers
	var capacity *float64
	switch r := rule.(type) {
	case ratelimit.TokenBucket:
		n, capacity = Numbers{r.Rate, r.Rate, r.Period, false}, r.Capacity
	case ratelimit.FixedWindow:
		n, capacity = Numbers{r.Rate, r.Rate, r.Period, true}, r.Capacity
	}
	if capacity != nil {
		n.Capacity = *capacity
	}
	return n
}

// WindowEnd is the end of the window that at falls into, or zero for a bucket.
func WindowEnd(n Numbers, r ratelimit.Request, at time.Time) time.Time {
	if !n.Windowed {
		return time.Time{}
	}
	d, err := ratelimit.Decide(r.Count(0), ratelimit.State{TS: at}, at)
	if err != nil {
		panic(err)
	}
	return d.State.TS.Add(n.Period)
}

// Century is so long a period that what flows in during a test is below the tolerance.
const Century = 100 * 365 * 24 * time.Hour

// ExactRule draws a rule all of whose balances float64 holds exactly.
func ExactRule() *rapid.Generator[ratelimit.Rule] {
	return rapid.Custom(func(t *rapid.T) ratelimit.Rule {
		rate := rapid.SampledFrom([]float64{1, 2, 3, 5, 10, 0.5}).Draw(t, "rate")
		period := Micros(int64(1) << rapid.SampledFrom([]int{10, 20, 24, 30}).Draw(t, "period"))
		return drawRule(t, rate, period)
	})
}

// OddRule draws a rule whose balances are rounded.
func OddRule() *rapid.Generator[ratelimit.Rule] {
	return rapid.Custom(func(t *rapid.T) ratelimit.Rule {
		rate := rapid.OneOf(rapid.SampledFrom([]float64{3, 7, 1.0 / 3, 0.1}),
			rapid.Float64Range(0.01, 100)).Draw(t, "rate")
		period := rapid.OneOf(
			rapid.SampledFrom([]time.Duration{110 * time.Millisecond, 333 * time.Millisecond,
				7 * time.Second, Micros(7)}),
			rapid.Map(rapid.Int64Range(1, 1e10), Micros),
		).Draw(t, "period")
		return drawRule(t, rate, period)
	})
}

func drawRule(t *rapid.T, rate float64, period time.Duration) ratelimit.Rule {
	number := func(label string, of ...float64) *float64 {
		if rapid.IntRange(0, 2).Draw(t, label+" unset") == 0 {
			return nil
		}
		return ratelimit.Tokens(rapid.SampledFrom(of).Draw(t, label))
	}
	capacity, reserved := number("capacity", 0, 0.5, 2, 5, 10, 20), number("reserved", 0, 1, 5, 30)
	if rapid.Bool().Draw(t, "window") {
		w := ratelimit.FixedWindow{Rate: rate, Period: period, Capacity: capacity, MaxReserved: reserved}
		if rapid.Bool().Draw(t, "started") {
			w.Start = Noon.Add(Micros(rapid.Int64Range(-1e12, 1e12).Draw(t, "start")))
		}
		return w
	}
	return ratelimit.TokenBucket{Rate: rate, Period: period, Capacity: capacity, MaxReserved: reserved}
}

// Micros is n microseconds.
func Micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
