package dashboard

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-go/weir/ratelimit"
)

func outcome(limit, key string, ok bool) ratelimit.Outcome {
	return ratelimit.Outcome{Limit: limit, Key: key, OK: ok}
}

func event(ok bool, outcomes ...ratelimit.Outcome) ratelimit.DecidedEvent {
	return ratelimit.DecidedEvent{Result: ratelimit.Result{OK: ok, At: noon, Outcomes: outcomes}}
}

func TestWhatIsCounted(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	ahead := outcome("a", "k", true)
	ahead.RunAt = noon.Add(time.Second)
	shadow := outcome("a", "k", false)
	shadow.Shadow = true
	asked := []ratelimit.Request{search.For("k")}
	late, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	for name, tc := range map[string]struct {
		ctx   context.Context
		e     ratelimit.DecidedEvent
		limit string
		want  tally
	}{
		"granted":                       {e: event(true, outcome("a", "k", true)), want: tally{Granted: 1}},
		"granted ahead":                 {e: event(true, ahead), want: tally{Ahead: 1}},
		"denied":                        {e: event(false, outcome("a", "k", false)), want: tally{Denied: 1}},
		"denied for another limit":      {e: event(false, outcome("a", "k", true), outcome("b", "k", false))},
		"denied, beside one that would": {e: event(false, outcome("b", "k", true), outcome("a", "k", false)), want: tally{Denied: 1}},
		"a shadow's":                    {e: event(true, shadow), want: tally{Denied: 1}},
		"failed": {e: ratelimit.DecidedEvent{Requests: asked,
			Err: errors.New("away")}, limit: "search", want: tally{Failed: 1}},
		"the caller's end":         {e: ratelimit.DecidedEvent{Requests: asked, Err: context.Canceled}, limit: "search"},
		"of a deadline":            {ctx: late, e: ratelimit.DecidedEvent{Requests: asked, Err: context.DeadlineExceeded}, limit: "search", want: tally{Failed: 1}},
		"of a caller who has gone": {ctx: ended, e: ratelimit.DecidedEvent{Requests: asked, Err: errors.New("timeout")}, limit: "search"},
		"a lease's": {e: ratelimit.DecidedEvent{Requests: asked,
			Result: ratelimit.Result{OK: true}}, limit: "search", want: tally{Granted: 1}},
		"a lease's denial": {e: ratelimit.DecidedEvent{Requests: asked,
			Result: ratelimit.Result{RetryAt: noon}}, limit: "search", want: tally{Denied: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tc.ctx == nil {
				tc.ctx = t.Context()
			}
			if tc.limit == "" {
				tc.limit = "a"
			}
			synctest.Test(t, func(t *testing.T) {
				var d Decisions
				d.Decided(tc.ctx, tc.e)
				d.Transacted(tc.ctx, ratelimit.TransactedEvent{})
				if got := d.lastOf(tc.limit, time.Now(), 1); got != tc.want {
					t.Errorf("%+v, want %+v", got, tc.want)
				}
				if most := d.most(tc.limit, time.Now(), 9); (len(most) == 1) != (tc.want.Denied == 1) {
					t.Errorf("%+v", most)
				}
			})
		})
	}
}

// The ring says of each second what a list of all events says.
func TestTheLastFiveMinutesAreThoseOfAModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var d Decisions
		type count struct {
			second int64
			tally
		}
		var all []count
		now := noon
		for range rapid.IntRange(1, 60).Draw(t, "n") {
			now = now.Add(time.Duration(rapid.SampledFrom([]int{0, 0, 1, 2, 50, 149, 299, 300, 301,
				1000}).Draw(t, "after")) * time.Second)
			x := tally{Granted: uint32(rapid.IntRange(0, 3).Draw(t, "granted")),
				Denied: uint32(rapid.IntRange(0, 1).Draw(t, "denied"))}
			d.of("l").count(now, x, "k")
			all = append(all, count{now.Unix(), x})
		}
		now = now.Add(time.Duration(rapid.IntRange(0, 400).Draw(t, "then")) * time.Second)
		want := make([]tally, seconds)
		for _, c := range all {
			if age := now.Unix() - c.second; age < seconds {
				want[seconds-1-age].add(c.tally)
			}
		}
		for i, got := range d.history("l", now) {
			if got != want[i] {
				t.Fatalf("%d seconds ago: %+v, want %+v", seconds-1-i, got, want[i])
			}
		}
		if minute := d.lastOf("l", now, 60); minute.Granted > d.lastOf("l", now, seconds).Granted {
			t.Fatal("a minute has more than five")
		}
	})
}

func TestAClockThatIsSetBackLosesNothing(t *testing.T) {
	t.Parallel()
	var d Decisions
	d.of("l").count(noon, tally{Granted: 1}, "")
	d.of("l").count(noon.Add(-time.Hour), tally{Granted: 1}, "")
	if got := d.lastOf("l", noon, seconds); got.Granted != 2 {
		t.Errorf("%+v", got)
	}
}

func TestKeysThatWereDeniedAreForgottenAfterFiveMinutes(t *testing.T) {
	t.Parallel()
	for _, after := range []time.Duration{0, 149 * time.Second, 301 * time.Second, time.Hour} {
		var d Decisions
		d.of("l").count(noon, tally{Denied: 1}, "k")
		most := d.most("l", noon.Add(after), 9)
		if (len(most) == 1) != (after < 150*time.Second) {
			t.Errorf("after %v: %+v", after, most)
		}
	}
}

// Whatever a program makes up, it does not grow.
func TestDecisionsAreOfBoundedSize(t *testing.T) {
	t.Parallel()
	var d Decisions
	for i := range 1000 {
		d.Decided(t.Context(), event(false, outcome(fmt.Sprint("limit", i), fmt.Sprint("key", i), false)))
		d.Decided(t.Context(), event(false, outcome("limit0", fmt.Sprint("key", i), false)))
	}
	if len(d.limits) != mostLimits+1 {
		t.Errorf("%d limits", len(d.limits))
	}
	if n := len(d.limits["limit0"].denied[0]) + len(d.limits["limit0"].denied[1]); n > 2*mostFrequent {
		t.Errorf("%d keys", n)
	}
	if got := d.lastOf("", time.Now(), seconds).Denied; got != 1000-mostLimits {
		t.Errorf("%d of the others", got)
	}
}

func TestDecisionsAreCountedTogether(t *testing.T) {
	t.Parallel()
	var d Decisions
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 500 {
				d.Decided(t.Context(), event(true, outcome("a", "k", true)))
				d.history("a", time.Now())
			}
		})
	}
	wg.Wait()
	if got := d.lastOf("a", time.Now(), seconds); got.Granted != 4000 {
		t.Errorf("%+v", got)
	}
}

// Whatever comes more than a twentieth of the time is there, and its count is bounded on both
// sides.
func TestFrequentKeysAreFound(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var f frequent
		count := map[string]uint64{}
		n := rapid.IntRange(1, 400).Draw(t, "n")
		for range n {
			k := fmt.Sprint(rapid.IntRange(0, 60).Draw(t, "k"))
			if rapid.IntRange(0, 3).Draw(t, "hot") == 0 {
				k = "hot"
			}
			f.add(k)
			count[k]++
		}
		there := map[string]bool{}
		for _, o := range f {
			there[o.key] = true
			if o.times < count[o.key] || o.times-o.over > count[o.key] {
				t.Fatalf("%+v came %d times", o, count[o.key])
			}
		}
		for k, c := range count {
			if c > uint64(n)/mostFrequent && !there[k] {
				t.Fatalf("%s came %d of %d times", k, c, n)
			}
		}
	})
}

func BenchmarkDecided(b *testing.B) {
	var d Decisions
	e := event(true, outcome("a", "k", true))
	for b.Loop() {
		d.Decided(context.Background(), e)
	}
}
