package ratelimit

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/limits/where"
)

// InSQLTx is [Limiter.InTx] for a *sql.DB over pgx's stdlib driver: it runs fn in a transaction,
// commits it, and runs fn again in a new one if it met a concurrent transaction. What InTx says of
// fn, of errors and of how often it runs holds here, too. Use [Limiter.InSQL] with the tx and the
// ctx that fn is given:
//
//	err := limiter.InSQLTx(ctx, db, nil, func(ctx context.Context, tx *sql.Tx) error {
//		if err := limiter.InSQL(tx).Consume(ctx, Uploads.For(user)); err != nil {
//			return err // rolls back
//		}
//		_, err := tx.ExecContext(ctx, `INSERT INTO upload (owner) VALUES ($1)`, user)
//		return err
//	})
//
// The zero opts.Isolation, as nil opts, means the level of [Config]: SERIALIZABLE unless you say
// otherwise.
//
// BEGIN is a round trip of its own, and so is each statement, and with [Config.Citus] the one
// before COMMIT that requests two-phase commit where it is needed. So a transaction does not know
// in advance which balances it takes, and at first does not queue for a contended one: it overtakes
// transactions that do. Once a transaction of this process has lost a balance eight times, the
// others run again and queue behind it. If another package wraps pgx's driver, to trace it say, a
// transaction that has lost a balance to another one does not queue for it; it waits for at most
// 250 ms and runs again. Inside another InSQLTx on the same db, called with its ctx, it is refused
// with [ErrNested].
func (l *Limiter) InSQLTx(ctx context.Context, db *sql.DB, opts *sql.TxOptions,
	fn func(ctx context.Context, tx *sql.Tx) error) error {
	return l.transacted(ctx, func(e *TransactedEvent) error {
		return l.inSQLTx(ctx, db, opts, fn, e)
	})
}

func (l *Limiter) inSQLTx(ctx context.Context, db *sql.DB, opts *sql.TxOptions,
	fn func(context.Context, *sql.Tx) error, e *TransactedEvent) error {
	if !l.made() {
		return errNotMade()
	}
	if db == nil {
		return &InvalidError{Field: "db", Value: plain("nil"),
			Want: "a *sql.DB over pgx's stdlib driver"}
	}
	if nested(ctx, db) {
		return errNested
	}
	o := sql.TxOptions{}
	if opts != nil {
		o = *opts
	}
	if o.Isolation == sql.LevelDefault {
		o.Isolation = sqlLevels[l.cfg.IsoLevel]
	}
	ctx = context.WithValue(ctx, outerKey{db}, true)
	return l.rerun(ctx, e, func(n int, conflicts []where.Row) (*attempt, error) {
		if n > starvesAfter {
			defer l.contended.Starve(conflicts)()
		}
		a := &sqlAttempt{attempt: attempt{l: l, again: n > 1, conflicts: conflicts}, db: db,
			opts: o}
		return &a.attempt, a.run(ctx, fn)
	})
}

var sqlLevels = map[pgx.TxIsoLevel]sql.IsolationLevel{
	pgx.ReadUncommitted: sql.LevelReadUncommitted,
	pgx.ReadCommitted:   sql.LevelReadCommitted,
	pgx.RepeatableRead:  sql.LevelRepeatableRead,
	pgx.Serializable:    sql.LevelSerializable,
}

// attemptKey leads from the transaction to its attempt.
type attemptKey struct{ tx *sql.Tx }

// attemptOf returns the attempt of InSQLTx that tx belongs to, or nil if InSQLTx has not begun tx.
func attemptOf(ctx context.Context, tx *sql.Tx) *attempt {
	a, _ := ctx.Value(attemptKey{tx}).(*attempt)
	return a
}

// sqlAttempt is one run of a transaction under InSQLTx.
//
// The context of the transaction does not end with that of the caller, except while BEGIN and
// COMMIT are under way. Otherwise database/sql would roll back by itself, and would not say whether
// it did so before the callback had ended the transaction.
type sqlAttempt struct {
	attempt
	db     *sql.DB
	opts   sql.TxOptions
	tx     *sql.Tx
	conn   *pgx.Conn // nil if a wrapper of the driver hides it
	cancel func()    // ends the context of the transaction
}

func (a *sqlAttempt) run(ctx context.Context, fn func(context.Context, *sql.Tx) error) error {
	c, err := a.db.Conn(ctx)
	if err != nil {
		return errBegin(err)
	}
	defer func() { _ = c.Close() }()
	a.conn = connOf(c)
	a.queues = a.conn != nil && !a.l.cfg.Portable && a.opts.Isolation >= sql.LevelRepeatableRead
	txCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	a.cancel = cancel
	lasted := a.until(ctx, func() { a.tx, err = c.BeginTx(txCtx, &a.opts) })
	if err == nil && !lasted {
		err = ctx.Err() // database/sql is rolling back: the connection must not be used beside that
	}
	if err != nil {
		return errBegin(ended(ctx, err))
	}
	done := false
	defer func() {
		if !done { // an error or a panic
			a.rollback()
		}
	}()
	if err := a.queue(ctx); err != nil {
		return a.verdict(ctx, a.conn, err)
	}
	err = fn(context.WithValue(ctx, attemptKey{a.tx}, &a.attempt), a.tx)
	switch {
	case a.yielded:
		return &againError{a.conflict}
	case err != nil:
		return a.verdict(ctx, a.conn, err)
	}
	if err := mayCommit(ctx, a.conn); err != nil {
		return err
	}
	if err := a.requestTwoPhase(ctx); err != nil {
		return a.verdict(ctx, a.conn, err)
	}
	done = true
	return a.commit(ctx)
}

// connOf returns the pgx connection behind one of database/sql, or nil if the driver is wrapped.
func connOf(c *sql.Conn) (conn *pgx.Conn) {
	_ = c.Raw(func(driver any) error {
		if d, ok := driver.(interface{ Conn() *pgx.Conn }); ok {
			conn = d.Conn()
		}
		return nil
	})
	return conn
}

// until runs fn, and cancels the context of the transaction if ctx ends meanwhile: for BEGIN and
// COMMIT, which must not outlast ctx. It reports whether ctx has lasted.
func (a *sqlAttempt) until(ctx context.Context, fn func()) bool {
	stop := context.AfterFunc(ctx, a.cancel)
	fn()
	return stop()
}

// queue waits for the rows that earlier attempts have lost. It runs before the transaction has a
// snapshot.
func (a *sqlAttempt) queue(ctx context.Context) error {
	if !a.queues || len(a.conflicts) == 0 {
		return nil
	}
	began := time.Now()
	_, err := sendBatch(ctx, a.conn, queueFor(&a.l.sql, where.Queue(a.conflicts)))
	a.queued = time.Since(began)
	if err != nil {
		// the session may hold the locks, and closing the connection frees them
		_ = a.conn.Close(ctx)
		return errQueue(ended(ctx, err))
	}
	return nil
}

// requestTwoPhase has Citus commit the transaction in two phases, if that is needed: see
// Statements.TwoPhaseIf. If the transaction has failed or has ended, the error of COMMIT says so.
func (a *sqlAttempt) requestTwoPhase(ctx context.Context) error {
	if !a.l.cfg.Citus {
		return nil
	}
	_, err := a.tx.ExecContext(ctx, a.l.sql.TwoPhaseIf)
	if err == nil || stateOf(err) == "25P02" || errors.Is(err, sql.ErrTxDone) {
		return nil
	}
	return fmt.Errorf("ratelimit: before COMMIT: %w", err)
}

func (a *sqlAttempt) commit(ctx context.Context) error {
	var err error
	a.until(ctx, func() { err = a.tx.Commit() })
	switch {
	case errors.Is(err, sql.ErrTxDone):
		return fmt.Errorf("ratelimit: the callback of InSQLTx ended the transaction itself; it must leave that to InSQLTx: %w",
			err)
	case err == context.Canceled: //nolint:errorlint // bare, it is of database/sql, which has not sent COMMIT; pgx wraps it
		a.rollback()
		return fmt.Errorf("ratelimit: rolled back before COMMIT: %w", ended(ctx, err))
	}
	if err != nil { // a.cancel has ended the driver's context, and not ctx's own
		err = ended(ctx, err)
	}
	return a.committed("InSQLTx", err)
}

// rollback takes five seconds at most. An error is ignored: the connection is then closed, which
// rolls back too.
func (a *sqlAttempt) rollback() {
	timer := time.AfterFunc(5*time.Second, a.cancel)
	defer timer.Stop()
	_ = a.tx.Rollback()
}
