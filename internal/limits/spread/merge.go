package spread

import (
	"math"

	"github.com/weir-go/weir/internal/limits/algebra"
	"github.com/weir-go/weir/shard"
)

// Merged returns the balances of n shards of a limit, made of those of its shards, all at the same
// time.
//
// The parts of a balance have few digits. So they add up to it exactly, as long as what was taken
// has few digits, too. In a window no last token is then denied because the shards have changed.
//
// A new shard that comes from one old shard, or from several whose debts end together, continues
// with what they hold. Otherwise their lines end at different times, and work granted before the
// last one ends would come on top of it. So the new shard is paused until then, and its balance
// already includes what flows in meanwhile.
func Merged(a *algebra.Rule, was []algebra.Balance, n int) []algebra.Balance {
	rules := a.Shares(len(was))
	_, exp := math.Frexp(a.Capacity)
	unit := math.Ldexp(1, exp-44)
	all := make([]algebra.Balance, n)
	type piece struct {
		of, k  int // the k-th of the shards that the old one becomes
		shares []shard.Overlap
	}
	pieces := make([][]piece, n)
	now := int64(math.MinInt64)
	for i := range was {
		now = max(now, was[i].TS)
		shares := shard.Overlaps(len(was), i, n)
		for k, o := range shares {
			pieces[o.Shard] = append(pieces[o.Shard], piece{i, k, shares})
		}
	}
	for j, of := range pieces {
		ends, first := int64(algebra.Open), int64(math.MaxInt64)
		for _, p := range of {
			b, a := was[p.of], rules.Of(p.of)
			end := int64(algebra.Open)
			if b.Value < 0 {
				end = a.Earliest(b.Value, b.Since(), b.Since(), 0, 0)
			}
			end = max(end, b.PausedUntil)
			if b.PausedUntil != was[of[0].of].PausedUntil {
				first = math.MinInt64 // one of them waits for another merge
			}
			ends, first = max(ends, end), min(first, end)
		}
		at, until := now, int64(algebra.Open)
		if first < ends {
			at, until = ends, ends
		}
		all[j] = algebra.Balance{Exists: true, TS: now, PausedUntil: until}
		for _, p := range of {
			a := rules.Of(p.of)
			b := a.At(was[p.of], at)
			b.TS, b.PausedUntil = now, was[p.of].PausedUntil
			b.Value = portion(b.Value, p.shares, p.k, unit)
			b.Moved *= p.shares[p.k].Share
			all[j] = all[j].And(b)
		}
	}
	return all
}

// portion returns the part of x that the k-th of some shards gets, in whole units. The last one
// gets the rest.
func portion(x float64, shares []shard.Overlap, k int, unit float64) float64 {
	before, sum := 0.0, 0.0
	for _, s := range shares[:k] {
		sum += s.Share
		before = math.Round(x*sum/unit) * unit
	}
	if k == len(shares)-1 {
		return x - before
	}
	return math.Round(x*(sum+shares[k].Share)/unit)*unit - before
}
