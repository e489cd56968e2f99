package ratelimit_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-go/weir/ratelimit"
)

// take is what was granted when.
type take struct {
	at time.Time
	n  float64
}

// greedy asks at arbitrary times for arbitrary counts, and for what is left, and returns what it
// was granted. With reserve, the time of a grant is that at which its work runs.
func greedy(t *rapid.T, r terms, reserve bool) []take {
	l := define(t, r.rule())
	var takes []take
	var b row
	now := t0
	for range 40 {
		now = now.Add(time.Duration(rapid.OneOf(
			rapid.Just(int64(0)), rapid.Int64Range(0, r.period.Microseconds()/4),
			rapid.Int64Range(0, 3*r.period.Microseconds()),
		).Draw(t, "pause")) * us)
		n := anyCount(r, reserve).Draw(t, "n")
		d := b.take(t, ask(l, n, reserve), now)
		if !d.OK && d.State.Value > 0 && rapid.Bool().Draw(t, "the rest") {
			if n = d.State.Value; n < 1e-9*r.capacity {
				continue
			}
			d = b.take(t, ask(l, n, reserve), now)
		}
		if !d.OK {
			continue
		}
		at := now
		if !d.RunAt.IsZero() {
			at = d.RunAt
		}
		takes = append(takes, take{at, n})
	}
	return takes
}

// inflow is what comes from after a until b.
func (r terms) inflow(a, b time.Time) float64 {
	if r.window {
		return r.rate * float64(windowOf(r, b)-windowOf(r, a))
	}
	return r.rate / float64(r.period) * float64(b.Sub(a))
}

// windowOf numbers windows by counting in nanoseconds from the Start.
func windowOf(r terms, at time.Time) int64 {
	d := int64(at.Sub(r.start))
	n := d / int64(r.period)
	if d%int64(r.period) < 0 {
		n--
	}
	return n
}

func TestNoIntervalSeesMoreThanCapacityAndInflow(t *testing.T) {
	check(t, func(t *rapid.T) {
		r := anyTerms().Draw(t, "rule")
		takes := greedy(t, r, false)
		for i := range takes {
			sum := 0.0
			for j := i; j < len(takes); j++ {
				sum += takes[j].n
				most := r.capacity + r.inflow(takes[i].at, takes[j].at)
				if sum > most*(1+1e-9) {
					t.Fatalf("%v granted from %v to %v, of %v", sum, takes[i].at, takes[j].at, most)
				}
			}
		}
	})
}

// Work that starts at its RunAt keeps to the limit like work that was granted at once. Only one
// reservation of more than the capacity may exceed it, by itself.
func TestNoIntervalRunsMoreReservedWorkThanCapacityAndInflow(t *testing.T) {
	check(t, func(t *rapid.T) {
		r := anyTerms().Draw(t, "rule")
		takes := greedy(t, r, true)
		for i := 1; i < len(takes); i++ {
			// Each is rounded up by itself, and one that adds next to nothing to the debt may be
			// rounded differently.
			if takes[i].n > 1e-9*(r.capacity+r.rate) && takes[i].at.Before(takes[i-1].at.Add(-us)) {
				t.Fatalf("a later reservation runs earlier: %v", takes[i-1:i+1])
			}
		}
		for i := range takes {
			sum := 0.0
			for j := i; j < len(takes); j++ {
				sum += takes[j].n
				most := max(r.capacity, takes[i].n) + r.inflow(takes[i].at, takes[j].at)
				if r.window { // within its window, work may run at any time
					most = max(most, r.capacity+r.rate+takes[i].n+r.inflow(takes[i].at, takes[j].at))
				}
				if sum > most*(1+1e-9)+r.rate*2e-6/r.period.Seconds() {
					t.Fatalf("%v run from %v to %v, of %v", sum, takes[i].at, takes[j].at, most)
				}
			}
		}
	})
}

func TestBucketGrantsCapacityAndRateInOnePeriod(t *testing.T) {
	t.Parallel()
	l := define(t, ratelimit.TokenBucket{Rate: 10, Period: sec})
	run(t, l, &row{}, []step{
		{0, 10, false, true, 0, 0},
		{100 * ms, 1, false, true, 0, 0},
		{500 * ms, 4, false, true, 0, 0},
		{1000 * ms, 5, false, true, 0, 0}, // 20 from 0 to one period
		{1000 * ms, 1, false, false, 0, 100 * ms},
	})
}

func TestWindowNeverSeesMoreThanItsRate(t *testing.T) {
	check(t, func(t *rapid.T) {
		r := anyTerms().Draw(t, "rule")
		r.window, r.capacity = true, r.rate
		granted := map[int64]float64{}
		for _, k := range greedy(t, r, false) {
			w := windowOf(r, k.at)
			if granted[w] += k.n; granted[w] > r.rate*(1+1e-12) {
				t.Fatalf("%v in window %d of %v", granted[w], w, r.rate)
			}
		}
	})
}
