package fair_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/weir-go/weir/fair"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

var Model = fair.MustDefine("sharedModel", ratelimit.TokenBucket{Rate: 1000, Period: time.Hour},
	fair.Config{Window: 24 * time.Hour})

// One tenant takes all that it can get; the others, who come later and want little, find that
// something is left for them.
func Example() {
	ctx := context.Background()
	pool, done := pgtest.Example()
	defer done()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	limits := limiter.Autocommit(pool)
	take := func(tenant string, n float64) bool {
		res, err := Model.RateLimit(ctx, limits, fair.Tenant{Key: tenant}, n)
		if err != nil {
			log.Fatal(err)
		}
		return res.OK
	}

	granted := 0
	for take("greedy", 10) { // until it is denied
		granted += 10
	}
	fmt.Println("the greedy one has more than half:", granted > 500)
	fmt.Println("and the small one is granted:", take("small", 10))
	// Output:
	// the greedy one has more than half: true
	// and the small one is granted: true
}
