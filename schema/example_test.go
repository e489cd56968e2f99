package schema_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/schema"
)

func Example() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	// Every process of a fleet may do this as it starts.
	if err := schema.Migrate(ctx, pool, schema.In("weir")); err != nil {
		log.Fatal(err)
	}
}

func ExampleCheck() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	err = schema.Check(ctx, pool, schema.In("weir"))
	switch {
	case errors.Is(err, schema.ErrNotMigrated):
		fmt.Println("deploy the migrations first:", err)
	case errors.Is(err, schema.ErrIncompatible):
		fmt.Println("this program is too old for its database:", err)
	case err != nil:
		log.Fatal(err)
	}
}

// On the coordinator of a Citus cluster.
func ExampleDistributed() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	err = schema.Migrate(ctx, pool, schema.In("weir"), schema.Distributed())
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.New(ratelimit.Config{Schema: "weir", Citus: true})
	if err != nil {
		log.Fatal(err)
	}
	_ = limiter // takes as on plain Postgres
}
