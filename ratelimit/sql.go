package ratelimit

import (
	"context"
	"database/sql"
	"errors"

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
		if s.look != nil {
			s.look.scanner = pgtype.NewMap().SQLScanner
		}
		err := x.tx.QueryRowContext(ctx, s.sql, s.args...).Scan(s.dest()...)
		if errors.Is(err, sql.ErrNoRows) {
			continue
		}
		if err != nil {
			a.observe(x.l, s, err)
			return err
		}
		s.found = true
		s.tick()
	}
	return nil
}
