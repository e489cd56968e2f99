package ratelimit

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-go/weir/shard"
)

// Lines that start together would start more than the capacity at once if one of them let in more than a share: so a
// larger count is taken in parts, of which none is larger, as evenly as the shards stand. The parts add up to it.
func TestNoPartIsLargerThanAShare(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 12).Draw(t, "shards")
		capacity := float64(rapid.IntRange(n, 100*n).Draw(t, "capacity"))
		c := &call{algebra: algebra{capacity: capacity, rate: capacity, period: 1e9, debt: maxTokens}, name: "l"}
		c.reserve = true
		c.count = rapid.Float64Range(0.01, capacity).Draw(t, "count") // less drowns in what may be reserved
		shares := c.shares(n)
		w := &whole{shard.Layout{Shards: n, Generation: 1}, make([]balance, n), 1}
		for i := range w.rows {
			has := shares.of(i).capacity
			w.rows[i] = balance{true, rapid.Float64Range(-5*has, has).Draw(t, "value"), 1, open, 0, 0}
		}
		p, ok := c.plan(w, 1, false, nil)
		if !ok {
			t.Fatal("denied, with all that may be reserved")
		}
		if len(p.able) > 0 {
			if c.count > shares.each.capacity {
				t.Fatalf("%v from one shard of %v", c.count, shares.each.capacity)
			}
			return
		}
		sum, deepest := 0.0, math.Inf(1)
		for _, q := range p.parts {
			sum += q.count
			if room := shares.each.capacity; p.ahead && q.count > room*(1+1e-9) && c.count <= room*float64(n) {
				t.Fatalf("a part of %v in a shard of %v", q.count, room)
			}
			deepest = min(deepest, w.rows[q.shard].value-q.count)
		}
		if math.Abs(sum-c.count) > 1e-9*capacity {
			t.Fatalf("the parts are %v, want %v", sum, c.count)
		}
		for _, q := range p.parts { // what goes deepest goes no deeper than it must
			if left := w.rows[q.shard].value - q.count; p.ahead && left > deepest+1e-6*capacity && q.count < shares.each.capacity*(1-1e-6) {
				t.Fatalf("a shard is left with %v, and another with %v", left, deepest)
			}
		}
	})
}

// Whoever can wait for a while only is not denied for one shard whose line is longer, if the others have room.
func TestAPartGoesToNoShardThatIsTooLate(t *testing.T) {
	t.Parallel()
	c := &call{algebra: algebra{capacity: 5, rate: 5, period: 5000, debt: maxTokens}, name: "l", count: 3}
	c.reserve, c.bounded, c.within, c.credit = true, true, 200, true
	w := &whole{shard.Layout{Shards: 5, Generation: 1}, make([]balance, 5), 1}
	for i, value := range []float64{0, 0, -0.25, 0, 0.5} { // the third repays for 1,250 microseconds
		w.rows[i] = balance{true, value, 1, open, 0, 0}
	}
	p, ok := c.plan(w, 1, false, nil)
	if !ok {
		t.Fatal("denied")
	}
	sum := 0.0
	for _, q := range p.parts {
		sum += q.count
		if q.shard == 2 {
			t.Errorf("a part of %v in the shard that is too late", q.count)
		}
	}
	if sum != 3 {
		t.Errorf("the parts are %v", sum)
	}
}
