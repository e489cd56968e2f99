package ratelimit

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/shard"
)

// On Citus an upsert goes by the clock of the node that the client is connected to, but a SELECT
// reads that of the node that has its rows. If they differ, LOOK can find tokens that TAKE did not
// find, in each round. So the clock of the node that the client is connected to is read just before
// LOOK, in the same round trip. It counts in place of the one that LOOK answers with.

const clockSQL = `SELECT clock_timestamp()`

// here returns room for the clock that counts for a look, or nil if that is the one that the look
// answers with.
func (l *Limiter) here() *time.Time {
	if !l.cfg.Citus || l.cfg.Clock != nil { // on one server, or Config.Clock
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
	if !l.cfg.Citus {
		return now, nil
	}
	rows, _ := db.Query(ctx, clockSQL) // rows has the error, too
	return pgx.CollectExactlyOneRow(rows, pgx.RowTo[time.Time])
}

// On Citus the rows of one key are on one node. So that the shards of a limit without keys are not
// all on one node, they are stored under keys of their own, called homes. The limit's head, and its
// only row while it has no shards, have the empty key. Shards of a limit with keys stay under their
// key.

// home returns the key under which the row of c is stored.
func (l *Limiter) home(c *call) string {
	if l.cfg.Citus && c.Key == "" {
		if nr, ok := shard.HomeOf(c.Name, c.Shard); ok {
			return shard.Home(nr)
		}
	}
	return c.Key
}

// homes returns all keys under which rows of a limit and key may be stored.
func (l *Limiter) homes(key string) []string {
	all := []string{key}
	if l.cfg.Citus && key == "" {
		for nr := range shard.Homes {
			all = append(all, shard.Home(nr))
		}
	}
	return all
}

// InTx, InSQLTx and SendBatch request two-phase commit before COMMIT, if the transaction has
// written the coordinator: see internal/limits/statements/two_phase.go. In any other transaction
// nobody knows what it will write yet, so each call that writes requests it.

// marked adds the statement that requests two-phase commit, if statements write and the transaction
// does not request it at its end. a is the attempt that tx belongs to, or nil.
//
// Config.Colocated is about transactions of the caller's own, and not about those of package
// scheduler, which writes jobs.
func (l *Limiter) marked(a *attempt, tx any, statements []*statement) []*statement {
	if !l.cfg.Citus || a != nil && a.l.cfg.Citus { // the limiter of InTx may be another one
		return statements
	}
	if _, jobs := tx.(interface{ WritesJobs() }); a == nil && l.cfg.Colocated && !jobs {
		return statements
	}
	for _, s := range statements {
		if !s.looks && s.look == nil {
			return append([]*statement{{sql: l.sql.TwoPhase}}, statements...)
		}
	}
	return statements
}
