package algebra

import (
	"math"

	"github.com/weir-go/weir/shard"
)

// Shares are the rules of a limit's shards. The first shard also gets what does not divide evenly.
type Shares struct{ First, Each Rule }

// Shares returns the rules of n shards.
func (a *Rule) Shares(n int) Shares {
	s := Shares{*a, *a}
	s.First.Capacity, s.Each.Capacity = shard.Split(a.Capacity, n)
	s.First.Rate, s.Each.Rate = shard.Split(a.Rate, n)
	s.First.Debt, s.Each.Debt = shard.Split(a.Debt, n)
	return s
}

// Of returns the rule of shard i.
func (s *Shares) Of(i int) *Rule {
	if i == 0 {
		return &s.First
	}
	return &s.Each
}

// MostShards returns the largest number of shards, up to n, that the rule can be divided into. Each
// shard of a bucket must get a token; those of a window whole ones, and all as many.
func (a *Rule) MostShards(n int) int {
	if !a.Windowed {
		return max(1, min(n, int(min(a.Capacity, shard.Max))))
	}
	for n = min(n, int(min(a.Rate, a.Capacity, shard.Max))); n > 1; n-- {
		if math.Mod(a.Rate, float64(n)) == 0 && math.Mod(a.Capacity, float64(n)) == 0 {
			return n
		}
	}
	return 1
}
