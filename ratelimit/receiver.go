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
// If your code declares an interface with some of these methods, it accepts all of these types, and
// in tests the Limiter of package weirtest, which lacks only ResetKey, Settle and Release.
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
func (l *Limiter) In(tx pgx.Tx) Verbs { return inTx{l, tx} }

type inTx struct {
	l  *Limiter
	tx pgx.Tx
}

func (x inTx) RateLimit(ctx context.Context, requests ...Request) (Result, error) {
	return x.l.RateLimit(ctx, x.tx, requests...)
}

func (x inTx) Consume(ctx context.Context, requests ...Request) error {
	return x.l.Consume(ctx, x.tx, requests...)
}

func (x inTx) CheckRateLimit(ctx context.Context, requests ...Request) (Result, error) {
	return x.l.CheckRateLimit(ctx, x.tx, requests...)
}

func (x inTx) ResetRateLimit(ctx context.Context, requests ...Request) error {
	return x.l.ResetRateLimit(ctx, x.tx, requests...)
}

func (x inTx) ResetKey(ctx context.Context, key string) error {
	return x.l.ResetKey(ctx, x.tx, key)
}

func (x inTx) GiveBack(ctx context.Context, res Result) error {
	return x.l.GiveBack(ctx, x.tx, res)
}

func (x inTx) Settle(ctx context.Context, r Reservation, used ...Request) (bool, error) {
	return x.l.Settle(ctx, x.tx, r, used...)
}

func (x inTx) Release(ctx context.Context, r Reservation) (bool, error) {
	return x.l.Release(ctx, x.tx, r)
}

func (x inTx) Value(ctx context.Context, request Request) (State, error) {
	return x.l.Value(ctx, x.tx, request)
}

func (x inTx) Pause(ctx context.Context, d time.Duration, requests ...Request) error {
	return x.l.Pause(ctx, x.tx, d, requests...)
}

func (x inTx) Resume(ctx context.Context, requests ...Request) error {
	return x.l.Resume(ctx, x.tx, requests...)
}
