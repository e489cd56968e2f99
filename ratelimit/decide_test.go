package ratelimit_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-go/weir/ratelimit"
)

// step is one call at t0+t, and what it meets. wait is the time until RetryAt if denied, until
// RunAt if granted ahead.
type step struct {
	t       time.Duration
	n       float64
	reserve bool
	ok      bool
	left    float64
	wait    time.Duration
}

func run(t *testing.T, l ratelimit.Limit, b *row, steps []step) {
	t.Helper()
	for i, s := range steps {
		now := t0.Add(s.t)
		d := b.take(t, ask(l, s.n, s.reserve), now)
		wait, never := d.RetryAt, d.RunAt
		if d.OK {
			wait, never = never, wait
		}
		if !never.IsZero() {
			t.Errorf("step %d %+v: RunAt without a grant, or RetryAt without a denial: %+v", i, s, d)
		}
		var waited time.Duration
		if !wait.IsZero() {
			waited = wait.Sub(now)
		}
		if d.OK != s.ok || !near(d.State.Value, s.left, 1e-9) || waited != s.wait {
			t.Errorf("step %d %+v: ok %v, left %v, wait %v", i, s, d.OK, d.State.Value, waited)
		}
	}
}

const (
	ms  = time.Millisecond
	sec = time.Second
)

func TestBucketGrantsDownToExactlyZero(t *testing.T) {
	t.Parallel()
	l := define(t, ratelimit.TokenBucket{Rate: 10, Period: sec, Capacity: ratelimit.Tokens(3)})
	run(t, l, &row{}, []step{
		{0, 1, false, true, 2, 0},
		{0, 1, false, true, 1, 0},
		{0, 1, false, true, 0, 0},
		{0, 0, false, true, 0, 0},
		{0, 1, false, false, 0, 100 * ms},
		{0, 3, false, false, 0, 300 * ms},
		{100*ms - us, 1, false, false, 0.99999, us},
		{100 * ms, 1, false, true, 0, 0},
		{400 * ms, 3, false, true, 0, 0},
		{10 * sec, 3, false, true, 0, 0},
		{10 * sec, 0.5, false, false, 0, 50 * ms},
	})
}

func TestBucketStartsFullAndRefillsToItsCapacity(t *testing.T) {
	t.Parallel()
	l := define(t, ratelimit.TokenBucket{Rate: 6, Period: time.Minute, Capacity: ratelimit.Tokens(20)})
	run(t, l, &row{}, []step{
		{0, 20, false, true, 0, 0},
		{10 * sec, 0, false, true, 1, 0},
		{10 * sec, 2, false, false, 1, 10 * sec},
		{100 * sec, 0, false, true, 10, 0},
		{24 * time.Hour, 0, false, true, 20, 0},
		{25 * time.Hour, 20, false, true, 0, 0},
	})
}

func TestUnsetCapacityIsTheRate(t *testing.T) {
	t.Parallel()
	for _, rule := range []ratelimit.Rule{
		ratelimit.TokenBucket{Rate: 10, Period: sec},
		ratelimit.FixedWindow{Rate: 10, Period: sec, Start: t0},
	} {
		d := decide(t, define(t, rule).For("key").Count(4), ratelimit.State{}, t0)
		if !d.OK || d.State.Value != 6 {
			t.Errorf("%+v: %+v, want 6 left", rule, d)
		}
	}
}

func TestWindowGrantsItsRateOnceInEachWindow(t *testing.T) {
	t.Parallel()
	l := define(t, ratelimit.FixedWindow{Rate: 3, Period: time.Minute, Start: t0})
	run(t, l, &row{}, []step{
		{59 * sec, 3, false, true, 0, 0},
		{59 * sec, 1, false, false, 0, 1 * sec},
		{60*sec - us, 1, false, false, 0, us},
		{60 * sec, 3, false, true, 0, 0},
		{60 * sec, 1, false, false, 0, 60 * sec},
		{600 * sec, 1, false, true, 2, 0},
		{600 * sec, 3, false, false, 2, 60 * sec},
	})
}

func TestWindowSavesUpToItsCapacity(t *testing.T) {
	t.Parallel()
	l := define(t, ratelimit.FixedWindow{Rate: 2, Period: time.Minute, Capacity: ratelimit.Tokens(5), Start: t0})
	run(t, l, &row{}, []step{
		{0, 5, false, true, 0, 0},
		{0, 5, false, false, 0, 3 * time.Minute},
		{0, 3, false, false, 0, 2 * time.Minute},
		{2 * time.Minute, 0, false, true, 4, 0},
		{9 * time.Minute, 0, false, true, 5, 0},
	})
}

func TestReservationsQueueUpBehindEachOther(t *testing.T) {
	t.Parallel()
	l := define(t, ratelimit.TokenBucket{Rate: 10, Period: sec, Capacity: ratelimit.Tokens(2),
		MaxReserved: ratelimit.Tokens(4)})
	run(t, l, &row{}, []step{
		{0, 2, true, true, 0, 0},
		{0, 1, true, true, -1, 100 * ms},
		{0, 3, true, true, -4, 400 * ms},
		{0, 1, true, false, -4, 100 * ms},
		{0, 1, false, false, -4, 500 * ms},
		{100 * ms, 1, true, true, -4, 400 * ms},
		{200 * ms, 0, true, true, -3, 300 * ms},
		{200 * ms, 6, true, false, -3, 500 * ms},
		{700 * ms, 6, true, true, -4, 400 * ms},
	})
}

func TestReservationsOfAWindowRunAtTheStartOfTheWindowThatCoversThem(t *testing.T) {
	t.Parallel()
	l := define(t, ratelimit.FixedWindow{Rate: 3, Period: time.Minute, MaxReserved: ratelimit.Tokens(6), Start: t0})
	run(t, l, &row{}, []step{
		{20 * sec, 3, true, true, 0, 0},
		{20 * sec, 1, true, true, -1, 40 * sec},
		{20 * sec, 2, true, true, -3, 40 * sec},
		{20 * sec, 1, true, true, -4, 100 * sec},
		{20 * sec, 3, true, false, -4, 40 * sec},
		{60 * sec, 0, true, true, -1, 60 * sec},
		{60 * sec, 1, false, false, -1, 60 * sec},
		{120 * sec, 1, false, true, 1, 0},
	})
}

// 0 and unset are different things, both for the capacity and for the bound on reservations.
func TestZeroIsNotUnset(t *testing.T) {
	t.Parallel()
	zero := ratelimit.Tokens(0)

	run(t, define(t, ratelimit.TokenBucket{Rate: 1, Period: sec, Capacity: zero}), &row{}, []step{
		{0, 0, false, true, 0, 0},
		{0, 5, true, true, -5, 5 * sec},
	})
	run(t, define(t, ratelimit.FixedWindow{Rate: 1, Period: sec, Capacity: zero, Start: t0}), &row{}, []step{
		{0, 0, false, true, 0, 0},
		{0, 5, true, true, -5, 5 * sec},
	})
	run(t, define(t, ratelimit.TokenBucket{Rate: 1, Period: sec, MaxReserved: zero}), &row{}, []step{
		{0, 1, true, true, 0, 0},
		{0, 1, true, false, 0, 1 * sec},
	})
	run(t, define(t, ratelimit.TokenBucket{Rate: 1, Period: sec}), &row{}, []step{
		{0, 1e9, true, true, 1 - 1e9, (1e9 - 1) * sec},
	})
}

// A count of 0 asks whether anything is owed.
func TestZeroCountIsGrantedWhileNothingIsOwed(t *testing.T) {
	t.Parallel()
	l := define(t, ratelimit.TokenBucket{Rate: 1, Period: sec})
	run(t, l, &row{ratelimit.State{Value: -2, TS: t0}}, []step{
		{0, 0, false, false, -2, 2 * sec},
		{0, 0, true, true, -2, 2 * sec},
		{2 * sec, 0, false, true, 0, 0},
	})
}

// Every call moves the timestamp, so a balance that is kept in whole tokens would lose what came
// since the call before.
func TestPollingFasterThanOneTokenStillRefills(t *testing.T) {
	t.Parallel()
	l := define(t, ratelimit.TokenBucket{Rate: 1, Period: sec, Capacity: ratelimit.Tokens(100)})
	for _, every := range []time.Duration{us, 17 * us, ms, 333 * ms} {
		b := row{ratelimit.State{Value: 0, TS: t0}}
		const polls = 10_000
		for i := range polls {
			b.take(t, ask(l, 0, false), t0.Add(time.Duration(i+1)*every))
		}
		want := min(100, (polls * every).Seconds())
		if !near(b.state.Value, want, 1e-9) {
			t.Errorf("polled every %v: %v tokens after %v, want %v", every, b.state.Value, polls*every, want)
		}
	}
}

// A denial changes neither number, or the elapsed time would be counted twice.
func TestDenialsBetweenTakesChangeNothing(t *testing.T) {
	t.Parallel()
	l := define(t, ratelimit.TokenBucket{Rate: 10, Period: sec})
	run(t, l, &row{}, []step{
		{0, 10, false, true, 0, 0},
		{300 * ms, 9, false, false, 3, 600 * ms},
		{600 * ms, 9, false, false, 6, 300 * ms},
		{600 * ms, 9, false, false, 6, 300 * ms},
		{900 * ms, 9, false, true, 0, 0},
	})
}

// Between any two calls others may ask without taking; the balance and every later answer stay the
// same.
func TestAskingWithoutTakingChangesNothing(t *testing.T) {
	check(t, func(t *rapid.T) {
		r := anyTerms().Draw(t, "rule")
		l := define(t, r.rule())
		var asked, unasked row
		now := t0
		for range 20 {
			now = now.Add(time.Duration(rapid.Int64Range(0, 2*r.period.Microseconds()).Draw(t, "pause")) * us)
			reserve := rapid.Bool().Draw(t, "reserve")
			req := ask(l, anyCount(r, reserve).Draw(t, "n"), reserve)
			for range 3 {
				decide(t, req, asked.state, now) // its state is not kept
			}
			if a, b := asked.take(t, req, now), unasked.take(t, req, now); a != b {
				t.Fatalf("asked before: %+v; not asked: %+v", a, b)
			}
		}
	})
}

// Who would be granted now would be granted later too, if nobody else came.
func TestGrantingIsMonotoneInTime(t *testing.T) {
	check(t, func(t *rapid.T) {
		r := anyTerms().Draw(t, "rule")
		l := define(t, r.rule())
		reserve := rapid.Bool().Draw(t, "reserve")
		req := ask(l, anyCount(r, reserve).Draw(t, "n"), reserve)
		s := anyState(r, t0).Draw(t, "state")
		now := t0
		before := decide(t, req, s, now)
		for range 30 {
			now = now.Add(time.Duration(rapid.Int64Range(0, r.period.Microseconds()).Draw(t, "pause")) * us)
			d := decide(t, req, s, now)
			if before.OK && !d.OK {
				t.Fatalf("granted earlier, denied at %v", now)
			}
			if !d.OK && !before.OK && d.RetryAt != before.RetryAt {
				t.Fatalf("RetryAt moved from %v to %v", before.RetryAt, d.RetryAt)
			}
			before = d
		}
	})
}

// The counts are such that no rounding is involved.
func TestTakingInPartsTakesAsMuchAsAtOnce(t *testing.T) {
	check(t, func(t *rapid.T) {
		r := anyTerms().Draw(t, "rule")
		eighths := func(name string, low, high int) float64 {
			return float64(rapid.IntRange(low, high).Draw(t, name)) / 8
		}
		r.capacity, r.debt = eighths("capacity", 0, 8000), eighths("debt", 0, 8000)
		l, err := ratelimit.Define("limit", r.rule())
		if err != nil {
			t.Skip(err) // a thousand years to fill
		}
		s := ratelimit.State{Value: eighths("value", -8000, 8000), TS: t0}
		reserve := rapid.Bool().Draw(t, "reserve")
		a, b := eighths("a", 0, 4000), eighths("b", 0, 4000)
		if r.capacity-a-b < r.least(reserve) {
			t.Skip("never granted")
		}

		whole := decide(t, ask(l, a+b, reserve), s, t0)
		parts := row{s}
		first := parts.take(t, ask(l, a, reserve), t0)
		second := parts.take(t, ask(l, b, reserve), t0)
		if granted := first.OK && second.OK; granted != whole.OK {
			t.Fatalf("%v and %v: %+v, %+v; at once: %+v", a, b, first, second, whole)
		}
		second.PacedAt = whole.PacedAt // where each part has its own
		if whole.OK && second != whole {
			t.Fatalf("%v and %v left %+v; at once: %+v", a, b, second, whole)
		}
	})
}
