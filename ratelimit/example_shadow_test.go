package ratelimit_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

// What a smaller limit would do is seen before it is enforced: it stands beside the one that holds
// today, under the same name.
func ExampleShadow() {
	ctx := context.Background()
	pool, done := pgtest.Example(messageTable)
	defer done()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	uploads := ratelimit.MustDefine("uploads", ratelimit.TokenBucket{Rate: 100, Period: time.Hour})
	smaller := ratelimit.MustDefine("uploads", ratelimit.TokenBucket{Rate: 5, Period: time.Hour}, ratelimit.Shadow())

	granted, wouldBeDenied := 0, 0
	for range 8 {
		res, err := limiter.Autocommit(pool).RateLimit(ctx, uploads.For("acme"), smaller.For("acme"))
		if err != nil {
			log.Fatal(err)
		}
		if res.OK {
			granted++
		}
		if o := res.Outcomes[1]; o.Shadow && !o.OK {
			wouldBeDenied++
		}
	}
	fmt.Println(granted, "granted, of which", wouldBeDenied, "would be denied by", smaller.Name())
	// Output: 8 granted, of which 3 would be denied by uploads (shadow)
}
