package ratelimit

import (
	"cmp"
	"slices"

	"github.com/weir-go/weir/internal/limits/where"
)

// rowsOf returns the rows of calls, in the order in which everything locks them. It sorts the calls
// by arrival.
func rowsOf(some []*waiter) (rows []*standing) {
	slices.SortFunc(some, func(a, b *waiter) int { return cmp.Compare(a.order, b.order) })
	of := make(map[where.Place]*standing, len(some))
	for _, w := range some {
		for i := range w.calls {
			c := &w.calls[i]
			r := of[c.Place]
			if r == nil {
				r = &standing{c: c}
				of[c.Place], rows = r, append(rows, r)
			}
			w.rows[i] = r
		}
	}
	slices.SortFunc(rows, func(a, b *standing) int { return a.c.Compare(&b.c.Row) })
	return rows
}

// put decides calls one after the other, writes the new balances of their rows, and commits. It
// returns the calls that must be decided again.
func (p *scheme) put(some []*waiter, rows []*standing, begin ...string) (again []*waiter) {
	var decided, alone, held []*waiter
	for _, w := range some {
		granted, closed := w.judge()
		switch {
		case closed:
			alone = append(alone, w)
		case granted && slices.ContainsFunc(w.rows, (*standing).held):
			held = append(held, w)
		default:
			if granted {
				w.take()
			}
			decided = append(decided, w)
		}
	}
	statements, missing := p.c.l.putMany(rows)
	if len(missing) > 0 {
		begin = append(begin, p.c.l.patienceSQL(inserting, some[0].tries))
	}
	var err error
	if len(statements) > 0 {
		err = p.trip(begin, true, statements...)
	} else {
		p.rollback()
	}
	switch state := stateOf(err); {
	case err == nil:
	case p.c.l.stuck(err): // others are inserting some of the missing rows
		for _, w := range some {
			if i := slices.IndexFunc(w.rows, func(r *standing) bool {
				return slices.Contains(missing, r)
			}); i >= 0 {
				p.hold(w, w.calls[i].Place, max(1, len(missing)/2))
			} else {
				again = append(again, w)
			}
		}
		return again
	case isConflict(err) || state == "23505": // another transaction has inserted a row meanwhile
		return some
	default:
		p.fail(err, some)
		return nil
	}
	for _, w := range decided {
		p.noted(w)
	}
	for _, w := range held {
		p.heldUp(w)
	}
	p.alone = append(p.alone, alone...)
	return nil
}
