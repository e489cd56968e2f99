package spread

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-go/weir/internal/limits/algebra"
	"github.com/weir-go/weir/shard"
)

// A bucket without capacity grants reservations only, also of nothing: if they may not wait for long
// enough, they are denied, and RetryAt is when they may.
func TestShardsWithoutCapacityDenyWhatCannotWait(t *testing.T) {
	t.Parallel()
	for name, a := range map[string]algebra.Ahead{
		"Within":      {Reserve: true, Bounded: true, Within: 1e6},
		"MaxReserved": {Reserve: true},
	} {
		c := &algebra.Ask{Rule: algebra.Rule{Rate: 10, Period: 1e6, Debt: 10}, Ahead: a}
		row := algebra.Balance{Exists: true, Value: -50, TS: 1, PausedUntil: algebra.Open}
		w := &Whole{shard.Layout{Shards: 4, Generation: 1}, []algebra.Balance{row, row, row, row}, 1}
		if v := w.Decide(c); v.OK || v.RetryAt <= 1 {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

// Lines that start together would start more than the capacity at once if one of them let in more
// than a share: so a larger count is taken in parts, of which none is larger, as evenly as the
// shards stand. The parts add up to it.
func TestNoPartIsLargerThanAShare(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 12).Draw(t, "shards")
		capacity := float64(rapid.IntRange(n, 100*n).Draw(t, "capacity"))
		c := &algebra.Ask{Rule: algebra.Rule{Capacity: capacity, Rate: capacity, Period: 1e9, Debt: algebra.Full}}
		c.Reserve = true
		c.Count = rapid.Float64Range(0.01, capacity).Draw(t, "count") // less drowns in what may be reserved
		shares := c.Shares(n)
		w := &Whole{shard.Layout{Shards: n, Generation: 1}, make([]algebra.Balance, n), 1}
		for i := range w.Rows {
			has := shares.Of(i).Capacity
			w.Rows[i] = algebra.Balance{Exists: true, Value: rapid.Float64Range(-5*has, has).Draw(t,
				"value"), TS: 1, PausedUntil: algebra.Open}
		}
		p, ok := w.Plan(c, 1, false, nil)
		if !ok {
			t.Fatal("denied, with all that may be reserved")
		}
		if len(p.Able) > 0 {
			if c.Count > shares.Each.Capacity {
				t.Fatalf("%v from one shard of %v", c.Count, shares.Each.Capacity)
			}
			return
		}
		sum, deepest := 0.0, math.Inf(1)
		for _, q := range p.Parts {
			sum += q.Count
			if room := shares.Each.Capacity; p.Ahead && q.Count > room*(1+1e-9) && c.Count <= room*float64(n) {
				t.Fatalf("a part of %v in a shard of %v", q.Count, room)
			}
			deepest = min(deepest, w.Rows[q.Shard].Value-q.Count)
		}
		if math.Abs(sum-c.Count) > 1e-9*capacity {
			t.Fatalf("the parts are %v, want %v", sum, c.Count)
		}
		for _, q := range p.Parts { // what goes deepest goes no deeper than it must
			if left := w.Rows[q.Shard].Value - q.Count; p.Ahead && left > deepest+1e-6*capacity &&
				q.Count < shares.Each.Capacity*(1-1e-6) {
				t.Fatalf("a shard is left with %v, and another with %v", left, deepest)
			}
		}
	})
}

// Whoever can wait for a while only is not denied for one shard whose line is longer, if the others
// have room.
func TestAPartGoesToNoShardThatIsTooLate(t *testing.T) {
	t.Parallel()
	c := &algebra.Ask{Rule: algebra.Rule{Capacity: 5, Rate: 5, Period: 5000, Debt: algebra.Full}, Count: 3}
	c.Reserve, c.Bounded, c.Within, c.Credit = true, true, 200, true
	w := &Whole{shard.Layout{Shards: 5, Generation: 1}, make([]algebra.Balance, 5), 1}
	for i, value := range []float64{0, 0, -0.25, 0, 0.5} { // the third repays for 1,250 microseconds
		w.Rows[i] = algebra.Balance{Exists: true, Value: value, TS: 1, PausedUntil: algebra.Open}
	}
	p, ok := w.Plan(c, 1, false, nil)
	if !ok {
		t.Fatal("denied")
	}
	sum := 0.0
	for _, q := range p.Parts {
		sum += q.Count
		if q.Shard == 2 {
			t.Errorf("a part of %v in the shard that is too late", q.Count)
		}
	}
	if sum != 3 {
		t.Errorf("the parts are %v", sum)
	}
}

// whole is a limit of n shards that have these values.
func whole(values ...float64) *Whole {
	w := &Whole{shard.Layout{Shards: len(values), Generation: 1}, make([]algebra.Balance, len(values)), 1}
	for i, v := range values {
		w.Rows[i] = algebra.Balance{Exists: true, Value: v, TS: 1, PausedUntil: algebra.Open}
	}
	return w
}

// A shard that must not be used counts for nothing: neither alone nor for a part, in which case the
// others together grant.
func TestAPlanUsesOnlyTheShardsThatItMay(t *testing.T) {
	t.Parallel()
	c := &algebra.Ask{Rule: algebra.Rule{Capacity: 40, Rate: 40, Period: 1e9}, Count: 5}
	w := whole(10, 3, 3, 6)
	may := func(shards ...int) func(int) bool {
		return func(i int) bool { return slices.Contains(shards, i) }
	}
	if p, ok := w.Plan(c, 1, false, may(1, 2, 3)); !ok || !slices.Equal(p.Able, []int{3}) {
		t.Errorf("of the last three: %+v, %v, want the last alone", p, ok)
	}
	if p, ok := w.Plan(c, 1, false, may(1, 2)); !ok || len(p.Able) > 0 || len(p.Parts) != 2 {
		t.Errorf("of two that have 3 each: %+v, %v, want a part of each", p, ok)
	}
	if p, ok := w.Plan(c, 1, false, may(1)); ok {
		t.Errorf("of one that has 3: %+v", p)
	}
}

// A full limit grants what one row would, although neither its shares nor those of what a call must
// leave are whole: all but what it must leave, and all that may be reserved.
func TestRoundedSharesDenyNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 12).Draw(t, "shards")
		tokens := func(least int, name string) float64 {
			return float64(rapid.IntRange(least, 1000).Draw(t, name))
		}
		c := &algebra.Ask{Rule: algebra.Rule{Capacity: tokens(n, "capacity"), Rate: 10, Period: 1e9}}
		if rapid.Bool().Draw(t, "ahead") {
			c.Reserve, c.Debt = true, tokens(1, "debt")
			c.Count = c.Capacity + c.Debt
		} else {
			c.Count = min(tokens(1, "tenths")/10, c.Capacity)
			c.Leave = c.Capacity - c.Count
		}
		shares := c.Shares(n)
		values := make([]float64, n)
		for i := range values {
			values[i] = shares.Of(i).Capacity
		}
		p, ok := whole(values...).Plan(c, 1, false, nil)
		if !ok {
			t.Fatal("denied")
		}
		sum := 0.0
		for _, q := range p.Parts {
			sum += q.Count
		}
		if len(p.Able) == 0 && math.Abs(sum-c.Count) > 1e-14*(c.Count+c.Capacity) {
			t.Fatalf("the parts are %v", sum)
		}
	})
}

// The last token that a window may lend is lent, although it comes from shards that all owe as much.
func TestTheLastTokenIsReserved(t *testing.T) {
	t.Parallel()
	c := &algebra.Ask{Rule: algebra.Rule{Capacity: 9, Rate: 9, Period: 1e9, Windowed: true, Debt: 10}, Count: 1}
	c.Reserve = true
	if _, ok := whole(-3, -3, -3).Plan(c, 1, false, nil); !ok {
		t.Error("denied")
	}
}

// Who has lost to others comes back later, also if there is nothing to wait for.
func TestWhoHasLostDoesNotSpin(t *testing.T) {
	t.Parallel()
	for _, count := range []float64{0, 1} {
		c := &algebra.Ask{Rule: algebra.Rule{Capacity: 9, Rate: 9, Period: 1000}, Count: count}
		if v := whole(3, 3, 3).Lost(c); v.RetryAt < v.At+shortTransaction || v.RetryAt > v.At+longTransaction {
			t.Errorf("%v tokens: told to come back %d microseconds later", count, v.RetryAt-v.At)
		}
	}
}

// A reservation for which no shard alone has room takes what little a few of them have, and not a
// part from each shard: its transaction holds these rows, and others reserve in the rest.
func TestScarceRoomIsGatheredFromFewShards(t *testing.T) {
	t.Parallel()
	values := make([]float64, 32)
	for i := range values {
		values[i] = -0.5 // and each may owe 1
	}
	for _, test := range []struct {
		count  float64
		parts  int
		scarce bool
	}{{0.5, 0, false}, {1, 2, true}, {2, 4, true}, {5, 16, true}, {16, 32, true}} {
		c := &algebra.Ask{Rule: algebra.Rule{Capacity: 320, Rate: 32, Period: 1e9, Debt: 32}, Count: test.count}
		c.Reserve = true
		p, ok := whole(values...).Plan(c, 1, false, nil)
		if !ok || len(p.Parts) != test.parts || p.Scarce != test.scarce || p.Gathers() != test.scarce {
			t.Errorf("%v tokens: %d parts, scarce %v (%v); want %d, %v", test.count, len(p.Parts), p.Scarce,
				ok, test.parts, test.scarce)
		}
	}
	c := &algebra.Ask{Rule: algebra.Rule{Capacity: 320, Rate: 32, Period: 1e9, Debt: algebra.Full}, Count: 100}
	c.Reserve = true // more than a share, and there is room
	if p, ok := whole(values...).Plan(c, 1, false, nil); !ok || p.Scarce || len(p.Parts) < 10 {
		t.Errorf("a large count: %+v, %v", p, ok)
	}
}
