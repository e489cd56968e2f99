package shard

import "slices"

// View is what a process knows of a shard without asking the database.
type View struct {
	// Tokens that it has by now, as far as is known.
	Tokens float64

	// Busy says that another connection of this process has lately taken from it, and may still hold it.
	Busy bool
}

// most is the number of candidates: with twice as many shards as there are callers, the odds that others hold all of them
// are 1 in 256.
const most = 8

// Choose returns the shards from which to take need tokens, the best first: the first that nobody else holds is to be taken.
// None, if none is known to have as many.
//
// Each is the better of two that are drawn by random, which is to return a number from 0 to below its argument: better is what
// is not busy, and of those the fuller one. See M. Mitzenmacher, The Power of Two Choices in Randomized Load Balancing, 2001.
//
// The shard own, from which the same connection took last, goes before them, as what is held by one connection at a time is
// never fought for. But it must have enough, nobody else may have come between, and there must not be one among two that is
// free and has more than twice as much: a shard that is full gains nothing, so they are better emptied alike. own is -1 if
// there is none.
func Choose(n, own int, need float64, view func(i int) View, random func(n int) int) []int {
	enough := make([]int, 0, n)
	views := make([]View, n)
	for i := range n {
		if views[i] = view(i); views[i].Tokens >= need {
			enough = append(enough, i)
		}
	}
	chosen := make([]int, 0, most)
	better := func(a, b int) bool {
		if views[a].Busy != views[b].Busy {
			return views[b].Busy
		}
		return views[a].Tokens > views[b].Tokens
	}
	stay := own >= 0 && own < n && views[own].Tokens >= need && !views[own].Busy
	for len(enough) > 0 && len(chosen) < most {
		at := random(len(enough))
		if len(enough) > 1 {
			if other := (at + 1 + random(len(enough)-1)) % len(enough); better(enough[other], enough[at]) {
				at = other
			}
		}
		if best := views[enough[at]]; stay {
			stay = false
			if best.Busy || best.Tokens <= 2*views[own].Tokens {
				at = slices.Index(enough, own)
			}
		}
		chosen = append(chosen, enough[at])
		enough[at] = enough[len(enough)-1]
		enough = enough[:len(enough)-1]
	}
	return chosen
}
