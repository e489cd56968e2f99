package ratelimit_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

// A user waits for the answer of a model, so there is no job. The call waits for its turn, and what
// it has used is settled however it ends: with an answer, an error, a disconnect or a panic.
func ExampleAutocommit_Do() {
	ctx := context.Background()
	pool, done := pgtest.Example()
	defer done()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	var (
		streamTokens = ratelimit.MustDefine("streamTokens",
			ratelimit.TokenBucket{Rate: 40_000, Period: 30 * 24 * time.Hour})
		streamRequests = ratelimit.MustDefine("streamRequests",
			ratelimit.TokenBucket{Rate: 500, Period: 30 * 24 * time.Hour})
	)
	auto := limiter.Autocommit(pool)

	// stream stands for the client of a model, whose answer the user reads as it comes.
	ctx, leave := context.WithCancel(ctx)
	stream := func(ctx context.Context, progress func(tokens int64)) error {
		progress(700) // as far as it has come
		leave()       // the browser is closed
		return ctx.Err()
	}

	err = auto.Do(ctx, func(ctx context.Context, used func(...ratelimit.Request)) error {
		return stream(ctx, func(tokens int64) { used(streamTokens.Global().CountInt(tokens)) })
	}, streamTokens.Global().Count(2000).Within(10*time.Second), streamRequests.Global()) // a user waits no longer for the start
	fmt.Println("the call:", err)

	left, err := auto.Value(context.Background(), streamTokens.Global())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%.0f tokens left\n", left.Value)
	// Output:
	// the call: context canceled
	// 39300 tokens left
}
