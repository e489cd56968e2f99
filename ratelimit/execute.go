package ratelimit

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
)

// pgxExecutor runs statements in a pgx transaction.
type pgxExecutor struct {
	l       *Limiter
	tx      pgx.Tx
	attempt *attempt // of InTx; nil in a transaction that the caller began
}

func (l *Limiter) prepare(tx pgx.Tx, requests []Request) (executor, []call, error) {
	calls, err := resolveAll(requests)
	if err != nil {
		return nil, nil, err
	}
	x, err := l.transaction(tx)
	return x, calls, err
}

func (l *Limiter) transaction(tx pgx.Tx) (executor, error) {
	switch t := tx.(type) {
	case nil:
		return nil, errNoTx()
	case *txn:
		return pgxExecutor{l, t.Tx, t.attempt}, nil
	}
	return pgxExecutor{l, tx, nil}, nil
}

func errNoTx() error {
	return &InvalidError{Field: "tx", Value: plain("nil"), Want: "an open transaction"}
}

// fresh is not known of a transaction that the caller began. One of InTx above READ COMMITTED has its snapshot as soon as
// it was used: a read would then believe in a denial that is over, where a take finds that out.
func (x pgxExecutor) fresh() bool {
	a := x.attempt
	return a == nil || !a.used || a.level == pgx.ReadCommitted || a.level == pgx.ReadUncommitted
}

func (x pgxExecutor) stepwise() bool { return false } // a batch stands or falls whole, or the connection does

func (pgxExecutor) single() bool { return false }

// session is the backend's process id.
func (x pgxExecutor) session() uint32 {
	if tx, ok := x.tx.(*lazyTx); ok {
		if conn := tx.connection(); conn != nil {
			return conn.PgConn().PID()
		}
		return 0
	}
	if conn := x.tx.Conn(); conn != nil {
		return conn.PgConn().PID()
	}
	return 0
}

func (x pgxExecutor) run(ctx context.Context, statements []*statement) error {
	if lock := x.attempt.queueUp(x.l, statements); lock != nil {
		statements = append([]*statement{lock}, statements...)
	}
	var failed *statement
	var err error
	if tx, ok := x.tx.(*lazyTx); ok && !tx.begun {
		failed, err = tx.beginWith(ctx, statements)
	} else {
		failed, err = send(ctx, x.tx, statements)
	}
	x.attempt.observe(x.l, failed, err)
	return err
}

// send runs statements in one round trip. With an error it returns the statement that failed.
func send(ctx context.Context, tx pgx.Tx, statements []*statement) (failed *statement, err error) {
	if len(statements) == 1 {
		s := statements[0]
		return s, s.scan(tx.QueryRow(ctx, s.sql, s.args...))
	}
	return sendBatch(ctx, tx, statements)
}

type batchSender interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// sendBatch is send by the means of a batch.
func sendBatch(ctx context.Context, to batchSender, statements []*statement) (failed *statement, err error) {
	batch := &pgx.Batch{}
	for _, s := range statements {
		batch.Queue(s.sql, s.args...)
	}
	results := to.SendBatch(ctx, batch)
	for _, s := range statements {
		if s.c == nil {
			_, err = results.Exec()
		} else {
			err = s.scan(results.QueryRow())
		}
		if err != nil {
			failed = s
			break
		}
	}
	if closeErr := results.Close(); err == nil {
		err = closeErr
	}
	return failed, err
}

// scan reads the answer: no row, or one.
func (s *statement) scan(row pgx.Row) error {
	err := row.Scan(s.dest()...)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	s.found = err == nil
	return err
}
