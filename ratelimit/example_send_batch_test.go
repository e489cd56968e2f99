package ratelimit_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

var SentMessages = ratelimit.MustDefine("sentMessages", ratelimit.TokenBucket{Rate: 1, Period: time.Hour})

// The token and the message are committed together, in one round trip.
func ExampleLimiter_SendBatch() {
	ctx := context.Background()
	pool, done := pgtest.Example(messageTable)
	defer done()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}

	for range 2 {
		var body string
		res, err := limiter.SendBatch(ctx, pool, func(b *pgx.Batch) error {
			b.Queue(`INSERT INTO message (org, body) VALUES ($1, $2) RETURNING body`, "acme", "hello").
				QueryRow(func(row pgx.Row) error { return row.Scan(&body) })
			return nil
		}, SentMessages.For("acme"))
		switch {
		case err != nil:
			log.Fatal(err)
		case res.OK:
			fmt.Println("saved", body)
		default:
			fmt.Println("denied for about", res.RetryAfter().Round(time.Hour))
		}
	}
	// Output:
	// saved hello
	// denied for about 1h0m0s
}
