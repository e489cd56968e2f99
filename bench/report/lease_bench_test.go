package main

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/time/rate"

	"github.com/weir-go/weir/internal/test/pair"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

// BenchmarkLease takes one token at a time from a lease of an ample limit, against
// AllowN(time.Now(), 1) of x/time/rate: by one goroutine, and by as many as there are cores. An
// operation is a thousand takes, as one is too short for a clock. x-timerate is the time of
// x/time/rate by ours.
func BenchmarkLease(b *testing.B) {
	b.Run("one", func(b *testing.B) {
		base, ours := leaseSides(b)
		pair.Run(b, pair.Sides{Metric: "x-timerate", Base: base, Ours: ours})
	})
	b.Run("parallel", func(b *testing.B) {
		base, ours := leaseSides(b)
		worker := func(do func(context.Context) error) func(context.Context, int) error {
			return func(ctx context.Context, _ int) error { return do(ctx) }
		}
		pair.Slices(b, pair.Crowd{Metric: "x-timerate", Base: worker(base), Ours: worker(ours),
			Workers: runtime.GOMAXPROCS(0),
			Slice:   200 * time.Millisecond, Rounds: 24})
	})
}

const takes = 1000 // of an operation

func leaseSides(b *testing.B) (base, ours func(context.Context) error) {
	b.Helper()
	pool := pgtest.Pool(b, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["synchronous_commit"] = "off" })
	ample := bucket{1_000_000_000_000, 1000 * time.Second} // more than anybody takes
	w, err := newWeirLimit(ample)
	if err != nil {
		b.Fatal(err)
	}
	lease, err := w.limiter.Lease(pool, w.limit.For("k"), ratelimit.LeaseConfig{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := lease.Close(context.WithoutCancel(b.Context())); err != nil {
			b.Error(err)
		}
	})
	inMemory := rate.NewLimiter(rate.Limit(ample.perSecond()), ample.tokens)
	base = func(context.Context) error {
		for range takes {
			if !inMemory.AllowN(time.Now(), 1) {
				return granted(false, nil)
			}
		}
		return nil
	}
	ours = func(ctx context.Context) error {
		for range takes {
			if res, err := lease.Take(ctx, 1); err != nil || !res.OK {
				return granted(res.OK, err)
			}
		}
		return nil
	}
	return base, ours
}
