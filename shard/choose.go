package shard

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
// The shard own, from which the same connection took last, comes first while it has enough and nobody else has come between:
// what is held by one connection at a time is never fought for. After it comes the better of two, of two others, and so on,
// drawn by random, which is to return a number from 0 to below its argument. Better is what is not busy, and of those the
// fuller one: M. Mitzenmacher, The Power of Two Choices in Randomized Load Balancing, 2001. own is -1 if there is none.
func Choose(n, own int, need float64, view func(i int) View, random func(n int) int) []int {
	enough := make([]int, 0, n)
	views := make([]View, n)
	for i := range n {
		if views[i] = view(i); views[i].Tokens >= need {
			enough = append(enough, i)
		}
	}
	chosen := make([]int, 0, most)
	if own >= 0 && own < n && views[own].Tokens >= need && !views[own].Busy {
		chosen = append(chosen, own)
		enough = without(enough, own)
	}
	better := func(a, b int) bool {
		if views[a].Busy != views[b].Busy {
			return views[b].Busy
		}
		return views[a].Tokens > views[b].Tokens
	}
	for len(enough) > 0 && len(chosen) < most {
		a := random(len(enough))
		if len(enough) > 1 {
			if b := (a + 1 + random(len(enough)-1)) % len(enough); better(enough[b], enough[a]) {
				a = b
			}
		}
		chosen = append(chosen, enough[a])
		enough[a] = enough[len(enough)-1]
		enough = enough[:len(enough)-1]
	}
	return chosen
}

func without(s []int, x int) []int {
	for i, y := range s {
		if x == y {
			return append(s[:i], s[i+1:]...)
		}
	}
	return s
}
