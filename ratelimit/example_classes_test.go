package ratelimit_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

// Each class of reservations has a MaxReserved of its own, on the same row.
func ExampleRequest_Rule_classes() {
	ctx := context.Background()
	pool, done := pgtest.Example()
	defer done()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	limits := limiter.Autocommit(pool)

	rule := ratelimit.TokenBucket{Rate: 1000, Period: time.Hour, MaxReserved: ratelimit.Tokens(1000)}
	replies := ratelimit.MustDefine("replies", rule)
	rule.MaxReserved = ratelimit.Tokens(200)
	reply := replies.Global().Count(100).OrReserve()
	digest := replies.Global().Count(100).OrReserve().Rule(rule)

	reserve := func(request ratelimit.Request) (n int) {
		for {
			res, err := limits.RateLimit(ctx, request)
			if err != nil {
				log.Fatal(err)
			}
			if !res.OK {
				return n
			}
			n++
		}
	}
	fmt.Println(reserve(digest), "digests, of which two wait")
	fmt.Println(reserve(reply), "replies, which all wait")
	// Output:
	// 12 digests, of which two wait
	// 8 replies, which all wait
}
