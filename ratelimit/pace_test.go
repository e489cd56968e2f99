package ratelimit_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-go/weir/ratelimit"
)

func TestWorkReservedInOneWindowIsSpreadOverIt(t *testing.T) {
	t.Parallel()
	l := define(t, ratelimit.FixedWindow{Rate: 10, Period: 10 * sec, Start: t0})
	b := row{}
	now := t0.Add(3 * sec)
	for i, tc := range []struct {
		n          float64
		run, paced time.Duration // after t0
	}{
		{8, 0, 0},
		{4, 10 * sec, 10 * sec}, // two of them are left of this window
		{1, 10 * sec, 12 * sec},
		{7, 10 * sec, 13 * sec},
		{1, 20 * sec, 20 * sec},
		{0, 20 * sec, 21 * sec},
		{25, 40 * sec, 40 * sec}, // all of the window before, too
		{1, 40 * sec, 46 * sec},
	} {
		d := b.take(t, ask(l, tc.n, true), now)
		if tc.run == 0 {
			if !d.OK || !d.RunAt.IsZero() || !d.PacedAt.IsZero() {
				t.Errorf("step %d: %+v", i, d)
			}
			continue
		}
		if !d.OK || !d.RunAt.Equal(t0.Add(tc.run)) || !d.PacedAt.Equal(t0.Add(tc.paced)) {
			t.Errorf("step %d: %v tokens run at %v, paced at %v", i, tc.n, d.RunAt.Sub(t0), d.PacedAt.Sub(t0))
		}
		now = now.Add(sec / 2)
	}
}

// Paced work stays in its window, in its order, whatever comes in between; a bucket has paced it
// already.
func TestPacedWorkStaysInItsWindowAndOrder(t *testing.T) {
	check(t, func(t *rapid.T) {
		r := anyTerms().Draw(t, "rule")
		r.unsetReserve = true
		l := define(t, r.rule())
		b := row{anyState(r, t0).Draw(t, "state")}
		if rapid.Bool().Draw(t, "paused") {
			b.state = anyPause(t, r, t0)
		}
		now := t0
		var run, paced time.Time
		for range 20 {
			now = now.Add(time.Duration(rapid.Int64Range(0, r.period.Microseconds()/4).Draw(t, "pass")) * us)
			n := r.rate * rapid.Float64Range(1e-6, 3).Draw(t, "n/rate")
			d := b.take(t, ask(l, n, true), now)
			switch {
			case !d.OK:
				t.Fatalf("%v tokens: %+v", n, d)
			case d.RunAt.IsZero() != d.PacedAt.IsZero():
				t.Fatalf("%+v", d)
			case !r.window && !d.PacedAt.Equal(d.RunAt):
				t.Fatalf("a bucket: %+v", d)
			case d.RunAt.IsZero():
				continue
			case r.window && d.State.Value < 0 && !d.PacedAt.Before(d.RunAt.Add(r.period)) || d.PacedAt.Before(d.RunAt):
				t.Fatalf("outside of its window of %v: %+v", r.period, d)
			case d.RunAt.Before(run) || d.PacedAt.Before(paced):
				t.Fatalf("before what came before it, at %v and %v: %+v", run, paced, d)
			}
			run, paced = d.RunAt, d.PacedAt
		}
	})
}

// One by one, no window starts more than its rate; and each of its equal parts no more than its
// share.
func TestNoWindowStartsMoreThanItsTokens(t *testing.T) {
	check(t, func(t *rapid.T) {
		rate := rapid.IntRange(1, 50).Draw(t, "rate")
		parts := time.Duration(rate)
		period := time.Duration(rapid.Int64Range(1, 1e6).Draw(t, "period/rate")) * us * parts
		l := define(t, ratelimit.FixedWindow{Rate: float64(rate), Period: period, Start: t0})
		b := row{ratelimit.State{Value: float64(rapid.IntRange(-3*rate, rate).Draw(t, "value")), TS: t0}}
		windows, shares := map[time.Duration]int{}, map[time.Duration]int{}
		for range 3 * rate {
			d := b.take(t, ask(l, 1, true), t0)
			if !d.OK || d.RunAt.IsZero() {
				continue
			}
			windows[d.PacedAt.Sub(t0)/period]++
			shares[d.PacedAt.Sub(t0).Round(us)/(period/parts)]++
		}
		for w, n := range windows {
			if n > rate {
				t.Fatalf("window %d: %d of %d", w, n, rate)
			}
		}
		for s, n := range shares {
			if n > 2 { // two, where a microsecond is cut off
				t.Fatalf("part %d of %d: %d", s, rate, n)
			}
		}
	})
}
