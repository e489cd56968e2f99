// Package spread is the arithmetic of limits with several shards: what they grant as one whole, how
// a count is divided over them, and what becomes of them when their number changes. It is pure,
// like package algebra: it knows neither rows nor statements, and reads no clock.
//
// A limit of n shards is n balances, each with an n-th of its capacity, of its rate and of
// MaxReserved. Each is a limit by itself, with its own debt and line. So no more than capacity +
// rate*t is granted in all, as long as no call takes more than a share from one shard: otherwise
// lines that start at the same time could start work for more than the capacity at once. A larger
// count is taken from several shards, in parts, and the work may run when all parts may.
package spread

import (
	"slices"

	"github.com/weir-go/weir/internal/limits/algebra"
	"github.com/weir-go/weir/shard"
)

// Whole is a limit as it was read: the shards of its layout. Shards that were never used do not
// exist.
type Whole struct {
	shard.Layout
	Rows []algebra.Balance
	At   int64 // by the clock
}

// Lacks reports whether a shard is missing that should exist according to the head: somebody has
// deleted it by hand.
func (w *Whole) Lacks() bool {
	return w.Layout != shard.Single && slices.ContainsFunc(w.Rows, func(b algebra.Balance) bool {
		return !b.Exists
	})
}

// Sum returns the balance of a limit at now: its shards added up.
func (w *Whole) Sum(a *algebra.Rule, now int64) algebra.Balance {
	shares := a.Shares(w.Shards)
	b := shares.Of(0).At(w.Rows[0], now)
	for i := 1; i < w.Shards; i++ {
		b = b.And(shares.Of(i).At(w.Rows[i], now))
	}
	return b
}

// OfShard returns the call for shard i of n, to read and write it like a balance of its own.
func OfShard(a *algebra.Ask, n, i int) algebra.Ask {
	r, shares := *a, a.Shares(n)
	r.Rule, r.Leave = *shares.Of(i), leaves(a, n, i)
	return r
}

// PartOf is OfShard for a take of count tokens.
func PartOf(a *algebra.Ask, n, i int, count float64) algebra.Ask {
	r := OfShard(a, n, i)
	if r.Count = count; a.Count > 0 && a.Before > 0 {
		r.Before *= count / a.Count
	}
	return r
}

// leaves returns what a call must leave in one of n shards: its part of Leave. Concurrent calls may
// each have seen enough in all shards; this keeps them from leaving less together.
func leaves(a *algebra.Ask, n, i int) float64 {
	first, each := shard.Split(a.Leave, n)
	if i == 0 {
		return first
	}
	return each
}

// Largest returns how much the call should wait for in one shard at most, and how much it may: a
// share, with room for rounding.
func Largest(a *algebra.Ask, s *algebra.Shares) (most, share float64) {
	share = s.Each.Capacity * (1 + 1e-9)
	if a.Most > 0 {
		return min(share, a.Most), share
	}
	return share, share
}

// Decide decides as the limit as a whole does.
func (w *Whole) Decide(a *algebra.Ask) algebra.Verdict {
	if w.Layout == shard.Single {
		return a.Decide(w.Rows[0], w.At)
	}
	before := w.Sum(&a.Rule, w.At)
	if p, ok := w.Plan(a, w.At, false, nil); ok {
		after := &Whole{w.Layout, slices.Clone(w.Rows), w.At}
		parts := p.Parts
		if len(p.Able) > 0 {
			parts = []Part{{Shard: p.Able[0], Count: a.Count}}
		}
		v := algebra.Verdict{OK: true, At: w.At, Before: before}
		for _, q := range parts {
			row := PartOf(a, w.Shards, q.Shard, q.Count)
			b := row.At(w.Rows[q.Shard], w.At)
			b.Value -= q.Count
			after.Rows[q.Shard] = b
			v.WaitFor(row.Granted(b))
		}
		v.After = after.Sum(&a.Rule, w.At)
		return v
	}
	// The shards need not be paused for the same time: see Merged.
	guess := float64(w.At)
	if !a.Pausable() {
		guess = max(guess, float64(before.PausedUntil))
	}
	guess += max(0, a.Demand()-before.Value) * float64(a.Period) / a.Rate
	at := algebra.Search(w.At, algebra.EndOfTime, guess, func(t int64) bool {
		_, ok := w.Plan(a, t, false, nil)
		return ok
	})
	return algebra.Verdict{At: w.At, Before: before, After: before, RetryAt: at}
}

// Lost returns a denial although the limit has enough tokens, because other calls are taking them.
// RetryAt is when as many tokens have come, or the other transactions have probably ended.
func (w *Whole) Lost(a *algebra.Ask) algebra.Verdict {
	b := w.Sum(&a.Rule, w.At)
	anew := a.Earliest(0, w.At, w.At, min(a.Count, a.Capacity), 0)
	anew = max(anew, w.At+shortTransaction)
	return algebra.Verdict{At: w.At, Before: b, After: b, RetryAt: min(anew, w.At+longTransaction)}
}

// longTransaction is within how many microseconds after its take a transaction usually ends.
// shortTransaction is the least that it takes: a caller that comes back at once would only spin.
const (
	longTransaction  = 100_000
	shortTransaction = 1_000
)
