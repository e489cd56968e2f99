package ratelimit

import (
	"context"
	"slices"
	"time"

	"github.com/weir-go/weir/internal/limits/where"
	"github.com/weir-go/weir/shard"
)

// Changes of rows without a decision: a reset or a pause changes all rows of a limit; giving back
// and charging change those that a call took from. If a row is closed, it is of a former layout,
// and the change is made where its tokens are now.

// mostMoves bounds how often a change begins anew because the limit has got another layout since.
const mostMoves = 30

// eachRow runs a statement for each row of the calls' limits. If closed is not nil, it also runs
// the statements of closed for each limit that had other layouts, for work that waits in their
// rows. Limits go one after the other, and former rows come first: that is the order in which
// everything locks them.
func (l *Limiter) eachRow(
	ctx context.Context, x executor, calls []call, of func(*call, *pausing) *statement,
	closed func(*call, *pausing) []*statement,
) (done []*statement, err error) {
	layouts := map[where.Place]shard.Layout{} // as they were seen
	for range mostMoves {
		var trip []*statement
		sent := 0
		send := func() error {
			next := trip[sent:]
			sent = len(trip)
			err := x.change(ctx, next)
			x.ends = true // what has begun for some limits is done for all
			return err
		}
		for i := range calls {
			rows, err := l.rowsOf(ctx, x, &calls[i], layouts)
			if err != nil {
				return nil, err
			}
			var at *pausing
			layout, _ := shard.Address(rows[0].Shard)
			if closed != nil && layout.Generation > 0 {
				if x.single {
					return nil, errUndecided
				}
				if sent < len(trip) {
					err = send()
				}
				if err == nil {
					at, rows, err = l.stand(ctx, x, &calls[i])
				}
				if err != nil {
					return nil, err
				}
			}
			if at != nil {
				trip = append(trip, closed(&calls[i], at)...)
			}
			for k := range rows {
				trip = append(trip, of(&rows[k], at))
			}
		}
		if x.single && len(trip) > 1 {
			return nil, errUndecided
		}
		if err := send(); err != nil {
			return nil, err
		}
		var again []call
		for _, s := range trip {
			same := func(c call) bool { return c.Place == s.c.Place }
			switch {
			case s.once != nil:
			case !s.closed():
				done = append(done, s)
			case slices.ContainsFunc(again, same):
			default:
				c := &calls[slices.IndexFunc(calls, same)]
				seen, err := l.see(ctx, x, []call{*c})
				if err != nil {
					return nil, err
				}
				layouts[c.Place] = seen[0].Layout
				// The only row of the limit was closed by hand. A shard, though, is one that
				// this process remembers, of a key that was pruned.
				if seen[0].Layout == shard.Single && s.c.Shard == alone {
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

// pausing is when the time of a limit's rows goes on, the clock, and since when their time stands
// still: see pause.go of internal/limits/statements. It is nil for a limit that has no closed rows.
// All rows of a limit are paused and resumed by one clock.
type pausing struct{ until, now, since time.Time }

// stand returns the rows of the limit of c, and when their time goes on, if it has closed rows. Row
// 0 is locked then, so that its layout stays.
func (l *Limiter) stand(ctx context.Context, x executor, c *call) (*pausing, []call, error) {
	for range mostMoves {
		at, err := l.closedLine(ctx, x, c)
		if err != nil {
			return nil, nil, err
		}
		seen, err := l.see(ctx, x, []call{*c})
		if err != nil {
			return nil, nil, err
		}
		// Another transaction may have made the first shards in between.
		if at != nil || seen[0].Generation == 0 {
			return at, c.shardsOf(seen[0].Layout), nil
		}
	}
	return nil, nil, errMoving
}

// closedLine locks the closed rows of the limit of c, in a trip of its own.
func (l *Limiter) closedLine(ctx context.Context, x executor, c *call) (*pausing, error) {
	var trip []*statement
	for _, key := range l.homes(c.Key) {
		trip = append(trip, &statement{c: c, sql: l.sql.ClosedLine,
			args: []any{c.Name, key, l.now()}, line: true, here: l.here()})
	}
	if err := x.run(ctx, trip); err != nil {
		return nil, err
	}
	var at *pausing
	for _, s := range trip {
		if a := &s.answer; a.paused.Valid {
			now := trip[0].answer.at
			at = &pausing{until: later(a.paused.Time, now), now: now, since: later(a.ts.Time, now)}
		}
	}
	return at, nil
}

// rowsOf returns the rows of the limit of c in its layout, as far as known: seen has those that
// this transaction has seen. If the limit should have more shards, it first gets them.
func (l *Limiter) rowsOf(
	ctx context.Context, x executor, c *call, seen map[where.Place]shard.Layout,
) ([]call, error) {
	layout, known := seen[c.Place]
	if !known {
		layout, known = l.books.Layout(c.Place)
	}
	if !known {
		layout = shard.Single
	}
	if layout.Shards < c.shards {
		seen, _, err := l.look(ctx, x, []call{*c}, nil, false, nil)
		if err != nil {
			return nil, err
		}
		layout = seen[0].Layout
	}
	return c.shardsOf(layout), nil
}

// shardsOf returns the calls for all shards of a layout.
func (c *call) shardsOf(layout shard.Layout) []call {
	rows := make([]call, layout.Shards)
	for i := range rows {
		rows[i] = c.of(layout, i)
	}
	return rows
}

// onRows runs the statements that of makes for rows, in the order in which everything locks them.
// of may return nil for a row. follow returns the rows that have the tokens of closed rows now, to
// run the statements for those. What is to be changed for a closed row takes two trips, and must
// not be changed twice, so onRows needs a transaction.
//
// If a limit is known to have other shards by now, limits go one after the other, in a trip each:
// the rows that have its tokens come before those of the limits after it.
func (l *Limiter) onRows(
	ctx context.Context, x executor, rows []change, of func(*change) *statement,
	follow func(ctx context.Context, x executor, closed []change) ([]change, error),
) (done []*statement, err error) {
	if x.single {
		return nil, errUndecided
	}
	if n := firstLimit(rows); n < len(rows) && slices.ContainsFunc(rows, l.hasMoved) {
		if done, err = l.onRows(ctx, x, rows[:n:n], of, follow); err != nil {
			return nil, err
		}
		x.ends = true // as below
		more, err := l.onRows(ctx, x, rows[n:], of, follow)
		return append(done, more...), err
	}
	for range mostMoves {
		var trip []*statement
		for i := range rows {
			if s := of(&rows[i]); s != nil {
				trip = append(trip, s)
			}
		}
		if len(trip) == 0 {
			return done, nil
		}
		if err := x.change(ctx, trip); err != nil {
			return nil, err
		}
		var left []change // of closed rows
		for _, s := range trip {
			if !s.closed() {
				done = append(done, s)
				continue
			}
			i := 0
			for &rows[i].call != s.c {
				i++
			}
			if c := rows[i]; c.line == 0 {
				c.after = s.balance()
				left = append(left, c)
			} else {
				done = append(done, s)
			}
		}
		if len(left) == 0 {
			return done, nil
		}
		x.ends = true // otherwise the transaction could go on with only a part of the rows changed
		if rows, err = follow(ctx, x, left); err != nil {
			return nil, err
		}
		sortChanges(rows)
	}
	return nil, errMoving
}

// firstLimit is how many of rows are of the first one's limit and key.
func firstLimit(rows []change) int {
	n := 1
	for n < len(rows) && rows[n].Place == rows[0].Place {
		n++
	}
	return min(n, len(rows))
}

// hasMoved reports whether the limit of a row is known to have another layout by now.
func (l *Limiter) hasMoved(c change) bool {
	layout, known := l.books.Layout(c.Place)
	from, _ := shard.Address(c.Shard)
	return known && layout != from
}

// returns runs the statements that of makes for rows, which may have more tokens then.
func (l *Limiter) returns(ctx context.Context, x executor, verb string, rows []change,
	of func(*change) *statement) error {
	done, err := l.onRows(ctx, x, rows, of, l.followed)
	return l.changed(ctx, x, verb, callsOf(rows), done, err)
}

// changed ends a verb that has changed rows of the calls.
func (l *Limiter) changed(
	ctx context.Context, x executor, verb string, calls []call, done []*statement, err error,
) error {
	if err != nil {
		return explain(ctx, err, verb, calls)
	}
	l.learn(x, done, calls)
	return nil
}

// learn records the new balances of rows, and forgets denials of the calls.
func (l *Limiter) learn(x executor, done []*statement, calls []call) {
	for _, s := range done {
		if s.found {
			l.books.Took(s.c.Row, s.balance(), 0)
		}
	}
	freed(x, func() { l.forget(calls) })
}
