package main

import (
	"context"

	"github.com/weir-go/weir/ratelimit"
)

func coalescedWay() contender {
	return contender{
		name: "Weir, coalesced", family: weir, shared: true, table: weirTable,
		about: "`limiter.Coalesce(pool)`: calls that come at the same time share a statement and a commit. At most two of these " +
			"are in flight.",
		open: func(_ context.Context, at place, b bucket) (limiter, error) {
			w, err := newWeirLimit(b)
			if err != nil {
				return nil, err
			}
			return &coalesced{w.limiter.Coalesce(at.pool), w.limit}, nil
		},
	}
}

type coalesced struct {
	verbs *ratelimit.Coalesced
	limit ratelimit.Limit
}

func (w *coalesced) take(ctx context.Context, key string) (bool, error) {
	res, err := w.verbs.RateLimit(ctx, w.limit.For(key))
	return res.OK, err
}

func (w *coalesced) close() error {
	w.verbs.Close()
	return nil
}
