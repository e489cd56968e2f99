package ratelimit

import (
	"context"
	"math"
	"slices"

	"github.com/weir-go/weir/shard"
)

// What is done to rows without a decision: to all rows of a limit, by a reset or a pause, or to those
// that a call has taken from, by what gives back or charges. A row that is closed is of a layout that is
// no more; then the same is done where its tokens are now.

// eachRow runs a statement for each row of the limits of calls. If closed is not nil, it makes others
// for each limit that has had other layouts: for those who wait in their rows. Those rows come before
// the present ones in the order in which everybody locks them.
func (l *Limiter) eachRow(
	ctx context.Context, x executor, calls []call, of func(*call) *statement, closed func(*call) []*statement,
) (done []*statement, err error) {
	for range 10 * rounds {
		var trip []*statement
		var from []int // the call of each
		for i := range calls {
			rows, err := l.rowsOf(ctx, x, &calls[i])
			if err != nil {
				return nil, err
			}
			if layout, _ := shard.Address(rows[0].shard); layout.Generation > 0 && closed != nil {
				for _, s := range closed(&calls[i]) {
					trip, from = append(trip, s), append(from, i)
				}
			}
			for k := range rows {
				trip, from = append(trip, of(&rows[k])), append(from, i)
			}
		}
		if x.single() && len(trip) > 1 {
			return nil, errUndecided
		}
		if err := x.run(ctx, trip); err != nil {
			return nil, err
		}
		var again []call
		for k, s := range trip {
			c := &calls[from[k]]
			switch {
			case s.once != nil:
			case !s.closed():
				done = append(done, s)
			case slices.ContainsFunc(again, func(a call) bool { return a.place() == c.place() }):
			default:
				seen, err := l.see(ctx, x, []call{*c})
				if err != nil {
					return nil, err
				}
				if seen[0].Layout == shard.Single { // the only row that there is, closed by hand
					done = append(done, s)
				} else {
					again = append(again, *c)
				}
			}
		}
		if len(again) == 0 {
			return done, nil
		}
		calls = again
	}
	return nil, errMoving
}

// rowsOf returns the rows of the limit of c, by the layout that it is known to have, or is given.
func (l *Limiter) rowsOf(ctx context.Context, x executor, c *call) ([]call, error) {
	layout, known := l.books.layout(c)
	if !known {
		layout = shard.Single
	}
	if layout.Shards < c.shards {
		seen, err := l.look(ctx, x, []call{*c})
		if err != nil {
			return nil, err
		}
		layout = seen[0].Layout
	}
	rows := make([]call, layout.Shards)
	for i := range rows {
		rows[i] = c.of(layout, i)
	}
	return rows, nil
}

// onRows runs a statement for each of some rows, if of makes one, in the order in which everybody locks
// them.
func (l *Limiter) onRows(
	ctx context.Context, x executor, rows []call, of func(*call) *statement,
) (done []*statement, err error) {
	for range 10 * rounds {
		var trip []*statement
		for i := range rows {
			if s := of(&rows[i]); s != nil {
				trip = append(trip, s)
			}
		}
		if len(trip) == 0 {
			return done, nil
		}
		if x.single() && len(trip) > 1 {
			return nil, errUndecided
		}
		if err := x.run(ctx, trip); err != nil {
			return nil, err
		}
		var left []call // rows that are closed
		for _, s := range trip {
			if s.closed() {
				left = append(left, *s.c)
			} else {
				done = append(done, s)
			}
		}
		if len(left) == 0 {
			return done, nil
		}
		if rows, err = l.followed(ctx, x, left); err != nil {
			return nil, err
		}
	}
	return nil, errMoving
}

// followed is where the tokens of closed rows are now. Those of a limit that was pruned, as it was full,
// are in the row of one without shards.
func (l *Limiter) followed(ctx context.Context, x executor, left []call) ([]call, error) {
	seen, err := l.see(ctx, x, left)
	if err != nil {
		return nil, err
	}
	var rows []call
	for i, w := range seen {
		if from, _ := shard.Address(left[i].shard); w.Layout != from {
			rows = append(rows, left[i].back(w)...)
		}
	}
	sortCalls(rows)
	return rows, nil
}

// back is what c, which is for a shard of a layout that is no more, gives back to another one. Its own
// part of that may have got tokens of other shards by layouts in between, and have no room: so it goes
// where the fewest are. But of what was reserved in a window it depends on the line how much comes back.
func (c *call) back(w *whole) []call {
	n := c.count - c.used
	if n <= 0 || c.windowed && c.owed > 0 {
		return c.follow(w.Layout)
	}
	from, _ := shard.Address(c.shard)
	size := float64(from.Shards) / float64(w.Shards)
	of := *c
	of.capacity, of.rate, of.debt, of.args = c.capacity*size, c.rate*size, c.debt*size, nil
	there := make([]part, w.Shards)
	for i := range there {
		there[i] = part{shard: i, count: -of.at(w.rows[i], w.at).value, most: math.Inf(1)}
	}
	var all []call
	for _, p := range level(there, n) {
		r, share := of, p.count/n
		r.shard = w.Row(p.shard)
		r.count, r.used, r.owed, r.moved = r.count*share, r.used*share, r.owed*share, r.moved*share
		all = append(all, r)
	}
	return all
}
