package ratelimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/grace"
	"github.com/weir-go/weir/internal/limits/where"
)

// Beginner begins transactions: *pgxpool.Pool and *pgx.Conn do.
type Beginner interface {
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
}

// maxAttempts bounds the attempts if neither Config.MaxAttempts nor a deadline does.
const maxAttempts = 50

// InTx runs fn in a transaction, SERIALIZABLE unless [Config] has another level, and commits it. If
// it cannot be serialized (40001, in a statement or at COMMIT) or deadlocks (40P01), it is rolled
// back and fn runs again, in a new transaction. That goes on until ctx ends or Config.MaxAttempts
// is reached; then InTx returns a [*ConflictError]. With a deadline and no MaxAttempts it retries
// until the deadline.
//
// So fn may run more than once, and must have no side effects outside of the transaction: it must
// not send messages, and must set its variables again in each run. Return Postgres errors wrapped
// (%w), or not at all. fn must use the ctx and the tx that it is given, and must neither commit nor
// roll back. If it returns an error, such as a [*DeniedError], the transaction is rolled back and
// InTx returns that error. After a panic InTx rolls back and the panic continues.
//
// An error that matches [ErrOutcomeUnknown] means that the connection was lost at COMMIT: all was
// committed, or nothing. Any other error means that nothing was committed, unless fn did that
// itself.
//
// A transaction that has lost a balance to another one queues for it in the database before it runs
// again. So a hot key slows its callers down but fails none of them, and callers of other keys do
// not wait. For that, db must be a pool or a connection of pgx, without a BeginQuery. Otherwise,
// and with [Config.Portable], InTx waits for at most 250 ms between attempts.
//
// BEGIN is sent together with the first statement of fn if that is one of the limiter's, and
// otherwise before it. So taking first saves a round trip. If BEGIN fails, the first statement of
// fn returns that error, and InTx returns it whatever fn does with it. If fn does not use tx,
// nothing is sent.
//
// If the first call of fn is expected to be denied, because the same call was denied just before,
// its balance is read without a transaction. If it is denied and fn returns, there is no
// transaction. If fn continues above READ COMMITTED, the balance is read again in the transaction.
// If it has changed by then, fn runs again, and that run reads in the transaction at once. A call
// that would queue for a balance which has denied calls within the last second is treated the same
// way: if it cannot be granted, it is denied without waiting for the transactions before it.
//
// InTx holds one connection of the pool and needs no second. Inside another InTx on the same pool,
// called with its ctx, it is refused with [ErrNested]: if outer transactions held all connections,
// the inner ones would wait for ever. It is also refused on a connection that is in a transaction:
// its COMMIT would be that of the other one.
func (l *Limiter) InTx(ctx context.Context, db Beginner,
	fn func(ctx context.Context, tx pgx.Tx) error) error {
	return l.InTxOptions(ctx, db, pgx.TxOptions{}, fn)
}

// InTxOptions is InTx with other transaction options, such as a weaker isolation level. Limits hold
// at each. No level means that of [Config].
func (l *Limiter) InTxOptions(ctx context.Context, db Beginner, opts pgx.TxOptions,
	fn func(ctx context.Context, tx pgx.Tx) error) error {
	return l.transacted(ctx, func(e *TransactedEvent) error {
		return l.inTx(ctx, db, opts, fn, e)
	})
}

// transacted runs a transaction, and tells the Observer, if there is one, what run notes in e.
func (l *Limiter) transacted(ctx context.Context, run func(e *TransactedEvent) error) error {
	if l.cfg.Observer == nil {
		return run(nil)
	}
	e := TransactedEvent{Began: time.Now(), Err: errPanicked}
	defer func() {
		e.Took = time.Since(e.Began)
		l.cfg.Observer.Transacted(ctx, e)
	}()
	e.Err = run(&e)
	return e.Err
}

var errPanicked = errors.New("ratelimit: rolled back, because the callback has panicked or ended its goroutine")

// inTx is InTxOptions without the Observer. If e is not nil, inTx counts attempts and waits in it.
func (l *Limiter) inTx(ctx context.Context, db Beginner, opts pgx.TxOptions,
	fn func(ctx context.Context, tx pgx.Tx) error, e *TransactedEvent) error {
	if !l.made() {
		return errNotMade()
	}
	if isNil(db) {
		return errNoBeginner()
	}
	if isComparable(db) {
		outer := any(outerKey{db})
		if ctx.Value(outer) != nil {
			return errNested
		}
		ctx = context.WithValue(ctx, outer, true)
	}
	opts.IsoLevel = cmp.Or(opts.IsoLevel, l.cfg.IsoLevel)
	return l.rerun(ctx, e, func(n int, conflicts []where.Row) (*attempt, error) {
		a := &attempt{l: l, level: opts.IsoLevel, again: n > 1, conflicts: conflicts}
		return a, a.run(ctx, db, opts, fn)
	})
}

// rerun runs attempts until one does not conflict with a concurrent transaction, or it has to give
// up. Each attempt gets the rows that earlier ones have lost to others, to queue for them. If e is
// not nil, rerun counts attempts and waits in it.
//
// After mostLost attempts that failed because a prepared statement was lost, the next such error is
// final: behind a pooler that keeps no prepared statements, every attempt would fail like this.
func (l *Limiter) rerun(ctx context.Context, e *TransactedEvent,
	attempt func(n int, conflicts []where.Row) (*attempt, error)) error {
	most := l.cfg.MaxAttempts
	if _, ends := ctx.Deadline(); most == 0 && !ends {
		most = maxAttempts
	}
	var conflicts []where.Row
	lost := 0 // attempts
	for n := 1; ; n++ {
		a, err := attempt(n, conflicts)
		if e != nil {
			e.Attempts, e.Queued = n, e.Queued+a.queued
		}
		if err == nil {
			return nil
		}
		var again *againError
		if !errors.As(err, &again) {
			return err
		}
		if stateOf(again.err) == statementLost {
			if lost++; lost > mostLost {
				return again.err
			}
		}
		if n == most {
			return &ConflictError{Attempts: n, Err: again.err}
		}
		conflicts = a.conflicts
		began := time.Now()
		err = backOff(ctx, n, len(conflicts) > 0)
		if e != nil {
			e.Paused += time.Since(began)
		}
		if err != nil {
			return fmt.Errorf("%w; %w", &ConflictError{Attempts: n, Err: again.err}, err)
		}
	}
}

func isNil(x any) bool {
	v := reflect.ValueOf(x)
	return x == nil || v.Kind() == reflect.Pointer && v.IsNil()
}

func errNoBeginner() error {
	return &InvalidError{Field: "db", Value: nil, Want: "a pool or a connection"}
}

// outerKey is the key under which the context of a callback has a value. It contains the pool or
// connection of the transaction, so that a nested InTx on the same one is noticed.
type outerKey struct{ db any }

func isComparable(db any) bool { return reflect.ValueOf(db).Comparable() }

var errNested = fmt.Errorf("%w on the same pool: use the tx of the outer callback", ErrNested)

func nested(ctx context.Context, db any) bool {
	return isComparable(db) && ctx.Value(outerKey{db}) != nil
}

// againError wraps the error of an attempt that should run again. It does not leave InTx.
type againError struct{ err error }

func (e *againError) Error() string { return e.err.Error() }

// run makes one attempt.
func (a *attempt) run(ctx context.Context, db Beginner, opts pgx.TxOptions,
	fn func(context.Context, pgx.Tx) error) (err error) {
	tx, release, err := newTx(ctx, db, opts)
	if err != nil {
		return err
	}
	defer release()
	a.queues = !tx.begun && !a.l.cfg.Portable && a.keepsSnapshot()
	if a.queues && len(a.conflicts) > 0 {
		tx.queue, a.used = a.conflicts, true // not statement by statement: that could deadlock
	}
	tx.attempt = a
	done, committed := false, false
	defer func() { a.l.books.Ended(a.shards, committed) }()
	defer func() {
		if !done { // an error or a panic
			// fn has ended it itself, and knows whether it committed
			ended := tx.closed && tx.failed == nil
			rollback(ctx, tx)
			if !ended {
				a.undone()
			}
		}
	}()

	err = tx.call(func() error { return fn(ctx, tx) })
	switch {
	case a.yielded && !tx.closed:
		return &againError{a.conflict}
	case err != nil:
		return a.verdict(ctx, tx.connection(), err)
	}
	done = true
	err = a.commit(ctx, tx)
	if err != nil && !errors.Is(err, ErrOutcomeUnknown) && !errors.Is(err, pgx.ErrTxClosed) {
		a.undone()
		return err
	}
	committed = true // or may have been
	for _, again := range a.freed {
		again()
	}
	return err
}

// undone puts back in memory what the attempt took there, such as a lease's tokens.
func (a *attempt) undone() {
	for _, undo := range a.undo {
		undo()
	}
}

// verdict wraps err in an againError if the transaction should run again. A conflict in one of
// Weir's statements counts even if fn returned another error in its place: the transaction has
// failed, whatever fn made of it.
func (a *attempt) verdict(ctx context.Context, conn *pgx.Conn, err error) error {
	switch {
	case isConflict(err):
		return &againError{err}
	case a.conflict != nil && (conn == nil || conn.PgConn().TxStatus() == 'E'):
		return &againError{a.conflict}
	case errors.Is(err, os.ErrDeadlineExceeded):
		// pgx ends a write with a deadline of the connection: its error does not mention ctx
		return ended(ctx, err)
	}
	return err
}

func (a *attempt) commit(ctx context.Context, tx *lazyTx) error {
	conn := tx.connection()
	err := mayCommit(ctx, conn)
	if err == nil && tx.begun && conn != nil && conn.PgConn().IsBusy() { // pgx would not send COMMIT
		err = errors.New("ratelimit: rolled back, because the callback of InTx has left rows or a batch open: close them before it returns")
	}
	if err != nil {
		rollback(ctx, tx)
		return err
	}
	twoPhase := a.l.cfg.Citus && a.foreign
	if twoPhase {
		if err := tx.requestTwoPhase(ctx); err != nil {
			err = a.verdict(ctx, conn, err) // before the rollback, which hides that it has failed
			rollback(ctx, tx)
			return err
		}
	}
	// pgconn.SafeToRetry must not be asked from here on: it also calls it safe if the connection
	// was lost after COMMIT was sent.
	if tx.begun && tx.usable() == nil && conn != nil && conn.PgConn().TxStatus() == 'I' { // by a statement
		err = pgx.ErrTxClosed
	} else {
		err = tx.commit(ctx, twoPhase)
	}
	if errors.Is(err, pgx.ErrTxClosed) {
		return fmt.Errorf("ratelimit: the callback of InTx has committed or rolled back the transaction, which it must not do: %w",
			err)
	}
	return a.committed("InTx", err)
}

// mayCommit returns why COMMIT must not be sent.
func mayCommit(ctx context.Context, conn *pgx.Conn) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("ratelimit: rolled back before COMMIT: %w", err)
	}
	if conn != nil && conn.IsClosed() {
		return errors.New("ratelimit: rolled back, because the connection was lost before COMMIT")
	}
	return nil
}

// committed says what the error of COMMIT means.
func (a *attempt) committed(in string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, pgx.ErrTxCommitRollback) && a.conflict != nil:
		return &againError{a.conflict}
	case errors.Is(err, pgx.ErrTxCommitRollback):
		return fmt.Errorf("ratelimit: rolled back, because a statement failed and the callback of %s did not return its error: %w",
			in, err)
	case isConflict(err):
		return &againError{err}
	case isRolledBack(err):
		return fmt.Errorf("ratelimit: rolled back at COMMIT: %w", err)
	}
	return unknown(err)
}

// rollback works even if ctx has ended. An error is ignored: the connection is then closed, which
// rolls back too.
func rollback(ctx context.Context, tx pgx.Tx) {
	if t, ok := tx.(*lazyTx); ok && !t.begun {
		_ = tx.Rollback(ctx)
		return
	}
	ctx, cancel := grace.Now(ctx)
	defer cancel()
	_ = tx.Rollback(ctx)
}

// backOff pauses after attempt n, for a random time below a bound that doubles from 2 ms to 250 ms.
// A transaction that has rows to queue for does not pause after its first three attempts: it waits
// in the queue instead.
func backOff(ctx context.Context, n int, queued bool) error {
	if queued && n < 4 {
		return ctx.Err()
	}
	most := min(250*time.Millisecond, time.Millisecond<<min(n, 10))
	return rest(ctx, rand.N(most)) //nolint:gosec // jitter
}
