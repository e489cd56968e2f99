package ratelimit_test

import (
	"fmt"
	"testing"
	"time"
	_ "time/tzdata" // for daylight saving

	"pgregory.net/rapid"

	"github.com/weir-go/weir/ratelimit"
)

// Every boundary is exact: in floating-point seconds a third of these would fall into the window
// before.
func TestWindowsOfOddPeriodsBeginExactlyOnTheirBoundaries(t *testing.T) {
	t.Parallel()
	for _, period := range []time.Duration{100 * ms, 110 * ms, 333 * ms, 7 * us, time.Hour, 86_399_999_999 * us} {
		t.Run(period.String(), func(t *testing.T) {
			t.Parallel()
			l := define(t, ratelimit.FixedWindow{Rate: 1, Period: period, Start: t0})
			for i := range int64(20_000) {
				k := i + i%7*1e6*(i%3) // near ones and far ones
				if k > int64(100*365*24*time.Hour/period) {
					k = i % int64(100*365*24*time.Hour/period)
				}
				begin := t0.Add(time.Duration(k) * period)
				used := ratelimit.State{Value: 0, TS: begin}
				last := decide(t, l.For("key"), used, begin.Add(period-us))
				if last.OK || !last.State.TS.Equal(begin) || !last.RetryAt.Equal(begin.Add(period)) {
					t.Fatalf("last microsecond of window %d: %+v", k, last)
				}
				next := decide(t, l.For("key"), used, begin.Add(period))
				if !next.OK || !next.State.TS.Equal(begin.Add(period)) {
					t.Fatalf("first microsecond of window %d: %+v", k+1, next)
				}
			}
		})
	}
}

func TestWindowsExtendFromTheirStartInBothDirections(t *testing.T) {
	t.Parallel()
	for _, away := range []time.Duration{0, time.Hour, -time.Hour, 1000 * time.Hour, -250_000 * time.Hour} {
		l := define(t, ratelimit.FixedWindow{Rate: 3, Period: time.Hour, Start: t0.Add(away)})
		run(t, l, &row{}, []step{
			{-time.Hour, 3, false, true, 0, 0},
			{-us, 1, false, false, 0, us},
			{0, 3, false, true, 0, 0},
			{time.Hour - us, 1, false, false, 0, us},
			{time.Hour, 3, false, true, 0, 0},
		})
	}
}

// A Start is as good as any other that is whole periods away.
func TestStartsThatArePeriodsApartMeanTheSameWindows(t *testing.T) {
	check(t, func(t *rapid.T) {
		r := anyTerms().Draw(t, "rule")
		r.window = true
		moved := r
		k := rapid.Int64Range(-1000, 1000).Draw(t, "periods")
		moved.start = time.UnixMicro(r.start.UnixMicro() + k*r.period.Microseconds())
		a, b := define(t, r.rule()), define(t, moved.rule())
		reserve := rapid.Bool().Draw(t, "reserve")
		n := anyCount(r, reserve).Draw(t, "n")
		s := anyState(r, t0).Draw(t, "state")
		if x, y := decide(t, ask(a, n, reserve), s, t0), decide(t, ask(b, n, reserve), s, t0); x != y {
			t.Fatalf("%+v, moved by %d periods: %+v", x, k, y)
		}
	})
}

// Where the Start or the Period of a limit is changed, the next call counts the windows of the new
// grid that begin after the row's ts: at most one, and so at most one Rate, more than the time
// since then holds.
func TestChangedGridGivesAtMostOneWindowMore(t *testing.T) {
	check(t, func(t *rapid.T) {
		r := anyTerms().Draw(t, "rule")
		r.window = true
		l := define(t, r.rule())
		ts := t0.Add(time.Duration(rapid.Int64Range(-2*r.period.Microseconds(), 0).Draw(t, "ts")) * us)
		d := decide(t, ask(l, 0, true), ratelimit.State{Value: -r.debt, TS: ts}, t0)
		gained := d.State.Value + r.debt
		most := min(r.capacity+r.debt, r.rate*float64(1+t0.Sub(ts)/r.period))
		if !d.OK || gained < 0 || gained > most+1e-9*(r.debt+r.rate) {
			t.Fatalf("%v gained, at most %v", gained, most)
		}
	})
}

func TestMovingTheStartAtOneInstantMintsNothing(t *testing.T) {
	t.Parallel()
	rule := func(start time.Duration) ratelimit.Rule {
		return ratelimit.FixedWindow{Rate: 5, Period: time.Hour, Start: t0.Add(start)}
	}
	l := define(t, rule(0))
	b := row{}
	b.take(t, l.For("key").Count(5), t0.Add(30*time.Minute))
	for i := range 100 {
		r := l.For("key").Rule(rule(time.Duration(i%60) * time.Minute))
		// The row holds the time of its last take, not the start of its window.
		s := ratelimit.State{Value: b.state.Value, TS: t0.Add(30 * time.Minute)}
		if d := decide(t, r, s, t0.Add(30*time.Minute)); d.OK {
			t.Fatalf("start at %d minutes: %+v", i%60, d)
		}
	}
}

// Windows are of one length. Against a clock that observes daylight saving they start an hour later
// in summer.
func TestWindowsIgnoreDaylightSaving(t *testing.T) {
	t.Parallel()
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	midnight := time.Date(2024, 3, 30, 0, 0, 0, 0, berlin) // clocks go forward on the 31st
	l := define(t, ratelimit.FixedWindow{Rate: 1, Period: 24 * time.Hour, Start: midnight})
	b := row{}
	for day := range 5 {
		now := midnight.Add(time.Duration(day) * 24 * time.Hour)
		if d := b.take(t, l.For("key"), now); !d.OK {
			t.Errorf("day %d: %+v", day, d)
		}
		d := b.take(t, l.For("key"), now.Add(time.Hour))
		if want := now.Add(24 * time.Hour); d.OK || !d.RetryAt.Equal(want) {
			t.Errorf("day %d: %+v, want RetryAt %v", day, d, want)
		}
	}
	d := decide(t, l.For("key"), ratelimit.State{Value: 0, TS: midnight.Add(36 * time.Hour)},
		midnight.Add(37*time.Hour))
	if got := d.RetryAt.In(berlin).Format("15:04"); got != "01:00" {
		t.Errorf("after the change windows start at %s", got)
	}
}

// These values must never change: a release that moved them would move the windows of every limit
// in use.
func TestWindowPhaseOfNameAndKeyIsStable(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, key string
		period    time.Duration
		start     string
	}{
		{"partnerAPI", "tenant-1", time.Minute, "2024-03-01T11:59:34.888047Z"},
		{"partnerAPI", "tenant-2", time.Minute, "2024-03-01T11:59:46.516258Z"},
		{"partnerAPI", "", time.Minute, "2024-03-01T11:59:27.322985Z"},
		{"signUp", "", 24 * time.Hour, "2024-02-29T21:40:24.420787Z"},
		{"signUp", "203.0.113.7", time.Hour, "2024-03-01T11:35:11.121670Z"},
		{"ab", "c", 24 * time.Hour, "2024-02-29T20:00:13.041521Z"},
		{"a", "bc", 24 * time.Hour, "2024-02-29T20:14:42.027990Z"},
		{"größe", "日本", 333 * ms, "2024-03-01T11:59:59.977613Z"},
		{"x", "y", 30 * 24 * time.Hour, "2024-02-20T19:49:44.146693Z"},
	} {
		l := ratelimit.MustDefine(tc.name, ratelimit.FixedWindow{Rate: 1, Period: tc.period})
		r := l.Global()
		if tc.key != "" {
			r = l.For(tc.key)
		}
		for _, later := range []time.Duration{0, tc.period - us} {
			start, err := time.Parse(time.RFC3339Nano, tc.start)
			if err != nil {
				t.Fatal(err)
			}
			if d := decide(t, r, ratelimit.State{}, start.Add(later)); !d.State.TS.Equal(start) {
				t.Errorf("%q %q %v: a window starts at %s, want %s", tc.name, tc.key, tc.period,
					d.State.TS.Format(time.RFC3339Nano), tc.start)
			}
		}
	}
}

// A rule given for one call, a reset and a change of rate all keep the phase; a name or key of its
// own has its own.
func TestWindowPhaseDependsOnNameAndKeyAlone(t *testing.T) {
	t.Parallel()
	window := func(rate float64) ratelimit.Rule { return ratelimit.FixedWindow{Rate: rate, Period: time.Hour} }
	start := func(name, key string, rule ratelimit.Rule) time.Time {
		r := ratelimit.MustDefine(name, window(1)).For(key).Rule(rule)
		return decide(t, r, ratelimit.State{}, t0).State.TS
	}
	if a, b := start("ab", "c", window(1)), start("ab", "c", window(7)); !a.Equal(b) {
		t.Errorf("rates differ, and so do the phases: %v, %v", a, b)
	}
	if a, b := start("ab", "c", window(1)), start("a", "bc", window(1)); a.Equal(b) {
		t.Errorf(`("ab", "c") and ("a", "bc") share their phase`)
	}
}

func TestWindowPhasesOfKeysSpreadOverThePeriod(t *testing.T) {
	t.Parallel()
	for _, period := range []time.Duration{time.Second, time.Minute, 24 * time.Hour} {
		l := define(t, ratelimit.FixedWindow{Rate: 1, Period: period})
		const keys = 10_000
		var tenths [10]int
		for i := range keys {
			ts := decide(t, l.For(fmt.Sprintf("user:%d", i)), ratelimit.State{}, t0).State.TS
			tenths[10*(t0.Sub(ts))/period]++
		}
		for i, n := range tenths {
			if n < keys/10*8/10 || n > keys/10*12/10 {
				t.Errorf("%v: %d of %d keys start in the tenth %d", period, n, keys, i)
			}
		}
	}
}
