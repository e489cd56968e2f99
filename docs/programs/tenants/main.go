// Tenants limits what each tenant may do by its plan, and all of them together.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/schema"
)

var (
	messages    = ratelimit.MustDefine("messages", ratelimit.TokenBucket{Rate: 3, Period: time.Hour}) // without a plan
	allMessages = ratelimit.MustDefine("allMessages", ratelimit.TokenBucket{Rate: 10_000, Period: time.Hour}, ratelimit.Shards(4))
)

// send takes from the tenant's limit and from everybody's, both or none.
func send(ctx context.Context, limits *ratelimit.Coalesced, pool *pgxpool.Pool, tenant string) error {
	plan := ratelimit.TokenBucket{Period: time.Hour}
	if err := pool.QueryRow(ctx, `SELECT hourly FROM demo_tenant WHERE name = $1`, tenant).Scan(&plan.Rate); err != nil {
		return err
	}
	res, err := limits.RateLimit(ctx, messages.For(tenant).Rule(plan), allMessages.Global())
	if err != nil {
		return err
	}
	if res.OK {
		fmt.Printf("%s has %.0f left\n", tenant, res.Outcomes[0].Value)
	} else {
		fmt.Println(tenant, "is denied by", res.Limit, "for", res.RetryAfter().Round(time.Minute))
	}
	return nil
}

func main() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	if err := schema.Migrate(ctx, pool); err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	limits := limiter.Coalesce(pool)
	defer limits.Close()
	must := func(err error) {
		if err != nil {
			log.Fatal(err)
		}
	}
	exec := func(sql string) { _, err := pool.Exec(ctx, sql); must(err) }

	exec(`CREATE TABLE IF NOT EXISTS demo_tenant (name text PRIMARY KEY, hourly float8 NOT NULL); TRUNCATE demo_tenant`)
	exec(`INSERT INTO demo_tenant VALUES ('acme', 3), ('globex', 30)`)
	must(limits.ResetKey(ctx, "acme")) // so that it can be run again
	must(limits.ResetKey(ctx, "globex"))
	for _, tenant := range []string{"acme", "acme", "acme", "acme", "globex"} {
		must(send(ctx, limits, pool, tenant))
	}
	exec(`UPDATE demo_tenant SET hourly = 30 WHERE name = 'acme'`)
	must(send(ctx, limits, pool, "acme")) // tokens flow in faster at once; what was used was used
	must(limits.ResetKey(ctx, "acme"))    // everything of a tenant is full again
	must(send(ctx, limits, pool, "acme"))
}
