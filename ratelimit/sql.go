package ratelimit

import (
	"context"
	"database/sql"

	"github.com/jackc/pgx/v5/pgtype"
)

// InSQL returns the verbs in a transaction of database/sql over pgx's stdlib driver. They do what
// those of [Limiter] do, with one round trip for each statement. [Limiter.InSQLTx] begins a
// transaction that runs again after a conflict.
func (l *Limiter) InSQL(tx *sql.Tx) Verbs {
	w := &within{l: l, x: executor{to: sqlSender{tx, l}, sql: tx, stepwise: true}}
	switch {
	case !l.made():
		w.err = errNotMade()
	case tx == nil:
		w.err = errNoTx()
	}
	return w
}

// sqlSender sends in a transaction of database/sql, one by one.
type sqlSender struct {
	tx *sql.Tx
	l  *Limiter
}

func (x sqlSender) send(ctx context.Context, statements []*statement) error {
	a := attemptOf(ctx, x.tx)
	if err := a.yields(x.l, statements); err != nil {
		return err
	}
	for _, s := range timed(x.l.marked(a, x.tx, statements)) {
		if s.c == nil && s.once == nil { // a statement without an answer
			if _, err := x.tx.ExecContext(ctx, s.sql, s.args...); err != nil {
				return err
			}
			continue
		}
		if err := x.query(ctx, s); err != nil {
			a.observe(x.l, s, err)
			return err
		}
	}
	return nil
}

// query runs one statement, and reads its answer as statement.read does.
func (x sqlSender) query(ctx context.Context, s *statement) error {
	s.found = false
	if s.look != nil {
		s.look.scanner = pgtype.NewMap().SQLScanner
	}
	rows, err := x.tx.QueryContext(ctx, s.sql, s.args...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if s.found && s.looks {
			return prunedSince
		}
		if err := rows.Scan(s.dest()...); err != nil {
			return err
		}
		if s.found = true; s.look != nil && s.look.repeats() {
			return prunedSince
		}
	}
	if s.found {
		s.tick()
	}
	return rows.Err()
}
