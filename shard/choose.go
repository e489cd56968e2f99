package shard

// View is what a process knows of a shard without asking the database.
type View struct {
	// Tokens that it has by now, as far as is known: negative if it owes tokens.
	Tokens float64

	// Busy says that another connection of this process has lately taken from it, and may still
	// hold it.
	Busy bool
}

// better reports whether v is preferred: one that is not busy, and of two such the fuller one.
func (v View) better(w View) bool {
	if v.Busy != w.Busy {
		return w.Busy
	}
	return v.Tokens > w.Tokens
}

// most is the number of candidates. With twice as many shards as callers, others hold all of eight
// with odds of 1 in 256.
const most = 8

// draws is how many shards are drawn for each candidate, of which the best is taken.
const draws = 3

// Choose returns the shards from which to try to take count tokens, so that least or more are left
// in it. The best come first: take from the first that no other transaction has locked. It returns
// none if none is known to have enough. enough is how many have.
//
// Each is the best of three that are drawn with random, which must return a number from 0 to below
// its argument. See M. Mitzenmacher, The Power of Two Choices in Randomized Load Balancing, 2001.
// With three, the longest wait is a tenth shorter than with two (BenchmarkHotReserve, late-p99).
//
// own is the shard from which the same connection took last, or -1. It comes first if it has
// enough, no other connection has used it since, and neither of two others is free and much fuller:
// by more than its own tokens, or than count if it has fewer. So each connection has its own shard,
// and they do not conflict. While it has count tokens, Choose returns only this shard. In debt
// others follow: connections then change their shards, so another process may hold it.
func Choose(
	n, own int, count, least float64, view func(i int) View, random func(n int) int,
) (chosen []int, enough int) {
	stays := false
	if own >= 0 && own < n {
		if mine := view(own); mine.Tokens-count >= least && !mine.Busy {
			one, two := view(random(n)), view(random(n))
			if two.better(one) {
				one = two
			}
			stays = one.Busy || one.Tokens-mine.Tokens <= max(mine.Tokens, count)
			if stays && mine.Tokens >= count {
				return []int{own}, n
			}
		}
	}
	chosen = make([]int, 0, most)
	views, able := make([]View, n), make([]int, 0, n)
	for i := range n {
		switch views[i] = view(i); {
		case views[i].Tokens-count < least:
		case stays && i == own:
			chosen = append(chosen, i)
		default:
			able = append(able, i)
		}
	}
	enough = len(chosen) + len(able)
	for len(able) > 0 && len(chosen) < most {
		at := random(len(able))
		for range min(draws, len(able)) - 1 {
			if other := (at + 1 + random(len(able)-1)) % len(able); views[able[other]].better(
				views[able[at]],
			) {
				at = other
			}
		}
		chosen = append(chosen, able[at])
		able[at] = able[len(able)-1]
		able = able[:len(able)-1]
	}
	return chosen, enough
}
