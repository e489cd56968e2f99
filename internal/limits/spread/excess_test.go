package spread

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

// An excess is charged in full, to few shards, and no shard owes of it what another that is charged
// still has.
func TestExcessIsChargedToFewShards(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		share := float64(rapid.IntRange(1, 100).Draw(t, "share"))
		fullest := rapid.SampledFrom([]float64{0.01, 1}).Draw(t, "the most that is left of a share")
		var there []Part
		for i := range rapid.IntRange(1, 200).Draw(t, "shards") {
			there = append(there, Part{Shard: i, Most: math.Inf(1),
				Count: share * rapid.Float64Range(-2, fullest).Draw(t, "left")})
		}
		n := rapid.Float64Range(0.5, 5*share).Draw(t, "n")
		parts := Excess(there, n, share)
		sum, able := 0.0, 0
		left := make(map[int]float64)
		for _, q := range parts {
			sum += q.Count
			left[q.Shard] = there[q.Shard].Count - q.Count
		}
		for _, p := range there {
			if after, charged := left[p.Shard]; charged && after > 1e-9 {
				for _, other := range left {
					if other < -1e-9 {
						t.Fatalf("%v are left of one that is charged, and %v of another: %v", after, other, parts)
					}
				}
			}
			if p.Count >= n {
				able++
			}
		}
		if math.Abs(sum-n) > 1e-9*n || float64(len(parts)) > 4+2*math.Ceil(n/share) {
			t.Fatalf("%v in %d parts: %v", sum, len(parts), parts)
		}
		if able > 0 && len(parts) > 1 {
			t.Fatalf("%d shards have all of it, and %d are charged", able, len(parts))
		}
	})
}
