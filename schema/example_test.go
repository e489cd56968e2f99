package schema_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"

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
