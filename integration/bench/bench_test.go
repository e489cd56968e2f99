package bench

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// BenchmarkTake takes from one of 10,000 keys, by one caller, in the ways that there are.
func BenchmarkTake(b *testing.B) {
	limit := ratelimit.MustDefine("bench", ratelimit.TokenBucket{Rate: 1e12, Period: rig.Never})
	for _, w := range rig.Ways {
		b.Run(w.Name, func(b *testing.B) {
			pool := pgtest.Pool(b)
			v := w.Verbs(b, rig.Limiter(b, ratelimit.Config{Portable: w.Portable}), pool)
			b.ReportAllocs()
			for b.Loop() {
				if res, err := v.RateLimit(b.Context(),
					limit.For(fmt.Sprint(rand.IntN(10_000)))); err != nil || !res.OK {
					b.Fatal(res, err)
				}
			}
		})
	}
}
