package scheduler_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// A thousand replies are reserved at once, in as many round trips as one: the first start now, the
// others when their tokens exist, and if there were too many of them none would be inserted.
func ExampleJobs_InsertMany() {
	ctx := context.Background()
	pool, stop := examplePool(ctx)
	defer stop()
	riverClient, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: quiet()}) // inserts only
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	jobs := scheduler.New(limiter, scheduler.Config{}).Jobs(riverClient)
	replies := ratelimit.MustDefine("replies",
		ratelimit.TokenBucket{Rate: 100, Period: time.Hour, MaxReserved: ratelimit.Tokens(1000)})

	for range 2 {
		params := make([]scheduler.InsertManyParams, 1000)
		for i := range params {
			params[i] = scheduler.InsertManyParams{
				Args:     GenerateReply{int64(i)},
				Requests: []ratelimit.Request{replies.For("acme").OrReserve()},
			}
		}
		in, err := jobs.InsertMany(ctx, pool, params)
		if err != nil {
			log.Fatal(err)
		}
		if !in.OK {
			fmt.Printf("none inserted: %s of %q comes in %v\n", in.Limit, in.Key, in.RetryAfter().Round(time.Hour))
			continue
		}
		for _, i := range []int{0, 99, 100, 999} {
			one := in.Jobs[i]
			if one.RunAt.IsZero() {
				fmt.Println("reply", i, "starts now")
			} else {
				fmt.Println("reply", i, "starts in", one.RunAt.Sub(one.At).Round(time.Minute/2))
			}
		}
	}
	// Output:
	// reply 0 starts now
	// reply 99 starts now
	// reply 100 starts in 30s
	// reply 999 starts in 9h0m0s
	// none inserted: replies of "acme" comes in 9h0m0s
}
