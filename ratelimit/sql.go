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
	w := within{l: l, x: sqlExecutor{tx, l}}
	switch {
	case !l.made():
		w.err = errNotMade()
	case tx == nil:
		w.err = errNoTx()
	}
	return w
}

type sqlExecutor struct {
	tx *sql.Tx
	l  *Limiter
}

func (x sqlExecutor) fresh() bool { return true }

func (sqlExecutor) alone() bool { return false }

func (x sqlExecutor) stepwise() bool { return true }

func (sqlExecutor) single() bool { return false }

func (sqlExecutor) aside(context.Context, []*statement, bool) (bool, error) { return false, nil }

func (sqlExecutor) restart(context.Context, []*statement) (bool, error) { return false, nil }

func (sqlExecutor) doubt(func() *confirmation) {}

func (x sqlExecutor) transaction() any { return x.tx }

func (sqlExecutor) session() uint32 { return 0 }

func (x sqlExecutor) run(ctx context.Context, statements []*statement) error {
	if err := attemptOf(ctx, x.tx).yields(x.l, statements); err != nil {
		return err
	}
	for _, s := range x.l.marked(statements) {
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
			attemptOf(ctx, x.tx).observe(x.l, s, err)
			return err
		}
		s.found = true
	}
	return nil
}
