package main

import (
	"context"
	_ "embed"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/goredisstore.v9"
)

func redisWays() []contender {
	return []contender{
		{
			name: "redis_rate", family: inRedis, shared: true,
			about: "github.com/go-redis/redis_rate: GCRA in a Lua script, one round trip. Its burst is the capacity.",
			open: func(_ context.Context, at place, b bucket) (limiter, error) {
				return &redisRate{redis_rate.NewLimiter(at.redis),
					redis_rate.Limit{Rate: b.tokens, Burst: b.tokens, Period: b.period}}, nil
			},
		},
		{
			name: "throttled", family: inRedis, shared: true,
			about: "github.com/throttled/throttled with its store for go-redis: GCRA in Go, with a read and a compare-and-swap: two round " +
				"trips. By default a call fails after losing ten swaps to other callers. Here it may try a million times, so that no call fails.",
			open: func(_ context.Context, at place, b bucket) (limiter, error) {
				return newThrottledLimiter(at, b)
			},
		},
		{
			name: "Lua token bucket", family: inRedis, shared: true,
			about: "A token bucket like Guava's RateLimiter in a [script of sixteen lines](../bench/report/bucket.lua), called " +
				"with EVALSHA, one round trip.",
			open: func(_ context.Context, at place, b bucket) (limiter, error) {
				return &luaBucket{at.redis, redis.NewScript(luaScript), b.tokens,
					b.perSecond() / 1e6}, nil
			},
		},
	}
}

type redisRate struct {
	limiter *redis_rate.Limiter
	limit   redis_rate.Limit
}

func (r *redisRate) take(ctx context.Context, key string) (bool, error) {
	res, err := r.limiter.Allow(ctx, key, r.limit)
	if err != nil {
		return false, err
	}
	return res.Allowed > 0, nil
}

func (*redisRate) close() error { return nil }

type throttledLimiter struct{ limiter *throttled.GCRARateLimiterCtx }

func newThrottledLimiter(at place, b bucket) (limiter, error) {
	store, err := goredisstore.NewCtx(at.redis, "throttled:")
	if err != nil {
		return nil, err
	}
	l, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{
		MaxRate: throttled.PerDuration(b.tokens, b.period), MaxBurst: b.tokens - 1,
	})
	if err != nil {
		return nil, err
	}
	l.SetMaxCASAttemptsLimit(1_000_000)
	return &throttledLimiter{l}, nil
}

func (t *throttledLimiter) take(ctx context.Context, key string) (bool, error) {
	limited, _, err := t.limiter.RateLimitCtx(ctx, key, 1)
	return !limited && err == nil, err
}

func (*throttledLimiter) close() error { return nil }

//go:embed bucket.lua
var luaScript string

type luaBucket struct {
	client   *redis.Client
	script   *redis.Script
	capacity int
	rate     float64 // tokens in a microsecond
}

func (l *luaBucket) take(ctx context.Context, key string) (bool, error) {
	granted, err := l.script.Run(ctx, l.client, []string{"lua:" + key}, l.capacity, l.rate).Int()
	return granted == 1, err
}

func (*luaBucket) close() error { return nil }
