package ratelimit

import (
	"cmp"
	"math"
	"slices"

	"github.com/weir-go/weir/internal/algebra"
)

// part is what is to be taken from one shard.
type part struct {
	shard int
	count float64 // tokens
	most  float64 // that may be taken
	least float64 // that must be left
}

// plan says how a limit grants a call.
type plan struct {
	// the shards that would grant the call alone, the fullest first. If there are none:
	able  []int
	parts []part // what to take from several, in the order of their rows
	ahead bool   // the parts are reserved
}

// plan returns how the limit would grant the call at now. If no shard grants it alone, plan gathers
// tokens from the fullest shards, or reserves in several so that their lines stay level. With ahead
// it only reserves. It uses several shards only if free allows each; nil allows all.
func (c *call) plan(w *whole, now int64, ahead bool, free func(int) bool) (p plan, ok bool) {
	shares := c.Shares(w.Shards)
	most, share := c.largest(&shares)
	if most < share && most*float64(w.Shards) >= c.Count {
		if p, ok := c.planBy(w, now, ahead, free, shares, most); ok {
			return p, true
		}
	}
	return c.planBy(w, now, ahead, free, shares, share)
}

// planBy is plan for parts of at most so many tokens, unless they must be larger.
func (c *call) planBy(
	w *whole, now int64, ahead bool, free func(int) bool, shares algebra.Shares, most float64,
) (p plan, ok bool) {
	there := make([]part, 0, w.Shards)
	var loose []part // the shards that are not paused
	row := c.of(w.Layout, 0)
	var values []float64
	left := -c.Count
	for i := range w.Shards {
		row.Rule, row.Leave = *shares.Of(i), c.leaves(w.Shards, i)
		b := row.At(w.rows[i], now)
		values = append(values, b.Value)
		left += max(0, b.Value)
		if one := (part{shard: i, count: b.Value - row.Leave,
			most: shares.Each.Capacity}); free == nil || free(i) {
			if there = append(there, one); b.PausedUntil == algebra.Open {
				loose = append(loose, one)
			}
		}
		if c.Count <= most || b.Value >= c.Count || w.Shards == 1 || !c.Pausable() {
			if _, ok := row.Grants(b); ok {
				p.able = append(p.able, i)
			}
		}
	}
	if w.Shards > 1 && left < c.Leave && c.Leave > 0 {
		return plan{}, false
	}
	if len(p.able) > 0 {
		slices.SortStableFunc(p.able, func(a, b int) int {
			return cmp.Compare(values[b], values[a])
		})
		return p, true
	}
	if w.Shards == 1 || len(there) == 0 {
		return p, false
	}
	if !ahead {
		if p.parts, ok = gather(loose, c.Count); ok {
			for k := range p.parts {
				q := &p.parts[k]
				// the second may be rounded
				q.least = min(c.leaves(w.Shards, q.shard), values[q.shard]-q.count)
			}
			return p, true
		}
	}
	if !c.Pausable() {
		return p, false
	}
	// Use few rows, but so many that none has to give more than half a share unless it has more
	// tokens than others: then their lines can be level. If MaxReserved is nearly reached, more
	// shards may have room when these have not.
	slices.SortStableFunc(there, byCount)
	if k := math.Ceil(c.Count / min(most, shares.Each.Capacity/2)); 1 < k &&
		k < float64(len(there)) {
		if p, ok := c.planAhead(w, now, there[:int(k)]); ok {
			return p, true
		}
	}
	return c.planAhead(w, now, there)
}

// planAhead reserves in some shards, and leaves out those that do not grant their parts. A part may
// be larger than it should only if all shards together have no room.
func (c *call) planAhead(w *whole, now int64, there []part) (p plan, ok bool) {
	p.ahead = true
	for {
		room := 0.0
		for _, q := range there {
			room += q.most
		}
		if len(there) == 0 || room < c.Count && len(there) < w.Shards {
			return plan{}, false
		}
		p.parts = level(there, c.Count)
		var denied []int
		for k := range p.parts {
			q := &p.parts[k]
			row := c.take(w.Layout, q.shard, q.count)
			if _, ok := row.Grants(row.At(w.rows[q.shard], now)); !ok {
				denied = append(denied, q.shard)
			}
			q.least = max(q.least, row.Least())
		}
		if len(denied) == 0 {
			return p, true
		}
		there = slices.DeleteFunc(slices.Clone(there), func(q part) bool {
			return slices.Contains(denied, q.shard)
		})
	}
}

// byCount sorts the fullest first.
func byCount(a, b part) int { return cmp.Or(cmp.Compare(b.count, a.count), a.shard-b.shard) }

func byShard(a, b part) int { return a.shard - b.shard }

// gather takes n from the fullest shards, and from as few as possible.
func gather(there []part, n float64) (parts []part, ok bool) {
	there = slices.SortedStableFunc(slices.Values(there), byCount)
	sum := 0.0
	for _, p := range there {
		sum += max(0, p.count)
	}
	if !(sum >= n) {
		return nil, false
	}
	for _, p := range there {
		if p.count < 0 || p.count == 0 && n > 0 {
			break
		}
		p.count = min(p.count, n)
		parts = append(parts, p)
		if n -= p.count; n <= 0 {
			slices.SortFunc(parts, byShard)
			return parts, true
		}
	}
	return nil, false
}

// level takes n so that the shards from which it takes are left with the same number of tokens. It
// takes more than most from a shard only if all of them together have no room.
func level(there []part, n float64) []part {
	there = slices.SortedStableFunc(slices.Values(there), byCount)
	room := 0.0
	for _, p := range there {
		room += p.most
	}
	if room < n*(1-1e-9) { // a share may have been rounded
		for k := range there {
			there[k].most = math.Inf(1)
		}
	}
	taken := func(left float64) (sum float64) {
		for _, p := range there {
			sum += min(p.most, max(0, p.count-left))
		}
		return sum
	}
	left, above := there[len(there)-1].count-n, there[0].count
	for range 64 {
		if middle := left + (above-left)/2; taken(middle) >= n {
			left = middle
		} else {
			above = middle
		}
	}
	// Round to few digits, like the parts of what was divided (see shard.Split). Then they add up
	// without rounding, and a debt of ten tokens does not become one that a window of ten cannot
	// repay.
	if _, exp := math.Frexp(max(math.Abs(there[0].count), n)); n > 0 {
		left = math.Ldexp(math.Round(math.Ldexp(left, 44-exp)), exp-44)
	}
	var parts []part
	rest := n
	for _, p := range there {
		had := p.count
		if p.count = min(p.most, max(0, had-left), rest); p.count <= n*1e-9 { // only rounding
			continue
		}
		rest -= p.count
		p.least = had - 3*p.count
		parts = append(parts, p)
	}
	if len(parts) == 0 {
		parts = append(parts, part{shard: there[0].shard, least: math.Inf(-1)})
	}
	if last := &parts[len(parts)-1]; rest > 0 { // by rounding
		last.count += rest
		last.least -= rest
	}
	slices.SortFunc(parts, byShard)
	return parts
}
