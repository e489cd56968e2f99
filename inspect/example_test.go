package inspect_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/weir-go/weir/inspect"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

func Example() {
	ctx := context.Background()
	pool, done := pgtest.Example()
	defer done()
	noon := func() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

	// The program that takes.
	limiter, err := ratelimit.New(ratelimit.Config{Clock: noon})
	if err != nil {
		log.Fatal(err)
	}
	chat := ratelimit.MustDefine("chatTokens", ratelimit.TokenBucket{Rate: 1000, Period: time.Minute})
	if err := limiter.Autocommit(pool).Consume(ctx, chat.For("acme").Count(750)); err != nil {
		log.Fatal(err)
	}

	// Another one, which does not know the limit.
	look, err := inspect.New(pool, inspect.Config{Clock: noon})
	if err != nil {
		log.Fatal(err)
	}
	limits, err := look.Limits(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, l := range limits {
		fmt.Printf("%s: %v in %v, %d key\n", l.Name, l.Rate, l.Period, l.Keys)
	}
	balance, err := look.Balance(ctx, "chatTokens", "acme")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s has %v of %v, and all of it at %s\n", balance.Key, balance.Value,
		balance.Capacity, balance.FullAt.Format(time.TimeOnly))
	// Output:
	// chatTokens: 1000 in 1m0s, 1 key
	// acme has 250 of 1000, and all of it at 12:00:45
}
