package ratelimit

import (
	"context"
	"slices"

	"github.com/weir-go/weir/shard"
)

// What is done to a limit with shards as a whole is done to each of its rows, by its share: a reset, a pause, what repays a
// debt or adds to it.

// spread returns the rows of c: itself, or those of all its shards with a share of what c has taken. A layout that is not known is
// looked for, unless c has one by which to try.
func (l *Limiter) spread(ctx context.Context, x executor, c *call) ([]call, error) {
	n := l.books.layout(c)
	if n == 0 {
		n = max(1, c.layout)
	}
	if n < c.shards || !x.known(c) {
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
	for range 10 * rounds {
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
		sharded := slices.ContainsFunc(trip, func(s *statement) bool { return s.c.shard != shard.Row(1, 0) })
		undo, err := l.guarded(ctx, x, trip, sharded)
		if err != nil {
			return nil, err
		}
		var stand []*statement
		moved := map[int]bool{}
		alone := map[int]bool{} // it was the row of a limit without shards
		for k, s := range trip {
			if s.closed() {
				moved[from[k]] = true
				alone[from[k]] = s.c.shard == shard.Row(1, 0)
			} else {
				stand = append(stand, s)
			}
		}
		if len(moved) == 0 {
			return append(done, stand...), nil
		}
		if sharded {
			for i := range moved {
				x.wrong(calls[i])
			}
			if err := undo(ctx); err != nil {
				return nil, err
			}
		} else {
			done = append(done, stand...)
		}
		var again []call
		for i := range calls {
			if !moved[i] {
				if sharded {
					again = append(again, calls[i])
				}
				continue
			}
			c := calls[i]
			c.layout, c.parts = 0, nil
			seen, err := l.look(ctx, x, []call{c})
			if err != nil {
				return nil, err
			}
			if seen[0].n > 1 || !alone[i] {
				c.layout = seen[0].n
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
	if n := l.books.layout(c); c.parts == nil || n != 0 && n != c.layout || l.books.owes(c) || !x.known(c) {
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
	undo, err := l.guarded(ctx, x, trip, true)
	if err != nil || !slices.ContainsFunc(trip, func(s *statement) bool { return !s.found || s.closed() }) {
		return err
	}
	seen, err := l.see(ctx, x, []call{*c}) // and gives the limit no other shards: rows of these are held
	if err != nil {
		return err
	}
	left := false
	for k, s := range trip {
		left = left || (!s.found || s.closed()) && (seen[0].n != c.layout || seen[0].rows[c.parts[k].shard].value < 0)
	}
	if !left { // of a window that has ended
		return nil
	}
	x.wrong(*c)
	if err := undo(ctx); err != nil {
		return err
	}
	all := *c
	all.owed, all.parts = -plenty, nil
	_, err = l.over(ctx, x, []call{all}, func(row *call) *statement {
		return l.giveOf(row, portion(used, row), move)
	})
	return err
}

// guarded runs statements that lock shards, of which some may turn out to be the wrong ones. To go on to others while holding
// those would be to deadlock with who goes the other way. So what undo does is to let go of them: InTx is told to run the
// transaction again, and in any other there is a savepoint to go back to. InTx has none, for the sake of its speed.
func (l *Limiter) guarded(ctx context.Context, x executor, trip []*statement, sharded bool) (undo func(context.Context) error, err error) {
	switch {
	case x.single() && len(trip) > 1:
		return nil, errUndecided
	case x.single() || x.again() || !sharded:
		return func(context.Context) error { return errBusy{} }, x.run(ctx, trip)
	}
	undo = func(ctx context.Context) error {
		if x.stepwise() { // a trip more, to release what has no transaction id any more
			return x.run(ctx, []*statement{{sql: undoSQL}})
		}
		return x.run(ctx, []*statement{{sql: undoSQL}, {sql: releaseSQL}})
	}
	return undo, x.run(ctx, append([]*statement{{sql: savepointSQL}}, trip...))
}

const (
	savepointSQL = `SAVEPOINT weir_shards`
	undoSQL      = `ROLLBACK TO SAVEPOINT weir_shards`
	releaseSQL   = `RELEASE SAVEPOINT weir_shards`
)

// portion is the share of x of a row.
func portion(x float64, row *call) float64 {
	n, i := shard.Address(row.shard)
	first, each := shard.Split(x, n)
	if i == 0 {
		return first
	}
	return each
}
