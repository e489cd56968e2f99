package ratelimit_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

// Balances that are full again are like none, so that they need no rows. A program prunes them once
// a day.
func ExampleLimiter_Prune() {
	ctx := context.Background()
	pool, done := pgtest.Example()
	defer done()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	visitors := ratelimit.MustDefine("visitors", ratelimit.TokenBucket{Rate: 100, Period: time.Millisecond})
	exports := ratelimit.MustDefine("exports", ratelimit.TokenBucket{Rate: 3, Period: 24 * time.Hour})
	for _, request := range []ratelimit.Request{visitors.For("198.51.100.7"),
		visitors.For("203.0.113.9"), exports.For("acme")} {
		if err := limiter.Autocommit(pool).Consume(ctx, request); err != nil {
			log.Fatal(err)
		}
	}

	time.Sleep(10 * time.Millisecond) // in earnest a day
	pruned, err := limiter.Prune(ctx, pool, ratelimit.PruneConfig{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(pruned.Deleted, "of", pruned.Looked, "balances were full again")
	// Output: 2 of 3 balances were full again
}
