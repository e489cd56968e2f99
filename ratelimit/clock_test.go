package ratelimit_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-go/weir/ratelimit"
)

func TestClockSetBackMintsNothing(t *testing.T) {
	t.Parallel()
	t.Run("bucket", func(t *testing.T) {
		t.Parallel()
		l := define(t, ratelimit.TokenBucket{Rate: 10, Period: sec})
		run(t, l, &row{}, []step{
			{0, 10, false, true, 0, 0},
			{-5 * sec, 0, false, true, 0, 0},
			{-5 * sec, 1, false, false, 0, 5*sec + 100*ms}, // the token comes after the row's ts
			{0, 1, false, false, 0, 100 * ms},
			{500 * ms, 5, false, true, 0, 0},
			{-1 * time.Hour, 1, false, false, 0, time.Hour + 600*ms},
			{600 * ms, 1, false, true, 0, 0},
		})
	})
	t.Run("window", func(t *testing.T) {
		t.Parallel()
		l := define(t, ratelimit.FixedWindow{Rate: 3, Period: time.Minute, Start: t0})
		run(t, l, &row{}, []step{
			{0, 3, false, true, 0, 0},
			{-1 * sec, 0, false, true, 0, 0}, // floored, the elapsed time is a window: it must not be subtracted
			{-1 * sec, 1, false, false, 0, 61 * sec},
			{-10 * time.Minute, 1, false, false, 0, 11 * time.Minute},
			{time.Minute, 2, false, true, 1, 0},
			{0, 1, false, true, 0, 0},
			{time.Minute, 1, false, false, 0, time.Minute},
		})
	})
}

// However the clock jumps, a balance gains only by time that had not been reached before, and TS
// never moves back.
func TestJumpingClockMintsNoMoreThanItsForwardProgress(t *testing.T) {
	check(t, func(t *rapid.T) {
		r := anyTerms().Draw(t, "rule")
		l := define(t, r.rule())
		b := row{ratelimit.State{Value: 0, TS: t0}}
		latest, taken := t0, 0.0
		for range 40 {
			now := t0.Add(time.Duration(rapid.Int64Range(-5*r.period.Microseconds(),
				5*r.period.Microseconds()).Draw(t, "now")) * us)
			if now.After(latest) {
				latest = now
			}
			before := b.state
			n := anyCount(r, false).Draw(t, "n")
			d := b.take(t, ask(l, n, false), now)
			if d.OK {
				taken += n
			}
			first := before.TS.Equal(t0) && r.window // a window's TS becomes its start
			if b.state.TS.Before(before.TS) && !first {
				t.Fatalf("TS moved back: %+v, then %+v", before, b.state)
			}
			if most := r.inflow(t0, latest); taken+b.state.Value > most*(1+1e-9) {
				t.Fatalf("%v taken and %v left, of %v that came", taken, b.state.Value, most)
			}
		}
	})
}

// A statement reads the clock, then waits for the row, and finds it written at a later time: a
// plain take.
func TestRowWrittenLaterThanTheClockReadingIsTakenFrom(t *testing.T) {
	t.Parallel()
	l := define(t, ratelimit.TokenBucket{Rate: 10, Period: sec, MaxReserved: ratelimit.Tokens(5)})
	late := ratelimit.State{Value: 4, TS: t0.Add(20 * ms)}

	d := decide(t, l.For("key").Count(3), late, t0)
	if want := (ratelimit.Decision{OK: true, State: ratelimit.State{Value: 1, TS: late.TS}}); d != want {
		t.Errorf("%+v, want %+v", d, want)
	}
	d = decide(t, l.For("key").Count(5), late, t0)
	if want := late.TS.Add(100 * ms); d.OK || !d.RetryAt.Equal(want) {
		t.Errorf("%+v, want RetryAt %v", d, want)
	}
	d = decide(t, l.For("key").Count(6).OrReserve(), late, t0)
	if want := late.TS.Add(200 * ms); !d.OK || !d.RunAt.Equal(want) {
		t.Errorf("%+v, want RunAt %v", d, want)
	}
}

// Microseconds are what Postgres keeps; what is finer is cut off.
func TestNanosecondsAreCutOff(t *testing.T) {
	t.Parallel()
	l := define(t, ratelimit.TokenBucket{Rate: 1, Period: us, Capacity: ratelimit.Tokens(1)})
	b := row{ratelimit.State{Value: 0, TS: t0}}
	if d := b.take(t, l.For("key"), t0.Add(999*time.Nanosecond)); d.OK || !d.RetryAt.Equal(t0.Add(us)) {
		t.Errorf("%+v", d)
	}
	if d := b.take(t, l.For("key"), t0.Add(1001*time.Nanosecond)); !d.OK || !d.State.TS.Equal(t0.Add(us)) {
		t.Errorf("%+v", d)
	}
}

func TestTimesAreInUTC(t *testing.T) {
	t.Parallel()
	l := define(t, ratelimit.TokenBucket{Rate: 1, Period: sec})
	there := t0.In(time.FixedZone("there", 5*3600))
	d := decide(t, l.For("key"), ratelimit.State{TS: there}, there)
	if d.OK || d.RetryAt.Location() != time.UTC || d.State.TS.Location() != time.UTC || !d.RetryAt.Equal(t0.Add(sec)) {
		t.Errorf("%+v", d)
	}
}
