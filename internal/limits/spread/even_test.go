package spread

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-go/weir/internal/limits/algebra"
	"github.com/weir-go/weir/shard"
)

// Equal parts add up exactly to the count. None is larger than half a share, or than half as large
// again as a call should wait for in one shard. The candidates are the fullest shards that may be
// used, each once, and each grants its part with what the take may leave.
func TestEqualPartsAreThoseOfTheFullestShards(t *testing.T) {
	t.Parallel()
	given := 0
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 40).Draw(t, "shards")
		share := float64(rapid.IntRange(8, 100).Draw(t, "share"))
		capacity := share * float64(n)
		c := &algebra.Ask{Rule: algebra.Rule{Capacity: capacity, Rate: capacity, Period: 1e9,
			Debt: capacity * rapid.SampledFrom([]float64{1, algebra.Full}).Draw(t, "debt")}}
		c.Reserve, c.Most = true, share*rapid.SampledFrom([]float64{0.1, 0.25, 1, 2}).Draw(t, "most")
		c.Count = float64(rapid.IntRange(1, int(4*share)).Draw(t, "count"))
		w := &Whole{shard.Layout{Shards: n, Generation: 1}, make([]algebra.Balance, n), 1}
		open := make([]bool, n)
		for i := range w.Rows {
			open[i] = rapid.IntRange(0, 3).Draw(t, "open") > 0
			w.Rows[i] = algebra.Balance{Exists: true, TS: 1, PausedUntil: algebra.Open,
				Value: rapid.Float64Range(-2*share, share).Draw(t, "value")}
		}
		e, ok := w.Even(c, 1, func(i int) bool { return open[i] })
		if !ok {
			return
		}
		given++
		part := c.Count / float64(e.Parts)
		sum := 0.0
		for range e.Parts {
			sum += part
		}
		if sum != c.Count || e.Parts < 2 || len(e.From) < e.Parts || c.Count <= min(c.Most, share) {
			t.Fatalf("%d parts of %v from %v, want %v", e.Parts, part, e.From, c.Count)
		}
		if part > min(1.5*c.Most, share/2)*(1+1e-9) {
			t.Fatalf("a part of %v in a shard of %v", part, share)
		}
		last := math.Inf(1)
		for k, i := range e.From {
			row := PartOf(c, n, i, part)
			after, ok := row.Grants(w.Rows[i])
			if !ok || !open[i] || after.Value > last || after.Value < e.Least || slices.Contains(e.From[:k], i) {
				t.Fatalf("%v of %v", e.From, w.Rows)
			}
			last = after.Value
		}
		for k, i := range e.From {
			if atOnce := w.Rows[i].Value >= part; atOnce != (k < e.AtOnce) {
				t.Fatalf("%d parts of %v at once, of %v", e.AtOnce, part, w.Rows)
			}
		}
		for i := range w.Rows {
			row := PartOf(c, n, i, part)
			if after, ok := row.Grants(w.Rows[i]); ok && open[i] && after.Value > last && !slices.Contains(e.From, i) {
				t.Fatalf("%v without %d of %v", e.From, i, w.Rows)
			}
		}
	})
	if given == 0 {
		t.Error("nothing was ever divided")
	}
}
