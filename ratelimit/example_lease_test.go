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

// A hot path takes from memory, and gives back at the end what it has in hand.
func ExampleLimiter_Lease() {
	ctx := context.Background()
	pool, done := pgtest.Example(messageTable)
	defer done()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	clicks := ratelimit.MustDefine("clicks", ratelimit.TokenBucket{Rate: 100_000, Period: time.Hour})

	lease, err := limiter.Lease(pool, clicks.Global(), ratelimit.LeaseConfig{})
	if err != nil {
		log.Fatal(err)
	}
	granted := 0
	for range 1000 {
		res, err := lease.Take(ctx, 1) // seldom a round trip
		if err != nil {
			log.Fatal(err)
		}
		if res.OK {
			granted++
		}
	}
	fmt.Println(granted, "granted")

	// In a transaction: without a round trip of its own, and back in hand if that rolls back.
	err = limiter.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
		res, err := lease.TakeInTx(ctx, tx, 1)
		if err != nil {
			return err
		}
		if !res.OK {
			return res.Err()
		}
		_, err = tx.Exec(ctx, `INSERT INTO message (org, body) VALUES ('acme', 'clicked')`)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := lease.Close(ctx); err != nil {
		log.Print(err) // what could not be given back in time counts as used
	}
	// Output: 1000 granted
}
