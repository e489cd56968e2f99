// Start saves messages: three a minute for each user, taken in the transaction that saves them.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/schema"
)

var Messages = ratelimit.MustDefine("messages", ratelimit.TokenBucket{Rate: 3, Period: time.Minute})

func main() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	if err := schema.Migrate(ctx, pool); err != nil { // any number of processes may, as they start
		log.Fatal(err)
	}
	if _, err := pool.Exec(ctx, `CREATE TABLE IF NOT EXISTS start_message (author text, body text); TRUNCATE start_message`); err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	if err := limiter.Autocommit(pool).ResetRateLimit(ctx, Messages.For("ann")); err != nil { // so that it can be run again
		log.Fatal(err)
	}

	for i := 1; i <= 4; i++ {
		err := save(ctx, limiter, pool, "ann", fmt.Sprint("message ", i))
		var denied *ratelimit.DeniedError
		switch {
		case err == nil:
			fmt.Println("message", i, "is saved")
		case errors.As(err, &denied):
			fmt.Println("message", i, "is denied: come again in", denied.RetryAfter().Round(time.Second))
		default:
			log.Fatal(err)
		}
	}
}

func save(ctx context.Context, limiter *ratelimit.Limiter, pool *pgxpool.Pool, author, body string) error {
	return limiter.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
		if err := limiter.Consume(ctx, tx, Messages.For(author)); err != nil {
			return err // rolls back: nothing was taken, nothing was written
		}
		_, err := tx.Exec(ctx, `INSERT INTO start_message (author, body) VALUES ($1, $2)`, author, body)
		return err
	})
}
