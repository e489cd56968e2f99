package ratelimit

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// On Citus an upsert goes by the clock of the node that the client is connected to, but a SELECT
// reads that of the node that has its rows. If they differ, LOOK can find tokens that TAKE did not
// find, in each round. So the clock of the node that the client is connected to is read just before
// LOOK, in the same round trip. It counts in place of the one that LOOK answers with.

const clockSQL = `SELECT clock_timestamp()`

// here returns room for the clock that counts for a look, or nil if that is the one that the look
// answers with.
func (l *Limiter) here() *time.Time {
	if !l.spread || l.clock != nil { // on one server, or Config.Clock
		return nil
	}
	return new(time.Time)
}

// timed adds, before looks that need it, the statement that reads the clock. Looks in a row share
// one.
func timed(statements []*statement) []*statement {
	if !slices.ContainsFunc(statements, func(s *statement) bool { return s.here != nil }) {
		return statements
	}
	all := make([]*statement, 0, len(statements)+1)
	var at *time.Time
	for _, s := range statements {
		switch {
		case s.here == nil:
			at = nil
		case at == nil:
			at = s.here
			all = append(all, &statement{c: s.c, sql: clockSQL, here: at})
		default:
			s.here = at
		}
		all = append(all, s)
	}
	return all
}

// tick replaces the clock of an answer with the one that counts.
func (s *statement) tick() {
	switch {
	case s.here == nil:
	case s.look != nil:
		s.look.at = *s.here
	case s.many != nil:
		for _, r := range s.many.rows {
			r.at = s.here.UnixMicro()
		}
	default:
		s.answer.at = *s.here
	}
}

// hereNow reads the clock that counts in a trip of its own. It is zero where that is the one that
// the look answers with.
func (l *Limiter) hereNow(ctx context.Context, db Querier) (now time.Time, err error) {
	if !l.spread {
		return now, nil
	}
	rows, _ := db.Query(ctx, clockSQL) // rows has the error, too
	return pgx.CollectExactlyOneRow(rows, pgx.RowTo[time.Time])
}
