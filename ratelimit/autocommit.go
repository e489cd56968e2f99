package ratelimit

import (
	"context"
	"errors"
	"fmt"
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
type Autocommit struct {
	l    *Limiter
	pool *pgxpool.Pool
}

// Autocommit returns the verbs over a pool.
func (l *Limiter) Autocommit(pool *pgxpool.Pool) *Autocommit { return &Autocommit{l, pool} }

// RateLimit is [Limiter.RateLimit], committed when it returns. To grant, one limit takes one round
// trip, and several take two.
func (a *Autocommit) RateLimit(ctx context.Context, requests ...Request) (Result, error) {
	o := a.l.observe(ctx, requests)
	return o.told(a.rateLimit(ctx, o, requests...))
}

func (a *Autocommit) rateLimit(
	ctx context.Context, o *observation, requests ...Request,
) (Result, error) {
	return ask(ctx, a, requests, func(ctx context.Context, x executor, calls []call) (Result, error) {
		return beside(calls, false, func(calls []call) (Result, error) {
			return a.l.rateLimit(ctx, o.counting(x), calls)
		})
	})
}

// Consume is [Limiter.Consume], committed when it returns.
func (a *Autocommit) Consume(ctx context.Context, requests ...Request) error {
	return consume(requests, func() (Result, error) { return a.RateLimit(ctx, requests...) })
}

// CheckRateLimit is [Limiter.CheckRateLimit].
func (a *Autocommit) CheckRateLimit(ctx context.Context, requests ...Request) (Result, error) {
	return ask(ctx, a, requests, func(ctx context.Context, x executor, calls []call) (Result, error) {
		return beside(calls, false, func(calls []call) (Result, error) {
			return a.l.checkRateLimit(ctx, x, calls)
		})
	})
}

// ResetRateLimit is [Limiter.ResetRateLimit], committed when it returns.
func (a *Autocommit) ResetRateLimit(ctx context.Context, requests ...Request) error {
	return a.do(ctx, bare(requests), a.l.resetRateLimit)
}

// ResetKey is [Limiter.ResetKey], committed when it returns.
func (a *Autocommit) ResetKey(ctx context.Context, key string) error {
	return a.inTx(ctx, time.Now(), func(ctx context.Context, x executor) error {
		return within{l: a.l, x: x}.ResetKey(ctx, key)
	})
}

// Pause is [Limiter.Pause], committed when it returns.
func (a *Autocommit) Pause(ctx context.Context, d time.Duration, requests ...Request) error {
	if err := checkPause(d); err != nil {
		return err
	}
	return a.do(ctx, bare(requests), func(ctx context.Context, x executor, calls []call) error {
		return a.l.pause(ctx, x, d, calls)
	})
}

// Resume is [Limiter.Resume], committed when it returns.
func (a *Autocommit) Resume(ctx context.Context, requests ...Request) error {
	return a.do(ctx, bare(requests), a.l.resume)
}

// GiveBack is [Limiter.GiveBack], committed when it returns.
func (a *Autocommit) GiveBack(ctx context.Context, res Result) error {
	if calls, err := res.taken(); err != nil || len(calls) == 0 {
		return err
	}
	return a.inTx(ctx, time.Now(), func(ctx context.Context, x executor) error {
		return a.l.giveBack(ctx, x, res)
	})
}

// Settle is [Limiter.Settle], committed when it returns.
func (a *Autocommit) Settle(
	ctx context.Context, r Reservation, used ...Request,
) (settled bool, err error) {
	err = a.inTx(ctx, time.Now(), func(ctx context.Context, x executor) error {
		settled, err = a.l.settle(ctx, x, r, used)
		return err
	})
	return settled && err == nil, err
}

// Release is [Limiter.Release], committed when it returns.
func (a *Autocommit) Release(ctx context.Context, r Reservation) (released bool, err error) {
	err = a.inTx(ctx, time.Now(), func(ctx context.Context, x executor) error {
		released, err = a.l.release(ctx, x, r)
		return err
	})
	return released && err == nil, err
}

// Value is [Limiter.Value].
func (a *Autocommit) Value(ctx context.Context, request Request) (State, error) {
	return ask(ctx, a, bare([]Request{request}), a.l.value)
}

// ask runs a verb that has an answer.
func ask[T any](
	ctx context.Context, a *Autocommit, requests []Request,
	verb func(context.Context, executor, []call) (T, error),
) (answer T, err error) {
	err = a.do(ctx, requests, func(ctx context.Context, x executor, calls []call) error {
		answer, err = verb(ctx, x, calls)
		return err
	})
	if err != nil {
		var none T
		return none, err
	}
	return answer, nil
}

// do runs a verb. If it is for one row, each of its round trips is a transaction of its own. If it
// is for several, one transaction holds them together.
func (a *Autocommit) do(
	ctx context.Context, requests []Request, verb func(context.Context, executor, []call) error,
) error {
	calls, err := resolveAll(requests)
	if err != nil {
		return err
	}
	switch {
	case a.pool == nil:
		return errNoPool()
	case !a.l.made():
		return errNotMade()
	}
	if nested(ctx, a.pool) {
		return errNested
	}
	began := time.Now()
	if len(calls) == 1 {
		if err := verb(ctx, a.perTrip(began), calls); !errors.Is(err, errUndecided) {
			return err
		}
		// Between TAKE and LOOK other callers changed the row each time. A transaction of its own
		// keeps the row locked in between.
	}
	return a.inTx(ctx, began, func(ctx context.Context, x executor) error {
		return verb(ctx, x, calls)
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

func (a *Autocommit) inTx(ctx context.Context, began time.Time,
	fn func(context.Context, executor) error) error {
	if a.pool == nil {
		return errNoPool()
	}
	return a.l.inTime(ctx, began, func(ctx context.Context) error {
		return a.l.inTx(ctx, a.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted},
			func(ctx context.Context, tx pgx.Tx) error { return fn(ctx, a.l.transaction(tx)) }, nil)
	})
}

func errNoPool() error { return &InvalidError{Field: "pool", Value: nil, Want: "an open pool"} }

// perTrip returns the executor whose round trips are a transaction each.
func (a *Autocommit) perTrip(began time.Time) executor {
	return executor{to: poolSender{a, began}, single: true}
}

type poolSender struct {
	a     *Autocommit
	began time.Time // when the call was made: see inTime
}

func (x poolSender) send(ctx context.Context, statements []*statement) error {
	return x.a.l.inTime(ctx, x.began, func(ctx context.Context) error {
		conn, err := x.a.pool.Acquire(ctx)
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
			return committed(err)
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
	return committed(err)
}

// committed handles the error of a transaction that was sent together with its COMMIT. Unless
// Postgres answered that it was rolled back, it may have been committed.
func committed(err error) error {
	if err == nil || isRolledBack(err) {
		return err
	}
	return unknown(err)
}
