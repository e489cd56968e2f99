// Start sends messages: three a minute for each user.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/schema"
)

var messages = ratelimit.MustDefine("messages", ratelimit.TokenBucket{Rate: 3, Period: time.Minute})

func main() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	if err := schema.Migrate(ctx, pool); err != nil { // safe in every process, at each start
		log.Fatal(err)
	}
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	limits := limiter.Autocommit(pool)                                      // for calls that belong to no transaction
	if err := limits.ResetRateLimit(ctx, messages.For("ann")); err != nil { // to run it again
		log.Fatal(err)
	}
	for i := 1; i <= 4; i++ {
		err := limits.Consume(ctx, messages.For("ann"))
		var denied *ratelimit.DeniedError
		switch {
		case err == nil:
			fmt.Println("message", i, "is sent")
		case errors.As(err, &denied):
			fmt.Println("message", i, "is denied: retry in", denied.RetryAfter().Round(time.Second))
		default:
			log.Fatal(err) // the database did not answer, so the message is not sent
		}
	}
}
