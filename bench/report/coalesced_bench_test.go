package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/bench/internal/redisserver"
	"github.com/weir-go/weir/internal/test/pair"
	"github.com/weir-go/weir/internal/test/pgtest"
)

// BenchmarkCoalesced lets callers take from an ample limit, by coalesced calls against redis_rate,
// in slices of 200 ms: of a hundred thousand keys, and of one. Both have 32 connections. x-redis is
// the throughput of ours by that of redis_rate. See package pair for the rest of the line, and for
// the runs that are void.
func BenchmarkCoalesced(b *testing.B) {
	for _, keys := range []struct {
		name    string
		count   int
		callers []int
	}{{"many-keys", 100_000, []int{64, 256}}, {"one-key", 1, []int{64, 1024}}} {
		for _, callers := range keys.callers {
			b.Run(fmt.Sprintf("%s/callers=%d", keys.name, callers), func(b *testing.B) {
				againstRedis(b, coalescedWay(), numbered(keys.count), callers)
			})
		}
	}
}

func againstRedis(b *testing.B, way contender, keys []string, callers int) {
	server, err := redisserver.Start(b.Context())
	needsRedis(b, err)
	b.Cleanup(func() {
		if err := server.Stop(); err != nil {
			b.Error(err)
		}
	})
	client := server.Client(mostConns)
	b.Cleanup(func() { _ = client.Close() })
	pool := pgtest.Pool(b, func(c *pgxpool.Config) {
		c.MaxConns = mostConns
		c.ConnConfig.RuntimeParams["synchronous_commit"] = "off"
	})
	at, limit := place{pool, client}, limitOf[manyKeys]
	if len(keys) == 1 {
		limit = limitOf[oneKey]
	}
	open := func(c contender) limiter {
		l, err := c.open(b.Context(), at, limit)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			if err := l.close(); err != nil {
				b.Error(err)
			}
		})
		return l
	}
	ours, base := open(way), open(redisWays()[0])
	if err := touch(b.Context(), ours, keys, callers); err != nil {
		b.Fatal(err)
	}
	if _, err := pool.Exec(b.Context(), "VACUUM ANALYZE "+weirTable); err != nil {
		b.Fatal(err)
	}
	take := func(l limiter) func(context.Context, int) error {
		return func(ctx context.Context, _ int) error {
			return granted(l.take(ctx, keys[rand.IntN(len(keys))]))
		}
	}
	pair.Slices(b, pair.Crowd{Metric: "x-redis", Base: take(base), Ours: take(ours),
		Workers: callers, Slice: 200 * time.Millisecond, Rounds: 24})
}
