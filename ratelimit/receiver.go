package ratelimit

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Verbs are the operations on limits, however they are called. [Limiter.In] and [Limiter.InSQL]
// return them for your transaction; [Autocommit] and [Coalesced] have them for callers without one.
// Each does what the method of [Limiter] of the same name does.
//
// In tests without a database use the Limiter of package weirtest, which has all of these methods.
// Code that calls only a few of them can declare a smaller interface: all of these types satisfy it,
// too.
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

func (l *Limiter) in(tx pgx.Tx) within {
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

// within has the verbs in a transaction.
type within struct {
	l   *Limiter
	x   executor
	err error // why there is no transaction
}

// resolve checks the requests of a verb.
func (w within) resolve(requests []Request) ([]call, error) {
	calls, err := resolveAll(requests)
	if err != nil {
		return nil, err
	}
	return calls, w.err
}

func (w within) RateLimit(ctx context.Context, requests ...Request) (Result, error) {
	o := w.l.observe(ctx, requests)
	calls, err := w.resolve(requests)
	if err != nil {
		return o.told(Result{}, err)
	}
	x := o.counting(w.x)
	return o.told(beside(calls, false, func(calls []call) (Result, error) {
		res, err := w.l.rateLimit(ctx, x, calls)
		x.ends = true // once the enforced limits are taken, the shadows follow
		return res, err
	}))
}

func (w within) Consume(ctx context.Context, requests ...Request) error {
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

func (w within) CheckRateLimit(ctx context.Context, requests ...Request) (Result, error) {
	calls, err := w.resolve(requests)
	if err != nil {
		return Result{}, err
	}
	return beside(calls, false, func(calls []call) (Result, error) {
		return w.l.checkRateLimit(ctx, w.x, calls)
	})
}

func (w within) ResetRateLimit(ctx context.Context, requests ...Request) error {
	calls, err := w.resolve(bare(requests))
	if err != nil {
		return err
	}
	return w.l.resetRateLimit(ctx, w.x, calls)
}

func (w within) ResetKey(ctx context.Context, key string) error {
	if err := badKey("", key); err != nil {
		return err
	}
	if w.err != nil {
		return w.err
	}
	return w.l.resetKey(ctx, w.x, key)
}

func (w within) GiveBack(ctx context.Context, res Result) error {
	if w.err != nil {
		return w.err
	}
	return w.l.giveBack(ctx, w.x, res)
}

func (w within) Settle(ctx context.Context, r Reservation, used ...Request) (bool, error) {
	if w.err != nil {
		return false, w.err
	}
	return w.l.settle(ctx, w.x, r, used)
}

func (w within) Release(ctx context.Context, r Reservation) (bool, error) {
	if w.err != nil {
		return false, w.err
	}
	return w.l.release(ctx, w.x, r)
}

func (w within) Value(ctx context.Context, request Request) (State, error) {
	calls, err := w.resolve(bare([]Request{request}))
	if err != nil {
		return State{}, err
	}
	return w.l.value(ctx, w.x, calls)
}

func (w within) Pause(ctx context.Context, d time.Duration, requests ...Request) error {
	if err := checkPause(d); err != nil {
		return err
	}
	calls, err := w.resolve(bare(requests))
	if err != nil {
		return err
	}
	return w.l.pause(ctx, w.x, d, calls)
}

func (w within) Resume(ctx context.Context, requests ...Request) error {
	calls, err := w.resolve(bare(requests))
	if err != nil {
		return err
	}
	return w.l.resume(ctx, w.x, calls)
}
