package scheduler_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

var sharedAPI = ratelimit.MustDefine("sharedAPI", ratelimit.TokenBucket{
	Rate: 10, Period: time.Second, MaxReserved: ratelimit.Tokens(100),
})

// The jobs of a fair line are listed in the order of their turns.
func ExampleJobs_InLine() {
	ctx := context.Background()
	pool, stop := examplePool(ctx)
	defer stop()
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: quiet()})
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	sched := scheduler.New(limiter, scheduler.Config{Lines: []scheduler.Line{{Limit: sharedAPI}}})
	jobs := sched.Jobs(client)

	err = limiter.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
		for id, tenant := range []string{"greedy", "greedy", "greedy", "modest"} {
			_, err := jobs.QueueTx(ctx, tx, GenerateReply{int64(id)}, nil,
				scheduler.Tenant{Key: tenant}, sharedAPI.Global().Count(5))
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	err = limiter.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
		next, _, err := jobs.InLine(ctx, tx, "sharedAPI", "", 100)
		for _, w := range next {
			fmt.Printf("%d. job %d of %s, which will have had %v before\n", w.Place, w.Job.ID, w.Tenant, w.Charged)
		}
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// 1. job 1 of greedy, which will have had 0 before
	// 2. job 4 of modest, which will have had 0 before
	// 3. job 2 of greedy, which will have had 5 before
	// 4. job 3 of greedy, which will have had 10 before
}
