package ratelimit

import (
	"context"
	"maps"
	"math"
	"slices"

	"github.com/weir-go/weir/internal/limits/algebra"
	"github.com/weir-go/weir/internal/limits/spread"
	"github.com/weir-go/weir/shard"
)

// Where tokens go that come back to a shard of a former layout.

// followed returns the rows that have the tokens of closed rows now, which are sorted, and the
// closed rows once more if their lines move. If the limit was pruned because it was full, it is its
// row without shards that has them.
func (l *Limiter) followed(ctx context.Context, x executor, left []change) ([]change, error) {
	limits := slices.CompactFunc(callsOf(left),
		func(a, b call) bool { return a.Place == b.Place })
	looks, closed := l.looksAtShards(limits), forEach(limits, l.lookClosedOf)
	if err := x.run(ctx, slices.Concat(looks, closed)); err != nil {
		return nil, explain(ctx, err, "look at", limits)
	}
	seen, err := l.seen(ctx, x, looks, limits)
	if err != nil {
		return nil, err
	}
	var rows []change
	i := 0
	for k := range left {
		c := &left[k]
		if c.Place != limits[i].Place {
			i++
		}
		w := seen[i]
		from, nr := shard.Address(c.Shard)
		if w.Layout == from {
			continue
		}
		path := shard.Path(nr, closed[i].look.layouts(from, w.Layout)...)
		for _, r := range c.back(w, path) {
			_, to := shard.Address(r.Shard)
			w.Rows[to].Value += r.Count - r.used // what comes next finds it fuller
			rows = append(rows, r)
		}
		if n := c.unused(c.after, w.At); n > 0 {
			moves := *c
			moves.line = n
			rows = append(rows, moves)
		}
	}
	return rows, nil
}

// lookClosedOf returns a statement that reads which layouts a limit has had.
func (l *Limiter) lookClosedOf(c *call) *statement {
	return &statement{c: c, sql: l.sql.LookClosed, args: []any{c.Name, l.homes(c.Key), l.now()},
		look: new(look)}
}

// layouts returns the numbers of shards that a limit had from one layout to another, as far as its
// closed rows still tell.
func (l *look) layouts(from, to shard.Layout) (counts []int) {
	had := map[int]int{}
	for _, row := range l.shards {
		if !shard.IsRow(row) { // made by hand
			continue
		}
		layout, _ := shard.Address(row)
		if nr := layout.Generation; from.Generation < nr && nr < to.Generation {
			had[nr] = layout.Shards
		}
	}
	counts = append(counts, from.Shards)
	for _, nr := range slices.Sorted(maps.Keys(had)) {
		counts = append(counts, had[nr])
	}
	return append(counts, to.Shards)
}

// unused returns how much c gives back if its row is as b.
func (c *change) unused(b algebra.Balance, now int64) float64 {
	return c.Unused(b, algebra.Receipt{Count: c.Count, Left: c.Left}, now) - c.used
}

// back returns what c, a take from a shard of a former layout, gives back to the shards of the
// present one: to those that the shard has become, which lack these tokens. Others lack the tokens
// of other takes, which come back later. But if tokens have flown in meanwhile, those shards may be
// full. Then the rest goes to the shards with the fewest tokens.
func (c *change) back(w *spread.Whole, path []shard.Overlap) []change {
	n := c.Count - c.used
	switch {
	case n < 0:
		return c.charged(w, -n)
	case n == 0:
		return nil
	case c.Windowed && c.Owed > 0:
		return c.backAhead(w, path)
	}
	from, _ := shard.Address(c.Shard)
	of := c.resized(from, w.Layout)
	there, gives, rest := make([]spread.Part, w.Shards), make([]float64, w.Shards), n
	for i := range there {
		there[i] = spread.Part{Shard: i, Count: -of.At(w.Rows[i], w.At).Value, Most: math.Inf(1)}
	}
	for _, o := range path {
		p := &there[o.Shard]
		give := min(n*o.Share, max(0, of.Capacity+p.Count), rest)
		p.Count -= give
		gives[o.Shard], rest = give, rest-give
	}
	if rest > n*1e-9 { // more than was rounded
		for _, p := range spread.Level(there, rest) {
			gives[p.Shard] += p.Count
		}
	} else {
		gives[path[0].Shard] += rest
	}
	var all []change
	for i, give := range gives {
		if give > 0 {
			r := of.partly(give / n)
			r.Shard = w.Row(i)
			all = append(all, r)
		}
	}
	return all
}

// backAhead is back for a take that was reserved in a window. It gives to the shards that the old
// one has become, and that so have its debt. How much comes back depends on the line of the old
// shard, which is that of its closed row: the new ones may be made of several lines.
func (c *change) backAhead(w *spread.Whole, path []shard.Overlap) (all []change) {
	from, _ := shard.Address(c.Shard)
	of := c.resized(from, w.Layout)
	// given back as to a bucket, which reckons nothing; Owed still says whether c has waited
	of.Windowed, of.Credit, of.Owed = false, false, c.Owed-c.Credited()
	for _, o := range path {
		b := c.after
		b.PausedUntil = max(b.PausedUntil, w.Rows[o.Shard].Since()) // what flows in until then is in it
		if n := c.unused(b, w.At); n > 0 {
			r := of
			r.Shard, r.Count, r.used = w.Row(o.Shard), n*o.Share, 0
			all = append(all, r)
		}
	}
	return all
}
