package ratelimit_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-go/weir/ratelimit"
)

func bucketOf(rate, capacity float64) ratelimit.Rule {
	return ratelimit.TokenBucket{Rate: rate, Period: sec, Capacity: &capacity, MaxReserved: ratelimit.Tokens(100)}
}

func TestNewNumbersOfALiveLimitTakeEffectAtOnce(t *testing.T) {
	t.Parallel()
	l := define(t, bucketOf(1, 10))
	full, debt := ratelimit.State{Value: 10, TS: t0}, ratelimit.State{Value: -50, TS: t0}
	for _, tc := range []struct {
		name  string
		rule  ratelimit.Rule
		state ratelimit.State
		after time.Duration
		left  float64
	}{
		{"capacity lowered: the credit above it is dropped", bucketOf(1, 4), full, 0, 4},
		{"capacity raised: nothing is given", bucketOf(1, 40), full, 0, 10},
		{"capacity raised: the balance grows beyond the old one", bucketOf(1, 40), full, 5 * sec, 15},
		{"rate raised", bucketOf(5, 100), full, 2 * sec, 20},
		{"rate lowered", bucketOf(0.5, 100), full, 2 * sec, 11},
		{"capacity lowered: debt is kept", bucketOf(1, 4), debt, 0, -50},
		{"rate raised: debt is repaid faster", bucketOf(5, 4), debt, 2 * sec, -40},
		{"bucket to window: debt is kept", ratelimit.FixedWindow{Rate: 7, Period: time.Hour, Start: t0}, debt, 59 * time.Minute, -50},
	} {
		d := decide(t, l.For("key").Count(0).OrReserve().Rule(tc.rule), tc.state, t0.Add(tc.after))
		if !d.OK || !near(d.State.Value, tc.left, 1e-9) {
			t.Errorf("%s: %+v, want %v left", tc.name, d, tc.left)
		}
	}
}

// A debt that another rule ran up is neither forgiven nor an obstacle for ever: RetryAt is when the
// narrower rule's bound is met.
func TestDebtBeyondALoweredBoundIsDeniedUntilItIsRepaidThatFar(t *testing.T) {
	t.Parallel()
	l := define(t, bucketOf(1, 10))
	narrow := ratelimit.TokenBucket{Rate: 1, Period: sec, Capacity: ratelimit.Tokens(10),
		MaxReserved: ratelimit.Tokens(5)}
	b := row{ratelimit.State{Value: -50, TS: t0}}
	d := b.take(t, l.For("key").Count(1).OrReserve().Rule(narrow), t0)
	if d.OK || d.State.Value != -50 || !d.RetryAt.Equal(t0.Add(46*sec)) {
		t.Errorf("%+v", d)
	}
	d = b.take(t, l.For("key").Count(1).OrReserve(), t0)
	if !d.OK || d.State.Value != -51 {
		t.Errorf("by the wider rule: %+v", d)
	}
}

// Two releases with different numbers write one row in turn. At one instant the balance only ever
// goes down; the time between two calls is worth no more than the more generous rule makes of it.
func TestFlappingNumbersMintNothing(t *testing.T) {
	check(t, func(t *rapid.T) {
		rules := rapid.SliceOfN(anyTerms(), 2, 4).Draw(t, "rules")
		l := define(t, rules[0].rule())
		most, owed := 0.0, 1e6
		for i, r := range rules {
			rules[i].window, rules[i].unsetReserve = false, true
			most, owed = max(most, r.rate/float64(r.period)), min(owed, r.rate)
		}
		b := row{ratelimit.State{Value: rapid.Float64Range(-owed, 1e6).Draw(t, "value"), TS: t0}}
		now := t0
		for range 30 {
			pause := time.Duration(rapid.SampledFrom([]int64{0, 0, 0, 1000}).Draw(t, "pause")) * us
			now = now.Add(pause)
			before := b.state.Value
			r := rules[rapid.IntRange(0, len(rules)-1).Draw(t, "rule")]
			if d := b.take(t, l.For("key").Count(0).OrReserve().Rule(r.rule()), now); !d.OK {
				t.Fatalf("denied: %+v", d)
			}
			if gained := b.state.Value - before; gained > most*float64(pause)*(1+1e-9)+1e-9 {
				t.Fatalf("%v gained in %v by %+v", gained, pause, r)
			}
		}
	})
}
