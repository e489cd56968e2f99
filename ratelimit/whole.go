package ratelimit

import (
	"database/sql"
	"slices"
	"time"

	"github.com/weir-go/weir/internal/limits/algebra"
	"github.com/weir-go/weir/internal/limits/spread"
	"github.com/weir-go/weir/shard"
)

// of returns c for a single shard, to read and write it like a balance of its own.
func (c *call) of(layout shard.Layout, i int) call {
	return c.part(layout, i, spread.OfShard(&c.Ask, layout.Shards, i))
}

// take is of for a take of count tokens.
func (c *call) take(layout shard.Layout, i int, count float64) call {
	return c.part(layout, i, spread.PartOf(&c.Ask, layout.Shards, i, count))
}

func (c *call) part(layout shard.Layout, i int, a algebra.Ask) call {
	r := *c
	if r.Ask = a; layout.Shards > 1 {
		r.args = nil
	}
	r.Shard, r.shards = layout.Row(i), 0
	return r
}

// resized returns c, a call for a shard of a layout, by the share of a shard of another one.
func (c *call) resized(from, to shard.Layout) call {
	r := *c
	size := float64(from.Shards) / float64(to.Shards)
	r.Capacity, r.Rate, r.Debt, r.args = r.Capacity*size, r.Rate*size, r.Debt*size, nil
	return r
}

// resized is call.resized for what was taken.
func (c *change) resized(from, to shard.Layout) change {
	r := *c
	r.call = c.call.resized(from, to)
	return r
}

// partly returns c as if it had taken only a share of its count.
func (c *change) partly(share float64) change {
	r := *c
	r.Count, r.used = r.Count*share, r.used*share
	r.Owed, r.Moved = r.Owed*share, r.Moved*share
	return r
}

// follow returns what c, a take from a shard of a former layout, is in the layout to.
func (c *change) follow(to shard.Layout) []change {
	from, i := shard.Address(c.Shard)
	of := c.resized(from, to)
	var all []change
	for _, o := range shard.Overlaps(from.Shards, i, to.Shards) {
		r := of.partly(o.Share)
		r.Shard = to.Row(o.Shard)
		all = append(all, r)
	}
	return all
}

// look is the answer to LookShards.
type look struct {
	number  float64
	shards  []int32
	values  []float64
	times   []int64
	pauses  []int64
	delays  []int64
	moves   []float64
	at      time.Time
	scanner func(any) sql.Scanner // of an array, for drivers that need one
}

func (l *look) dest() []any {
	d := []any{&l.number, &l.shards, &l.values, &l.times, &l.pauses, &l.delays, &l.moves, &l.at}
	if l.scanner != nil {
		for i := 1; i < len(d)-1; i++ {
			d[i] = l.scanner(d[i])
		}
	}
	return d
}

// repeats reports whether a shard was read twice.
func (l *look) repeats() bool {
	rows := l.shards
	if !slices.IsSorted(rows) { // they mostly come in the order of the index
		rows = slices.Sorted(slices.Values(rows))
	}
	for i := 1; i < len(rows); i++ {
		if rows[i-1] == rows[i] {
			return true
		}
	}
	return false
}

// whole returns the answer. It is not valid if the number in the head is that of no layout.
func (l *look) whole() (w *spread.Whole, valid bool) {
	layout, valid := shard.Numbered(l.number)
	if !valid {
		return nil, false
	}
	w = &spread.Whole{Layout: layout, Rows: make([]algebra.Balance, layout.Shards),
		At: l.at.UnixMicro()}
	for k, row := range l.shards {
		if l.values[k] == algebra.Closed && layout != shard.Single {
			continue // as if it was not there
		}
		w.Rows[row-layout.Row(0)] = algebra.Balance{
			Exists: true, Value: number(l.values[k]), TS: l.times[k], PausedUntil: min(l.pauses[k],
				algebra.EndOfTime), Delay: l.delays[k], Moved: l.moves[k],
		}
	}
	return w, true
}

// grantedParts is Granted for the parts of a call, which left the limit with b.
func grantedParts(parts []receipt, b algebra.Balance) algebra.Verdict {
	v := algebra.Verdict{OK: true, At: b.TS, After: b}
	for i := range parts {
		v.WaitFor(parts[i].Granted(parts[i].after))
	}
	return v
}
