package ratelimit

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// SQL has the limiter's verbs for transactions of database/sql over pgx's stdlib driver. They mean what those of [Limiter]
// do, at one round trip a statement.
type SQL struct{ l *Limiter }

// SQL returns the verbs for database/sql.
func (l *Limiter) SQL() SQL { return SQL{l} }

// RateLimit is [Limiter.RateLimit].
func (s SQL) RateLimit(ctx context.Context, tx *sql.Tx, requests ...Request) (Result, error) {
	o := s.l.observe(ctx, requests)
	calls, err := s.prepare(tx, requests)
	if err != nil {
		return o.told(Result{}, err)
	}
	return o.told(beside(calls, len(requests), false, func(calls []call) (Result, error) {
		return s.l.rateLimit(ctx, o.counting(sqlExecutor{tx, s.l}), calls, len(requests))
	}))
}

// CheckRateLimit is [Limiter.CheckRateLimit].
func (s SQL) CheckRateLimit(ctx context.Context, tx *sql.Tx, requests ...Request) (Result, error) {
	calls, err := s.prepare(tx, requests)
	if err != nil {
		return Result{}, err
	}
	return beside(calls, len(requests), false, func(calls []call) (Result, error) {
		return s.l.checkRateLimit(ctx, sqlExecutor{tx, s.l}, calls, len(requests))
	})
}

// ResetRateLimit is [Limiter.ResetRateLimit].
func (s SQL) ResetRateLimit(ctx context.Context, tx *sql.Tx, requests ...Request) error {
	calls, err := s.prepare(tx, bare(requests))
	if err != nil {
		return err
	}
	return s.l.resetRateLimit(ctx, sqlExecutor{tx, s.l}, calls)
}

// Pause is [Limiter.Pause].
func (s SQL) Pause(ctx context.Context, tx *sql.Tx, d time.Duration, requests ...Request) error {
	if err := checkPause(d); err != nil {
		return err
	}
	calls, err := s.prepare(tx, bare(requests))
	if err != nil {
		return err
	}
	return s.l.pause(ctx, sqlExecutor{tx, s.l}, d, calls)
}

// Resume is [Limiter.Resume].
func (s SQL) Resume(ctx context.Context, tx *sql.Tx, requests ...Request) error {
	calls, err := s.prepare(tx, bare(requests))
	if err != nil {
		return err
	}
	return s.l.resume(ctx, sqlExecutor{tx, s.l}, calls)
}

// GiveBack is [Limiter.GiveBack].
func (s SQL) GiveBack(ctx context.Context, tx *sql.Tx, res Result) error {
	if err := s.check(tx); err != nil {
		return err
	}
	return s.l.giveBack(ctx, sqlExecutor{tx, s.l}, res)
}

// Settle is [Limiter.Settle].
func (s SQL) Settle(ctx context.Context, tx *sql.Tx, r Reservation, used ...Request) (bool, error) {
	if err := s.check(tx); err != nil {
		return false, err
	}
	return s.l.settle(ctx, sqlExecutor{tx, s.l}, r, used)
}

// Release is [Limiter.Release].
func (s SQL) Release(ctx context.Context, tx *sql.Tx, r Reservation) (bool, error) {
	if err := s.check(tx); err != nil {
		return false, err
	}
	return s.l.release(ctx, sqlExecutor{tx, s.l}, r)
}

// Value is [Limiter.Value].
func (s SQL) Value(ctx context.Context, tx *sql.Tx, request Request) (State, error) {
	calls, err := s.prepare(tx, bare([]Request{request}))
	if err != nil {
		return State{}, err
	}
	return s.l.value(ctx, sqlExecutor{tx, s.l}, calls)
}

func (s SQL) prepare(tx *sql.Tx, requests []Request) ([]call, error) {
	if err := s.check(tx); err != nil {
		return nil, err
	}
	return resolveAll(requests)
}

func (s SQL) check(tx *sql.Tx) error {
	switch {
	case tx == nil:
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

func (sqlExecutor) aside(context.Context, []*statement) (bool, error) {
	return false, nil
}

func (sqlExecutor) doubt(func() *confirmation) {}

func (sqlExecutor) again() bool { return false }

func (sqlExecutor) wrong(...call) {}

func (sqlExecutor) known(*call) bool { return true }

func (x sqlExecutor) own() any { return x.tx }

func (x sqlExecutor) transaction() any { return x.tx }

func (sqlExecutor) session() uint32 { return 0 }

func (x sqlExecutor) run(ctx context.Context, statements []*statement) error {
	for _, s := range statements {
		if s.look != nil {
			s.look.scanner = pgtype.NewMap().SQLScanner
		}
		err := x.tx.QueryRowContext(ctx, s.sql, s.args...).Scan(s.dest()...)
		if errors.Is(err, sql.ErrNoRows) {
			continue
		}
		if err != nil {
			return err
		}
		s.found = true
	}
	return nil
}
