package ratelimit_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

// price is what a model costs, in millionths of a dollar per token.
type price struct{ input, cached, output float64 }

func (p price) of(input, cached, output float64) float64 {
	return p.input*input + p.cached*cached + p.output*output
}

const dollars = 1e6

// An organisation, its teams and their users each have a limit. A call takes from all of them or
// from none. The budgets count money, so that models of different prices share them.
func ExampleRequest_Count() {
	ctx := context.Background()
	pool, done := pgtest.Example()
	defer done()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	const month = 30 * 24 * time.Hour
	var (
		orgBudget  = ratelimit.MustDefine("orgBudget", ratelimit.FixedWindow{Rate: 500 * dollars, Period: month})
		teamBudget = ratelimit.MustDefine("teamBudget", ratelimit.FixedWindow{Rate: 50 * dollars, Period: month})
		userCalls  = ratelimit.MustDefine("userCalls", ratelimit.TokenBucket{Rate: 20, Period: time.Minute})

		large = price{input: 3, cached: 0.3, output: 15}
	)
	auto := limiter.Autocommit(pool)

	for range 2 {
		estimate := large.of(10_000, 0, 2_000_000) // the prompt, and as much as the answer may have
		res, err := auto.RateLimit(ctx,
			orgBudget.For("acme").Count(estimate),
			teamBudget.For("acme/research").Count(estimate), // names of organisations have no slash
			userCalls.For("ann"))
		if err != nil {
			log.Fatal(err)
		}
		if !res.OK {
			fmt.Println("denied by", res.Limit)
			continue
		}

		cost := large.of(2_000, 8_000, 1_500_000) // what the answer says
		if _, err := auto.Settle(ctx, res.Reservation(),
			orgBudget.For("acme").Count(cost), teamBudget.For("acme/research").Count(cost)); err != nil {
			log.Fatal(err)
		}
		fmt.Printf("granted, for %.2f dollars\n", cost/dollars)
	}
	// Output:
	// granted, for 22.51 dollars
	// denied by teamBudget
}
