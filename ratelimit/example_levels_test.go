package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

// At READ COMMITTED what was read before the take does not matter to it: whoever holds the row is
// waited for, and nothing fails.
func ExampleLimiter_InTxOptions() {
	ctx := context.Background()
	pool, done := pgtest.Example(messageTable, `CREATE TABLE plan (org text, hourly float8)`,
		`INSERT INTO plan VALUES ('acme', 2)`)
	defer done()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	messages := ratelimit.MustDefine("messages", ratelimit.TokenBucket{Rate: 1, Period: time.Hour})

	readCommitted := pgx.TxOptions{IsoLevel: pgx.ReadCommitted}
	for range 3 {
		err := limiter.InTxOptions(ctx, pool, readCommitted, func(ctx context.Context, tx pgx.Tx) error {
			plan := ratelimit.TokenBucket{Period: time.Hour}
			if err := tx.QueryRow(ctx, `SELECT hourly FROM plan WHERE org = 'acme'`).Scan(&plan.Rate); err != nil {
				return err
			}
			res, err := limiter.RateLimit(ctx, tx, messages.For("acme").Rule(plan))
			if err != nil {
				return err
			}
			return res.Err()
		})
		fmt.Println(err == nil, errors.Is(err, ratelimit.ErrDenied))
	}
	// Output:
	// true false
	// true false
	// false true
}

// Any transaction of pgx will do. Above READ COMMITTED it has to be run again by its owner if it
// cannot be serialized.
func ExampleLimiter_RateLimit() {
	ctx := context.Background()
	pool, done := pgtest.Example(messageTable)
	defer done()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}

	tx, err := pool.Begin(ctx) // at the server's default, READ COMMITTED mostly
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = tx.Rollback(ctx) }() // after COMMIT it does nothing
	res, err := limiter.RateLimit(ctx, tx, ChatTokens.For("acme").Count(1200))
	if err != nil {
		log.Fatal(err)
	}
	if !res.OK {
		log.Fatal(res.Err())
	}
	if _, err := tx.Exec(ctx, `INSERT INTO message (org, body) VALUES ('acme', 'hello')`); err != nil {
		log.Fatal(err)
	}
	fmt.Println("committed:", tx.Commit(ctx) == nil)
	// Output: committed: true
}

// placeOrder has an id of the caller's, so that a COMMIT whose outcome is unknown can be looked up.
func placeOrder(ctx context.Context, limiter *ratelimit.Limiter, pool *pgxpool.Pool, id, org string) error {
	err := limiter.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
		if err := limiter.Consume(ctx, tx, ChatTokens.For(org)); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `INSERT INTO orders (id, org) VALUES ($1, $2)`, id, org)
		return err
	})
	if errors.Is(err, ratelimit.ErrOutcomeUnknown) {
		var placed bool
		lookup := pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM orders WHERE id = $1)`, id).Scan(&placed)
		if lookup == nil && placed {
			return nil // and its tokens are taken
		}
	}
	return err
}

// After a COMMIT of unknown outcome the order and its tokens are both there or both not: the one
// tells of the other.
func ExampleLimiter_InTx_outcomeUnknown() {
	ctx := context.Background()
	pool, done := pgtest.Example(`CREATE TABLE orders (id text PRIMARY KEY, org text)`)
	defer done()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(placeOrder(ctx, limiter, pool, "7f3a", "acme"))
	// Output: <nil>
}
