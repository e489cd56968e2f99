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

var Completions = ratelimit.MustDefine("completions",
	ratelimit.TokenBucket{Rate: 60_000, Period: time.Minute, Capacity: ratelimit.Tokens(1_024)}, ratelimit.Shards(32))

// A limit with shards is asked like any other. It is one limit: what all shards have together is
// granted.
func ExampleShards() {
	ctx := context.Background()
	pool, done := pgtest.Example(messageTable)
	defer done()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	err = limiter.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
		res, err := limiter.RateLimit(ctx, tx, Completions.Global().Count(900))
		if err != nil {
			return err
		}
		return res.Err()
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("900 of 1024, from 32 shards")
	// Output: 900 of 1024, from 32 shards
}
