package ratelimit_test

import (
	"context"
	"fmt"
	"log"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

// A server without a transaction for each request: its calls are decided together, and let through
// for a while if the database is away.
func ExampleLimiter_Coalesce() {
	ctx := context.Background()
	pool, done := pgtest.Example(messageTable)
	defer done()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	visits := ratelimit.MustDefine("visits", ratelimit.TokenBucket{Rate: 100, Period: time.Hour})

	together := limiter.Coalesce(pool)
	defer together.Close() // before the pool
	limits := &ratelimit.FailOpen{Limiter: together, For: 30 * time.Second, Timeout: 10 * time.Second}

	var served, refused atomic.Int64
	var handlers sync.WaitGroup
	for range 150 {
		handlers.Go(func() {
			res, err := limits.RateLimit(ctx, visits.For("203.0.113.7"))
			switch {
			case err != nil: // 503
				log.Print(err)
			case !res.OK: // 429
				refused.Add(1)
			default:
				served.Add(1)
			}
		})
	}
	handlers.Wait()
	fmt.Println(served.Load(), "served,", refused.Load(), "refused,", limits.Opened(), "let through")
	// Output:
	// 100 served, 50 refused, 0 let through
}
