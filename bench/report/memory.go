package main

import (
	"context"
	"sync"

	golimiter "github.com/sethvargo/go-limiter"
	"github.com/sethvargo/go-limiter/memorystore"
	"golang.org/x/time/rate"
)

func memoryWays() []contender {
	return []contender{
		{
			name: "x/time/rate", family: memory,
			about: "golang.org/x/time/rate in a sync.Map with a limiter per key. In memory: its limit is that of one process.",
			open: func(_ context.Context, _ place, b bucket) (limiter, error) {
				return &timeRate{bucket: b}, nil
			},
		},
		{
			name: "go-limiter", family: memory,
			about: "github.com/sethvargo/go-limiter with its memory store. In memory: its limit is that of one process. All tokens of a " +
				"period come at its beginning and are gone at its end: in n periods it grants the tokens of n periods. A bucket grants those " +
				"of one period more, because it starts full.",
			open: func(_ context.Context, _ place, b bucket) (limiter, error) {
				store, err := memorystore.New(
					&memorystore.Config{Tokens: uint64(b.tokens), Interval: b.period},
				)
				if err != nil {
					return nil, err
				}
				return &goLimiter{store}, nil
			},
		},
	}
}

type timeRate struct {
	bucket bucket
	byKey  sync.Map // of *rate.Limiter
}

func (t *timeRate) take(_ context.Context, key string) (bool, error) {
	l, ok := t.byKey.Load(key)
	if !ok {
		l, _ = t.byKey.LoadOrStore(key,
			rate.NewLimiter(rate.Limit(t.bucket.perSecond()), t.bucket.tokens))
	}
	return l.(*rate.Limiter).Allow(), nil
}

func (*timeRate) close() error { return nil }

type goLimiter struct{ store golimiter.Store }

func (g *goLimiter) take(ctx context.Context, key string) (bool, error) {
	_, _, _, ok, err := g.store.Take(ctx, key)
	return ok, err
}

func (g *goLimiter) close() error { return g.store.Close(context.Background()) }
