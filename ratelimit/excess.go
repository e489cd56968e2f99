package ratelimit

import (
	"context"
	"math"

	"github.com/weir-go/weir/internal/limits/algebra"
	"github.com/weir-go/weir/internal/limits/spread"
	"github.com/weir-go/weir/internal/limits/where"
	"github.com/weir-go/weir/shard"
)

// excess returns the rows to change when more was used than reserved. In a limit with shards the
// excess is charged to the shards that the tokens came from, if they have it, and otherwise to
// others. One shard would go into debt while others still have tokens, which would be granted on
// top.
func (l *Limiter) excess(ctx context.Context, x executor, rows []change) ([]change, error) {
	over := func(c change) bool { return c.Shard != alone && c.used > c.Count }
	var own []change
	for _, c := range rows {
		if over(c) {
			own = append(own, c)
		}
	}
	if len(own) == 0 {
		return rows, nil
	}
	short, err := l.short(ctx, x, own)
	if len(short) == 0 || err != nil {
		return rows, err
	}
	var limits, all []change
	beyond := map[where.Place]float64{}
	for _, c := range rows {
		if over(c) && short[c.Place] {
			if beyond[c.Place] == 0 {
				limits = append(limits, c)
			}
			beyond[c.Place] += c.used - c.Count
			c.used = c.Count
		}
		all = append(all, c)
	}
	seen, err := l.see(ctx, x, callsOf(limits))
	if err != nil {
		return nil, err
	}
	for i, w := range seen {
		all = append(all, limits[i].charged(w, beyond[limits[i].Place])...)
	}
	sortChanges(all)
	return all, nil
}

// charged divides a charge of n tokens, for c, over the shards that have them.
func (c *change) charged(w *spread.Whole, n float64) (all []change) {
	from, _ := shard.Address(c.Shard)
	of := c.resized(from, w.Layout)
	there := make([]spread.Part, w.Shards)
	for k := range there {
		there[k] = spread.Part{Shard: k, Most: math.Inf(1)}
		if b := w.Rows[k]; b.Exists {
			there[k].Count = of.At(b, w.At).Value
		} else if k == 0 && w.Layout == shard.Single {
			there[k].Count = algebra.Full // it was pruned, so it is full
		}
	}
	for _, p := range spread.Excess(there, n, of.Capacity) {
		r := of
		r.Shard, r.Count, r.used = w.Row(p.Shard), 0, p.Count
		all = append(all, r)
	}
	return all
}

// short looks at the rows of which more was used than taken, and returns the limits of those that
// do not have the rest.
func (l *Limiter) short(
	ctx context.Context, x executor, own []change,
) (map[where.Place]bool, error) {
	calls := callsOf(own)
	looks := forEach(calls, l.lookOf)
	if err := x.run(ctx, looks); err != nil {
		return nil, explain(ctx, err, "look at", calls)
	}
	short, charged := map[where.Place]bool{}, map[where.Row]float64{}
	for i, s := range looks {
		c, b := &own[i], s.balance()
		charged[c.Row] += c.used - c.Count
		if !b.Exists || s.closed() ||
			c.At(b, s.answer.at.UnixMicro()).Value < charged[c.Row] {
			short[c.Place] = true
		}
	}
	return short, nil
}
