package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/weir-go/weir/internal/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

// A user waits for the answer of a model, so there is no job. The call waits for its turn, and what
// it has used is settled however it ends: with an answer, an error, a disconnect or a panic.
func ExampleAutocommit_Settle() {
	ctx := context.Background()
	pool, done := pgtest.Example()
	defer done()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	var (
		streamTokens   = ratelimit.MustDefine("streamTokens", ratelimit.TokenBucket{Rate: 40_000, Period: 30 * 24 * time.Hour})
		streamRequests = ratelimit.MustDefine("streamRequests", ratelimit.TokenBucket{Rate: 500, Period: 30 * 24 * time.Hour})
	)
	auto := limiter.Autocommit(pool)

	ask := func(ctx context.Context, most float64, stream func(report func(used float64)) error) (err error) {
		turn, cancel := context.WithTimeout(ctx, 10*time.Second) // a user waits no longer for the start
		defer cancel()
		res, err := auto.Wait(turn, streamTokens.Global().Count(most), streamRequests.Global())
		if err != nil {
			return err // nothing was taken, and the model must not be called
		}
		used := most // until the stream reports: what nobody knows stays charged
		defer func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second) // the user may have left
			defer cancel()
			_, settleErr := auto.Settle(ctx, res.Reservation(), streamTokens.Global().Count(used))
			err = errors.Join(err, settleErr)
		}()
		return stream(func(n float64) { used = n })
	}

	ctx, leave := context.WithCancel(ctx)
	err = ask(ctx, 2000, func(report func(float64)) error {
		report(700) // as far as the stream has come
		leave()     // the browser is closed
		return ctx.Err()
	})
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
