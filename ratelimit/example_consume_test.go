package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

var Comments = ratelimit.MustDefine("comments", ratelimit.TokenBucket{Rate: 1, Period: time.Minute})

// Consume is enough where the work starts now or not at all.
func ExampleLimiter_Consume() {
	ctx := context.Background()
	pool, done := pgtest.Example(messageTable)
	defer done()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}

	comment := func(user, text string) error {
		return limiter.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
			if err := limiter.Consume(ctx, tx, Comments.For(user)); err != nil {
				return err // rolls back: nothing was taken, nothing was written
			}
			_, err := tx.Exec(ctx, `INSERT INTO message (org, body) VALUES ($1, $2)`, user, text)
			return err
		})
	}
	fmt.Println(comment("ada", "first"))
	fmt.Println(errors.Is(comment("ada", "second"), ratelimit.ErrDenied))
	// Output:
	// <nil>
	// true
}
