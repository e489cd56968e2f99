package ratelimit_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

// When the limit runs short, what is critical goes on, and the rest waits until there is more than
// it is to leave.
func ExampleRequest_Leave() {
	ctx := context.Background()
	pool, done := pgtest.Example(messageTable)
	defer done()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	model := ratelimit.MustDefine("model", ratelimit.TokenBucket{Rate: 1000, Period: time.Hour})
	limits := limiter.Autocommit(pool)

	chat := model.Global().Count(100)
	summary := model.Global().Count(100).Leave(200)
	summaries, chats := 0, 0
	for {
		res, err := limits.RateLimit(ctx, summary)
		if err != nil {
			log.Fatal(err)
		}
		if !res.OK {
			break
		}
		summaries++
	}
	for {
		res, err := limits.RateLimit(ctx, chat)
		if err != nil {
			log.Fatal(err)
		}
		if !res.OK {
			break
		}
		chats++
	}
	fmt.Println(summaries, "summaries, and still", chats, "chats")
	// Output: 8 summaries, and still 2 chats
}
