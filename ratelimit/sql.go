package ratelimit

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// InSQL returns the verbs in a transaction of database/sql over pgx's stdlib driver. They do what
// those of [Limiter] do, with one round trip for each statement. [Limiter.InSQLTx] begins a
// transaction that runs again after a conflict.
func (l *Limiter) InSQL(tx *sql.Tx) Verbs { return inSQL{l, tx} }

type inSQL struct {
	l  *Limiter
	tx *sql.Tx
}

func (s inSQL) RateLimit(ctx context.Context, requests ...Request) (Result, error) {
	o := s.l.observe(ctx, requests)
	calls, err := s.prepare(requests)
	if err != nil {
		return o.told(Result{}, err)
	}
	return o.told(beside(calls, len(requests), false, func(calls []call) (Result, error) {
		return s.l.rateLimit(ctx, o.counting(sqlExecutor{s.tx, s.l}), calls, len(requests))
	}))
}

func (s inSQL) CheckRateLimit(ctx context.Context, requests ...Request) (Result, error) {
	calls, err := s.prepare(requests)
	if err != nil {
		return Result{}, err
	}
	return beside(calls, len(requests), false, func(calls []call) (Result, error) {
		return s.l.checkRateLimit(ctx, sqlExecutor{s.tx, s.l}, calls, len(requests))
	})
}

func (s inSQL) ResetRateLimit(ctx context.Context, requests ...Request) error {
	calls, err := s.prepare(bare(requests))
	if err != nil {
		return err
	}
	return s.l.resetRateLimit(ctx, sqlExecutor{s.tx, s.l}, calls)
}

func (s inSQL) Pause(ctx context.Context, d time.Duration, requests ...Request) error {
	if err := checkPause(d); err != nil {
		return err
	}
	calls, err := s.prepare(bare(requests))
	if err != nil {
		return err
	}
	return s.l.pause(ctx, sqlExecutor{s.tx, s.l}, d, calls)
}

func (s inSQL) Resume(ctx context.Context, requests ...Request) error {
	calls, err := s.prepare(bare(requests))
	if err != nil {
		return err
	}
	return s.l.resume(ctx, sqlExecutor{s.tx, s.l}, calls)
}

func (s inSQL) GiveBack(ctx context.Context, res Result) error {
	if err := s.check(); err != nil {
		return err
	}
	return s.l.giveBack(ctx, sqlExecutor{s.tx, s.l}, res)
}

func (s inSQL) Settle(ctx context.Context, r Reservation, used ...Request) (bool, error) {
	if err := s.check(); err != nil {
		return false, err
	}
	return s.l.settle(ctx, sqlExecutor{s.tx, s.l}, r, used)
}

func (s inSQL) Release(ctx context.Context, r Reservation) (bool, error) {
	if err := s.check(); err != nil {
		return false, err
	}
	return s.l.release(ctx, sqlExecutor{s.tx, s.l}, r)
}

func (s inSQL) Value(ctx context.Context, request Request) (State, error) {
	calls, err := s.prepare(bare([]Request{request}))
	if err != nil {
		return State{}, err
	}
	return s.l.value(ctx, sqlExecutor{s.tx, s.l}, calls)
}

func (s inSQL) prepare(requests []Request) ([]call, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	return resolveAll(requests)
}

func (s inSQL) check() error {
	switch {
	case s.tx == nil:
		return errNoTx()
	case !s.l.made():
		return errNotMade()
	}
	return nil
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
