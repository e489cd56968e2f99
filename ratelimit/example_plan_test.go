package ratelimit_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

var (
	Messages    = ratelimit.MustDefine("messages", ratelimit.TokenBucket{Rate: 10, Period: time.Minute})
	AllMessages = ratelimit.MustDefine("allMessages",
		ratelimit.TokenBucket{Rate: 5000, Period: time.Minute}, ratelimit.Shards(8))
)

// planOf is the rule of a tenant's plan, as it stands in the application's own table.
func planOf(ctx context.Context, tx pgx.Tx, tenant string) (ratelimit.Rule, error) {
	var plan ratelimit.TokenBucket
	var seconds float64
	err := tx.QueryRow(ctx, `SELECT p.rate, p.seconds FROM tenant t JOIN plan p ON p.name = t.plan
		WHERE t.name = $1`, tenant).Scan(&plan.Rate, &seconds)
	plan.Period = time.Duration(seconds * float64(time.Second))
	return plan, err
}

// send takes one token of the tenant's own and one of those that all tenants share, or none.
func send(ctx context.Context, limiter *ratelimit.Limiter, pool *pgxpool.Pool, tenant string) error {
	return limiter.InTxOptions(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted},
		func(ctx context.Context, tx pgx.Tx) error {
			plan, err := planOf(ctx, tx, tenant)
			if err != nil {
				return err
			}
			res, err := limiter.RateLimit(ctx, tx, Messages.For(tenant).Rule(plan), AllMessages.Global())
			if err != nil {
				return err
			}
			return res.Err()
		})
}

// A tenant's rule is read with each call, so a change of plan holds from the next one on, and keeps
// what was used.
func Example_plans() {
	ctx := context.Background()
	pool, done := pgtest.Example(messageTable)
	defer done()
	if _, err := pool.Exec(ctx, `
		CREATE TABLE plan (name text PRIMARY KEY, rate float8 NOT NULL, seconds float8 NOT NULL);
		CREATE TABLE tenant (name text PRIMARY KEY, plan text NOT NULL REFERENCES plan);
		INSERT INTO plan VALUES ('free', 3, 3600), ('pro', 10, 3600);
		INSERT INTO tenant VALUES ('acme', 'free')`); err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	burst := func() (sent int) {
		for send(ctx, limiter, pool, "acme") == nil {
			sent++
		}
		return sent
	}
	fmt.Println("free:", burst(), "messages")

	if _, err := pool.Exec(ctx, `UPDATE tenant SET plan = 'pro' WHERE name = 'acme'`); err != nil {
		log.Fatal(err)
	}
	fmt.Println("pro, what was used is still used:", burst(), "messages")

	if err := limiter.Autocommit(pool).ResetKey(ctx, "acme"); err != nil {
		log.Fatal(err)
	}
	fmt.Println("pro, after a reset:", burst(), "messages")
	// Output:
	// free: 3 messages
	// pro, what was used is still used: 0 messages
	// pro, after a reset: 10 messages
}
