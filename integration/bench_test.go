package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

// BenchmarkTake takes from one of 10,000 keys, by one caller, in the ways that there are.
func BenchmarkTake(b *testing.B) {
	limit := ratelimit.MustDefine("bench", ratelimit.TokenBucket{Rate: 1e12, Period: never})
	for _, w := range ways {
		b.Run(w.name, func(b *testing.B) {
			pool := pgtest.Pool(b)
			v := w.verbs(b, limiter(b, ratelimit.Config{Portable: w.portable}), pool)
			b.ReportAllocs()
			for b.Loop() {
				if res, err := v.RateLimit(b.Context(), limit.For(fmt.Sprint(rand.IntN(10_000)))); err != nil || !res.OK {
					b.Fatal(res, err)
				}
			}
		})
	}
}

// BenchmarkDeny is denied each time, as expected, in a transaction that has been opened before.
func BenchmarkDeny(b *testing.B) {
	limit := ratelimit.MustDefine("bench", ratelimit.TokenBucket{Rate: 1, Period: never})
	pool, l := pgtest.Pool(b), limiter(b, ratelimit.Config{})
	err := l.InTx(b.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := l.RateLimit(ctx, tx, limit.For("k")); err != nil {
			return err
		}
		b.ReportAllocs()
		for b.Loop() {
			if res, err := l.RateLimit(ctx, tx, limit.For("k")); err != nil || res.OK {
				return fmt.Errorf("%+v: %w", res, err)
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
}
