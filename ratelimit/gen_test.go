package ratelimit_test

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-go/weir/ratelimit"
)

// t0 is a round instant well after the epoch.
var t0 = time.Date(2024, 3, 1, 12, 0, 0, 0, time.UTC)

const us = time.Microsecond

// terms are what a rule says, in a form in which tests can compute with it: nothing in it is unset.
type terms struct {
	window               bool
	rate, capacity, debt float64
	period               time.Duration
	start                time.Time
	unsetReserve         bool
}

func (r terms) rule() ratelimit.Rule {
	var reserved *float64
	if !r.unsetReserve {
		reserved = &r.debt
	}
	if r.window {
		return ratelimit.FixedWindow{Rate: r.rate, Period: r.period, Capacity: &r.capacity,
			MaxReserved: reserved, Start: r.start}
	}
	return ratelimit.TokenBucket{Rate: r.rate, Period: r.period, Capacity: &r.capacity, MaxReserved: reserved}
}

func (r terms) least(reserve bool) float64 {
	if reserve {
		return -r.debt
	}
	return 0
}

// anyTerms draws rules as people write them, and odd ones.
func anyTerms() *rapid.Generator[terms] {
	return rapid.Custom(func(t *rapid.T) terms {
		var r terms
		r.window = rapid.Bool().Draw(t, "window")
		r.rate = rapid.OneOf(
			rapid.SampledFrom([]float64{1, 2, 3, 7, 10, 60, 100, 0.1, 1.0 / 3, 2.5, 40_000, 1e9}),
			rapid.Float64Range(1e-3, 1e6),
		).Draw(t, "rate")
		r.period = rapid.OneOf(
			rapid.SampledFrom([]time.Duration{us, 7 * us, time.Millisecond, 100 * time.Millisecond,
				110 * time.Millisecond,
				333 * time.Millisecond, time.Second, 7 * time.Second, time.Minute, time.Hour,
				24 * time.Hour, 30 * 24 * time.Hour}),
			rapid.Map(rapid.Int64Range(1, 40*24*3600*1e6), func(n int64) time.Duration {
				return time.Duration(n) * us
			}),
		).Draw(t, "period")
		r.capacity = r.rate * rapid.OneOf(rapid.SampledFrom([]float64{0, 0.5, 1, 1, 1, 2, 20}),
			rapid.Float64Range(0, 50)).Draw(t, "capacity/rate")
		r.debt = r.rate * rapid.OneOf(rapid.SampledFrom([]float64{0, 0.5, 1, 3, 100}),
			rapid.Float64Range(0, 50)).Draw(t, "debt/rate")
		r.start = t0.Add(time.Duration(rapid.Int64Range(-1e15, 1e15).Draw(t, "start")) * us)
		return r
	})
}

// anyCount draws counts that the rule can grant.
func anyCount(r terms, reserve bool) *rapid.Generator[float64] {
	most := r.capacity - r.least(reserve)
	for r.capacity-most < r.least(reserve) { // the sum was rounded up
		most = math.Nextafter(most, 0)
	}
	return rapid.Custom(func(t *rapid.T) float64 {
		n := rapid.OneOf(
			rapid.Just(0.0), rapid.Just(min(1, most)), rapid.Just(most), rapid.Just(r.capacity),
			rapid.Map(rapid.Float64Range(0, 1), func(f float64) float64 { return f * most }),
			rapid.Map(rapid.Float64Range(0, 0.1), func(f float64) float64 { return f * r.capacity }),
		).Draw(t, "count")
		if n < r.capacity*1e-9 {
			return 0
		}
		return n
	})
}

// anyState draws a row as the rule, or another one in its place, may have left it.
func anyState(r terms, now time.Time) *rapid.Generator[ratelimit.State] {
	return rapid.Custom(func(t *rapid.T) ratelimit.State {
		value := rapid.OneOf(
			rapid.Just(0.0), rapid.Just(r.capacity), rapid.Just(-r.debt),
			rapid.Just(2*r.capacity+1), rapid.Just(-2*r.debt-1),
			rapid.Float64Range(-r.debt, r.capacity),
			rapid.Map(rapid.Float64Range(-r.debt, r.capacity), math.Floor),
		).Draw(t, "value")
		ago := rapid.OneOf(
			rapid.Just(int64(0)),
			rapid.Int64Range(0, r.period.Microseconds()),
			rapid.Int64Range(0, 30*r.period.Microseconds()),
			rapid.Int64Range(-2*r.period.Microseconds(), 0),
		).Draw(t, "ts ago")
		return ratelimit.State{Value: value, TS: now.Add(-time.Duration(ago) * us)}
	})
}

func define(t rapid.TB, rule ratelimit.Rule) ratelimit.Limit {
	t.Helper()
	l, err := ratelimit.Define("limit", rule)
	if err != nil {
		t.Fatalf("Define(%+v): %v", rule, err)
	}
	return l
}

func decide(t rapid.TB, r ratelimit.Request, s ratelimit.State, now time.Time) ratelimit.Decision {
	t.Helper()
	d, err := ratelimit.Decide(r, s, now)
	if err != nil {
		t.Fatalf("Decide: %v", err)
	}
	return d
}

// row is a balance between calls, as the database keeps it: a denial writes nothing.
type row struct{ state ratelimit.State }

func (b *row) take(t rapid.TB, r ratelimit.Request, now time.Time) ratelimit.Decision {
	t.Helper()
	d := decide(t, r, b.state, now)
	if d.OK {
		b.state = d.State
	}
	return d
}

func ask(l ratelimit.Limit, n float64, reserve bool) ratelimit.Request {
	r := l.For("key").Count(n)
	if reserve {
		r = r.OrReserve()
	}
	return r
}

func near(a, b, tolerance float64) bool { return math.Abs(a-b) <= tolerance }

// check runs a property, on 500 cases, in parallel with the other tests.
func check(t *testing.T, property func(*rapid.T)) {
	t.Helper()
	t.Parallel()
	for range 5 {
		rapid.Check(t, property)
	}
}
