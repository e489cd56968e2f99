package ratelimit

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Verbs are the operations on limits, however they are called. [Limiter.In] and [Limiter.InSQL]
// return them for your transaction; [Autocommit] and [Coalesced] have them for callers without one.
// Each does what the method of [Limiter] of the same name does.
//
// In tests without a database use the Limiter of package weirtest, which has all of these methods.
// Code that calls only a few of them can declare a smaller interface: all of these types satisfy
// it, too.
type Verbs interface {
	RateLimit(ctx context.Context, requests ...Request) (Result, error)
	Consume(ctx context.Context, requests ...Request) error
	CheckRateLimit(ctx context.Context, requests ...Request) (Result, error)
	ResetRateLimit(ctx context.Context, requests ...Request) error
	ResetKey(ctx context.Context, key string) error
	GiveBack(ctx context.Context, res Result) error
	Settle(ctx context.Context, r Reservation, used ...Request) (bool, error)
	Release(ctx context.Context, r Reservation) (bool, error)
	Value(ctx context.Context, request Request) (State, error)
	Pause(ctx context.Context, d time.Duration, requests ...Request) error
	Resume(ctx context.Context, requests ...Request) error
}

var (
	_ Verbs = (*Autocommit)(nil)
	_ Verbs = (*Coalesced)(nil)
)

// In returns the verbs in a transaction of pgx, for code that need not know how it is called:
//
//	res, err := Model.RateLimit(ctx, limiter.In(tx), fair.Tenant{Key: org}, 1200)
func (l *Limiter) In(tx pgx.Tx) Verbs { return l.in(tx) }

// in is small enough to be inlined: so its result needs no allocation, unless it is kept.
func (l *Limiter) in(tx pgx.Tx) *within {
	w := l.inside(tx)
	return &w
}

func (l *Limiter) inside(tx pgx.Tx) within {
	w := within{l: l}
	switch {
	case !l.made():
		w.err = errNotMade()
	case tx == nil:
		w.err = errNoTx()
	default:
		w.x = l.transaction(tx)
	}
	return w
}

// within has the verbs: in a transaction, or over a pool. The comments of its methods are for
// Autocommit, with which go doc shows them.
type within struct {
	l    *Limiter
	x    executor      // of the transaction
	pool *pgxpool.Pool // or of none
	err  error         // why there is neither
}

// do runs a verb, which may run again after a conflict. lone is for a pool: see overPool.
func (w *within) do(
	ctx context.Context, lone bool, verb func(context.Context, executor) error,
) error {
	switch {
	case w.err != nil:
		return w.err
	case w.pool == nil:
		return verb(ctx, w.x)
	}
	return w.l.overPool(ctx, w.pool, lone, nil, verb)
}

// ask is do for a verb that has an answer.
func ask[R any](ctx context.Context, w *within, lone bool,
	verb func(context.Context, executor) (R, error)) (R, error) {
	if w.pool == nil && w.err == nil {
		return verb(ctx, w.x)
	}
	return askPool(ctx, w, lone, verb)
}

// askPool is ask over a pool. The closure that runs again keeps the answer on the heap.
func askPool[R any](ctx context.Context, w *within, lone bool,
	verb func(context.Context, executor) (R, error)) (answer R, err error) {
	err = w.do(ctx, lone, func(ctx context.Context, x executor) (err error) {
		answer, err = verb(ctx, x)
		return err
	})
	if err != nil { // it may be that of COMMIT
		var none R
		return none, err
	}
	return answer, nil
}

// doAll is do for all rows of the requests' limits and keys.
func (w *within) doAll(ctx context.Context, requests []Request,
	verb func(context.Context, executor, []call) error) error {
	calls, err := resolveAll(bare(requests))
	if err != nil {
		return err
	}
	return w.do(ctx, len(calls) == 1, func(ctx context.Context, x executor) error {
		return verb(ctx, x, calls)
	})
}

// RateLimit is [Limiter.RateLimit], committed when it returns. To grant, one limit takes one round
// trip, and several take two.
func (w *within) RateLimit(ctx context.Context, requests ...Request) (Result, error) {
	o := w.l.observe(ctx, requests)
	return o.told(w.rateLimit(ctx, o, requests...))
}

func (w *within) rateLimit(
	ctx context.Context, o *observation, requests ...Request,
) (Result, error) {
	calls, err := resolveAll(requests)
	if err != nil {
		return Result{}, err
	}
	return w.take(ctx, o, calls)
}

// take decides calls, and then their shadows.
func (w *within) take(ctx context.Context, o *observation, calls []call) (Result, error) {
	return ask(ctx, w, len(calls) == 1, func(ctx context.Context, x executor) (Result, error) {
		x = o.counting(x)
		return beside(calls, false, func(calls []call) (Result, error) {
			res, err := w.l.rateLimit(ctx, x, calls)
			x.ends = w.pool == nil // once the enforced limits are taken, the shadows follow
			return res, err
		})
	})
}

// Consume is [Limiter.Consume], committed when it returns.
func (w *within) Consume(ctx context.Context, requests ...Request) error {
	return consume(requests, func() (Result, error) { return w.RateLimit(ctx, requests...) })
}

func consume(requests []Request, take func() (Result, error)) error {
	for _, r := range requests {
		if r.Reserves() {
			return &InvalidError{Limit: r.Limit().Name(), Field: "request",
				Value: plain(r.String()),
				Want:  "one without OrReserve or Within: use RateLimit, whose Result says when the work may start"}
		}
	}
	res, err := take()
	if err != nil {
		return err
	}
	return res.Err()
}

// CheckRateLimit is [Limiter.CheckRateLimit].
func (w *within) CheckRateLimit(ctx context.Context, requests ...Request) (Result, error) {
	calls, err := resolveAll(requests)
	if err != nil {
		return Result{}, err
	}
	return ask(ctx, w, len(calls) == 1, func(ctx context.Context, x executor) (Result, error) {
		return beside(calls, false, func(calls []call) (Result, error) {
			return w.l.checkRateLimit(ctx, x, calls)
		})
	})
}

// ResetRateLimit is [Limiter.ResetRateLimit], committed when it returns.
func (w *within) ResetRateLimit(ctx context.Context, requests ...Request) error {
	return w.doAll(ctx, requests, w.l.resetRateLimit)
}

// ResetKey is [Limiter.ResetKey], committed when it returns.
func (w *within) ResetKey(ctx context.Context, key string) error {
	if err := badKey("", key); err != nil {
		return err
	}
	return w.do(ctx, false, func(ctx context.Context, x executor) error {
		return w.l.resetKey(ctx, x, key)
	})
}

// GiveBack is [Limiter.GiveBack], committed when it returns.
func (w *within) GiveBack(ctx context.Context, res Result) error {
	rows, err := res.taken()
	if err != nil || len(rows) == 0 {
		return err
	}
	return w.do(ctx, false, func(ctx context.Context, x executor) error {
		return w.l.giveBack(ctx, x, rows)
	})
}

// Settle is [Limiter.Settle], committed when it returns.
func (w *within) Settle(
	ctx context.Context, r Reservation, used ...Request,
) (settled bool, err error) {
	if err := r.check(); err != nil {
		return false, err
	}
	counts, err := r.used(used)
	if err != nil {
		return false, err
	}
	return ask(ctx, w, false, func(ctx context.Context, x executor) (bool, error) {
		return w.l.settle(ctx, x, &r, counts)
	})
}

// Release is [Limiter.Release], committed when it returns.
func (w *within) Release(ctx context.Context, r Reservation) (released bool, err error) {
	if err := r.check(); err != nil {
		return false, err
	}
	return ask(ctx, w, false, func(ctx context.Context, x executor) (bool, error) {
		return w.l.release(ctx, x, &r)
	})
}

// Value is [Limiter.Value].
func (w *within) Value(ctx context.Context, request Request) (State, error) {
	calls, err := resolveAll(bare([]Request{request}))
	if err != nil {
		return State{}, err
	}
	return ask(ctx, w, true, func(ctx context.Context, x executor) (State, error) {
		return w.l.value(ctx, x, calls)
	})
}

// Pause is [Limiter.Pause], committed when it returns.
func (w *within) Pause(ctx context.Context, d time.Duration, requests ...Request) error {
	if err := checkPause(d); err != nil {
		return err
	}
	return w.doAll(ctx, requests,
		func(ctx context.Context, x executor, calls []call) error {
			return w.l.pause(ctx, x, d, calls)
		})
}

// Resume is [Limiter.Resume], committed when it returns.
func (w *within) Resume(ctx context.Context, requests ...Request) error {
	return w.doAll(ctx, requests, w.l.resume)
}
