package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Autocommit has the limiter's verbs for callers without a transaction: each call is a transaction
// of its own, committed when it returns. It takes a connection of the pool for each call. Inside a
// transaction on the same pool use [Limiter]'s own verbs: their tokens roll back with it, and they
// need no second connection.
//
// A call for one limit and key is one statement, sent without BEGIN and COMMIT; any other is a
// transaction at READ COMMITTED. Callers of one key queue for its row, whatever the default
// isolation level of the session. If a call fails with [ErrOutcomeUnknown] its tokens may have been
// taken. A call whose ctx has no deadline fails after Config.Timeout.
type Autocommit struct{ within }

// Autocommit returns the verbs over a pool.
func (l *Limiter) Autocommit(pool *pgxpool.Pool) *Autocommit {
	w := within{l: l, pool: pool}
	switch {
	case pool == nil:
		w.err = errNoPool()
	case !l.made():
		w.err = errNotMade()
	}
	return &Autocommit{w}
}

func errNoPool() error { return &InvalidError{Field: "pool", Value: nil, Want: "an open pool"} }

// overPool runs a verb. A lone one is for one row, and each of its round trips is a transaction of
// its own. Any other is for several, and one transaction holds them together. It sends before ahead
// of the verb's statements in each round trip.
func (l *Limiter) overPool(ctx context.Context, pool *pgxpool.Pool, lone bool,
	before []*statement, verb func(context.Context, executor) error) error {
	if nested(ctx, pool) {
		return errNested
	}
	began := time.Now()
	if lone {
		x := l.perTrip(pool, began)
		x.before = before
		if err := verb(ctx, x); !errors.Is(err, errUndecided) {
			return err
		}
		// Between TAKE and LOOK other callers changed the row each time. A transaction of its own
		// keeps the row locked in between.
	}
	return l.inTime(ctx, began, func(ctx context.Context) error {
		return l.inTx(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted},
			func(ctx context.Context, tx pgx.Tx) error {
				x := l.transaction(tx)
				x.before = before
				return verb(ctx, x)
			}, nil)
	})
}

// inTime runs fn, which uses the database, under Config.Timeout unless ctx has a deadline. The time
// counts from began, when the call was made. Calls that are answered from memory do not use inTime:
// the context would cost as much as the answer.
func (l *Limiter) inTime(ctx context.Context, began time.Time,
	fn func(context.Context) error) error {
	d := l.patience(ctx)
	if d <= 0 {
		return fn(ctx)
	}
	ctx, cancel := context.WithDeadline(ctx, began.Add(d))
	defer cancel()
	err := fn(ctx)
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = l.errTimeout(err)
	}
	return err
}

// patience is how long a call may wait if ctx has no deadline: Config.Timeout, or 0 for no bound.
func (l *Limiter) patience(ctx context.Context) time.Duration {
	if _, ends := ctx.Deadline(); ends {
		return 0
	}
	return max(0, l.cfg.Timeout)
}

func (l *Limiter) errTimeout(err error) error {
	return fmt.Errorf("%w (its context has no deadline: Config.Timeout is %v)", err, l.cfg.Timeout)
}

// perTrip returns the executor whose round trips are a transaction each.
func (l *Limiter) perTrip(pool *pgxpool.Pool, began time.Time) executor {
	return executor{to: poolSender{l, pool, began}, single: true}
}

type poolSender struct {
	l     *Limiter
	pool  *pgxpool.Pool
	began time.Time // when the call was made: see inTime
}

func (x poolSender) send(ctx context.Context, statements []*statement) error {
	return x.l.inTime(ctx, x.began, func(ctx context.Context) error {
		conn, err := x.pool.Acquire(ctx)
		if err != nil {
			return err
		}
		// after a failed statement the pool closes the connection, as it is still in a transaction
		defer conn.Release()
		if err := ctx.Err(); err != nil {
			return err
		}
		return roundTrip(ctx, conn, beginTogether, true, statements...)
	})
}

// strictSession marks a connection on which a lone statement failed to serialize: its default
// isolation level is above READ COMMITTED, so BEGIN has to name the level. On other connections a
// lone statement is sent without BEGIN and COMMIT.
const strictSession = "weir: above READ COMMITTED by default"

// roundTrip runs statements in one round trip. A lone statement is sent without BEGIN and COMMIT:
// it is a transaction of its own, which runs again after a deadlock. On Citus one may be ended by
// the deadlock of others. It also runs again, once, if the connection has lost its prepared
// statement.
func roundTrip(
	ctx context.Context, conn *pgxpool.Conn, begin []string, commit bool, statements ...*statement,
) error {
	session := conn.Conn().PgConn().CustomData()
	plain := commit && len(begin) == 1 && begin[0] == beginTogetherSQL && len(statements) == 1
	for first := true; plain && session[strictSession] == nil; first = false {
		_, err := send(ctx, conn.Conn(), statements)
		switch state := stateOf(err); {
		case state == deadlockDetected: // the server waits for a while before it finds one
		case state == statementLost && first:
		case state == serializationFailure:
			session[strictSession] = true
		default:
			return committed(err, statements)
		}
	}
	trip := make([]*statement, 0, len(begin)+len(statements)+1)
	for _, sql := range begin {
		trip = append(trip, &statement{sql: sql})
	}
	trip = append(trip, statements...)
	if commit {
		trip = append(trip, &statement{sql: commitSQL})
	}
	_, err := sendBatch(ctx, conn, trip)
	if !commit {
		return err
	}
	return committed(err, statements)
}

// committed handles the error of statements that were sent together with their COMMIT. Unless
// Postgres answered that they were rolled back, or they only read, they may have been committed.
func committed(err error, statements []*statement) error {
	writes := func(s *statement) bool {
		return s.once != nil || s.many != nil || s.c != nil && !s.looks && s.look == nil
	}
	if err == nil || isRolledBack(err) || !slices.ContainsFunc(statements, writes) {
		return err
	}
	return unknown(err)
}
