package ratelimit

import (
	"context"

	"github.com/weir-go/weir/shard"
)

// What is done to a limit with shards as a whole is done to each of its rows, by its share: a reset, a pause, what repays a
// debt or adds to it.

// spread returns the rows of c: itself, or those of all its shards with a share of what c has taken. A layout that is not known is
// looked for, unless c has one by which to try.
func (l *Limiter) spread(ctx context.Context, x executor, c *call) ([]call, error) {
	n := max(l.books.layout(c), 1)
	if n == 1 && c.layout > 1 {
		n = c.layout
	}
	if n < c.shards {
		seen, err := l.look(ctx, x, []call{*c})
		if err != nil {
			return nil, err
		}
		n = seen[0].n
	}
	if n == 1 {
		r := *c
		r.shard = shard.Row(1, 0)
		return []call{r}, nil
	}
	rows := make([]call, n)
	for i := range rows {
		rows[i] = c.share(n, i)
	}
	return rows, nil
}

// over runs a statement for each row of calls, if of makes one, and once more for those that were closed, by the layout that
// their limits have by then.
func (l *Limiter) over(ctx context.Context, x executor, calls []call, of func(*call) *statement) (done []*statement, err error) {
	for range rounds {
		var trip []*statement
		var from []int // the call of each
		for i := range calls {
			rows, err := l.spread(ctx, x, &calls[i])
			if err != nil {
				return nil, err
			}
			for k := range rows {
				if s := of(&rows[k]); s != nil {
					trip, from = append(trip, s), append(from, i)
				}
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
		moved := map[int]bool{}
		alone := map[int]bool{} // it was the row of a limit without shards
		for k, s := range trip {
			if s.closed() {
				moved[from[k]] = true
				alone[from[k]] = s.c.shard == shard.Row(1, 0)
			} else {
				done = append(done, s)
			}
		}
		if len(moved) == 0 {
			return done, nil
		}
		var again []call
		for i := range calls {
			if !moved[i] {
				continue
			}
			c := calls[i]
			c.layout, c.parts = 0, nil
			seen, err := l.look(ctx, x, []call{c})
			if err != nil {
				return nil, err
			}
			if seen[0].n > 1 || !alone[i] {
				again = append(again, c)
				continue
			}
			for k, s := range trip { // the only row that there is, closed by hand
				if from[k] == i {
					done = append(done, s)
				}
			}
		}
		calls = again
	}
	return nil, errMoving
}

// give gives back what c took, but for what was used of it, to the shards that it came from. If the limit is in debt by now, or
// has another layout, it is given to all of its shards alike.
func (l *Limiter) give(ctx context.Context, x executor, c *call, used float64, move bool) error {
	if c.count == 0 {
		return nil // nor has it shares
	}
	if c.parts == nil {
		_, err := l.over(ctx, x, []call{*c}, func(row *call) *statement {
			return l.giveOf(row, portion(used, row), move)
		})
		return err
	}
	rows, trip := make([]call, len(c.parts)), make([]*statement, len(c.parts))
	for k, p := range c.parts {
		rows[k] = c.of(c.layout, p.shard)
		rows[k].count, rows[k].owed = p.count, -plenty // nothing of it is left in a later window
		trip[k] = l.giveOf(&rows[k], used*p.count/c.count, move)
		trip[k].sql = l.sql.of(c).giveShard
	}
	if x.single() && len(trip) > 1 {
		return errUndecided
	}
	if err := x.run(ctx, trip); err != nil {
		return err
	}
	rest := *c
	rest.count, rest.owed, rest.parts = 0, -plenty, nil
	restUsed := 0.0
	for k, s := range trip {
		if !s.found {
			rest.count += rows[k].count
			restUsed += used * rows[k].count / c.count
		}
	}
	if rest.count == 0 {
		return nil
	}
	if x.single() {
		return errUndecided
	}
	if _, err := l.look(ctx, x, []call{rest}); err != nil {
		return err
	}
	_, err := l.over(ctx, x, []call{rest}, func(row *call) *statement {
		return l.giveOf(row, portion(restUsed, row), move)
	})
	return err
}

// portion is the share of x of a row.
func portion(x float64, row *call) float64 {
	n, i := shard.Address(row.shard)
	first, each := shard.Split(x, n)
	if i == 0 {
		return first
	}
	return each
}
