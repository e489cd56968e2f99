package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/ratelimit"
)

func leasedWay() contender {
	return contender{
		name: "Weir, leased", family: weir, shared: true, oneKey: true,
		about: "`limiter.Lease(pool, request, ratelimit.LeaseConfig{})`: blocks of tokens are taken from the database, and handed out from " +
			"memory. A lease is for one key, so it is not measured with many keys.",
		open: func(_ context.Context, at place, b bucket) (limiter, error) {
			w, err := newWeirLimit(b)
			if err != nil {
				return nil, err
			}
			return &leased{weirLimit: w, pool: at.pool}, nil
		},
	}
}

// leased has a lease of the key that it is asked for first.
type leased struct {
	weirLimit
	pool  *pgxpool.Pool
	first sync.Once
	key   string
	lease *ratelimit.Lease
	err   error
}

func (w *leased) take(ctx context.Context, key string) (bool, error) {
	w.first.Do(func() {
		w.key = key
		w.lease, w.err = w.limiter.Lease(w.pool, w.limit.For(key), ratelimit.LeaseConfig{})
	})
	if w.err != nil {
		return false, w.err
	}
	if key != w.key {
		return false, fmt.Errorf("a lease of key %q is asked for %q", w.key, key)
	}
	res, err := w.lease.Take(ctx, 1)
	return res.OK, err
}

func (w *leased) close() error {
	if w.lease == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return w.lease.Close(ctx)
}
