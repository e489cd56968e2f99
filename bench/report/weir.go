package main

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/ratelimit"
)

const weirTable = "weir_balance"

func weirWays() []contender {
	return []contender{
		{
			name: "Weir, InTx", family: weir, shared: true, joins: true, table: weirTable,
			about: "`limiter.InTx`, a transaction at SERIALIZABLE, its default, with only `limiter.RateLimit` in it. A denied call returns " +
				"`res.Err()`, which rolls back. A transaction that conflicts runs again, and counts once.",
			open: func(_ context.Context, at place, b bucket) (limiter, error) {
				return newInTx(at, b, pgx.Serializable)
			},
		},
		{
			name: "Weir, InTx at READ COMMITTED", family: weir, shared: true, joins: true,
			table: weirTable,
			about: "The same with `limiter.InTxOptions` at READ COMMITTED.",
			open: func(_ context.Context, at place, b bucket) (limiter, error) {
				return newInTx(at, b, pgx.ReadCommitted)
			},
		},
		{
			name: "Weir, autocommit", family: weir, shared: true, table: weirTable,
			about: "`limiter.Autocommit(pool).RateLimit`: each call is a transaction of its own.",
			open: func(_ context.Context, at place, b bucket) (limiter, error) {
				w, err := newWeirLimit(b)
				if err != nil {
					return nil, err
				}
				return &autocommit{w.limiter.Autocommit(at.pool), w.limit}, nil
			},
		},
		coalescedWay(),
		leasedWay(),
	}
}

// weirLimit is a limit of a Limiter with the zero Config.
type weirLimit struct {
	limiter *ratelimit.Limiter
	limit   ratelimit.Limit
}

func newWeirLimit(b bucket) (w weirLimit, err error) {
	if w.limiter, err = ratelimit.New(ratelimit.Config{}); err != nil {
		return w, err
	}
	w.limit, err = ratelimit.Define("calls",
		ratelimit.TokenBucket{Rate: float64(b.tokens), Period: b.period})
	return w, err
}

type inTx struct {
	weirLimit
	pool  *pgxpool.Pool
	level pgx.TxIsoLevel
}

func newInTx(at place, b bucket, level pgx.TxIsoLevel) (limiter, error) {
	w, err := newWeirLimit(b)
	if err != nil {
		return nil, err
	}
	return &inTx{w, at.pool, level}, nil
}

func (w *inTx) take(ctx context.Context, key string) (bool, error) {
	err := w.limiter.InTxOptions(ctx, w.pool, pgx.TxOptions{IsoLevel: w.level},
		func(ctx context.Context, tx pgx.Tx) error {
			res, err := w.limiter.RateLimit(ctx, tx, w.limit.For(key))
			if err != nil {
				return err
			}
			return res.Err()
		})
	if errors.Is(err, ratelimit.ErrDenied) {
		return false, nil
	}
	return err == nil, err
}

func (*inTx) close() error { return nil }

type autocommit struct {
	verbs *ratelimit.Autocommit
	limit ratelimit.Limit
}

func (w *autocommit) take(ctx context.Context, key string) (bool, error) {
	res, err := w.verbs.RateLimit(ctx, w.limit.For(key))
	return res.OK, err
}

func (*autocommit) close() error { return nil }
