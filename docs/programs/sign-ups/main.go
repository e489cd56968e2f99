// Sign-ups makes accounts: at most three a day per address, and a hundred a day in total.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/schema"
)

var (
	signUps          = ratelimit.MustDefine("signUps", ratelimit.FixedWindow{Rate: 100, Period: 24 * time.Hour, Start: midnight})
	signUpsByAddress = ratelimit.MustDefine("signUpsByAddress", ratelimit.FixedWindow{Rate: 3, Period: 24 * time.Hour, Start: midnight})
	midnight         = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	errTaken         = errors.New("that name is taken")
)

func signUp(ctx context.Context, limiter *ratelimit.Limiter, pool *pgxpool.Pool, address, name string) error {
	return limiter.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
		if err := limiter.Consume(ctx, tx, signUpsByAddress.For(address), signUps.Global()); err != nil { // both or none
			return err
		}
		_, err := tx.Exec(ctx, `INSERT INTO demo_account (name) VALUES ($1)`, name)
		if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) && pg.Code == "23505" { // unique_violation
			return errTaken // rolls back: the tokens were never taken
		}
		return err
	})
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
	// So that it can be run again.
	if _, err := pool.Exec(ctx, `CREATE TABLE IF NOT EXISTS demo_account (name text PRIMARY KEY); TRUNCATE demo_account`); err != nil {
		log.Fatal(err)
	}
	if err := limiter.Autocommit(pool).ResetRateLimit(ctx, signUps.Global(), signUpsByAddress.For("198.51.100.7")); err != nil {
		log.Fatal(err)
	}

	for _, name := range []string{"alice", "bob", "alice", "carol", "dave"} {
		err := signUp(ctx, limiter, pool, "198.51.100.7", name)
		var denied *ratelimit.DeniedError
		switch {
		case err == nil:
			fmt.Println(name, "has an account")
		case errors.As(err, &denied):
			fmt.Println(name, "is denied by", denied.Limit, "until midnight:", denied.RetryAt.UTC().Format(time.TimeOnly))
		default:
			fmt.Println(name, "gets an error:", err)
		}
	}
}
