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

var ChatTokens = ratelimit.MustDefine("chatTokens", ratelimit.TokenBucket{Rate: 40_000, Period: time.Minute})

func saveMessage(
	ctx context.Context, limiter *ratelimit.Limiter, pool *pgxpool.Pool, org, text string, tokens float64,
) error {
	return limiter.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
		if err := limiter.Consume(ctx, tx, ChatTokens.For(org).Count(tokens)); err != nil {
			return err // rolls back: nothing was taken, nothing was written
		}
		_, err := tx.Exec(ctx, `INSERT INTO message (org, body) VALUES ($1, $2)`, org, text)
		return err
	})
}

func Example() {
	ctx := context.Background()
	pool, done := pgtest.Example(messageTable)
	defer done()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}

	for range 2 {
		err := saveMessage(ctx, limiter, pool, "acme", "hello", 40_000)
		var denied *ratelimit.DeniedError
		switch {
		case err == nil:
			fmt.Println("saved")
		case errors.As(err, &denied):
			fmt.Println("denied by", denied.Limit, "for about", denied.RetryAfter().Round(time.Minute))
		default:
			log.Fatal(err)
		}
	}
	// Output:
	// saved
	// denied by chatTokens for about 1m0s
}

// A reservation is granted ahead of its tokens, and says when they will exist.
func ExampleRequest_OrReserve() {
	ctx := context.Background()
	pool, done := pgtest.Example(messageTable)
	defer done()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	calls := ratelimit.MustDefine("calls",
		ratelimit.TokenBucket{Rate: 1, Period: time.Hour, MaxReserved: ratelimit.Tokens(2)})

	for range 4 {
		err := limiter.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
			res, err := limiter.RateLimit(ctx, tx, calls.Global().OrReserve())
			if err != nil {
				return err
			}
			switch {
			case !res.OK:
				fmt.Println("denied: two hours of calls are reserved already")
			case res.RunAt.IsZero():
				fmt.Println("run now")
			default:
				fmt.Println("run in", res.RunAt.Sub(res.At).Round(time.Minute))
			}
			return nil
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// run now
	// run in 1h0m0s
	// run in 2h0m0s
	// denied: two hours of calls are reserved already
}

// A plan decides by its own numbers. Usage is kept when the plan changes.
func ExampleRequest_Rule() {
	ctx := context.Background()
	pool, done := pgtest.Example(messageTable)
	defer done()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	exports := ratelimit.MustDefine("exports", ratelimit.FixedWindow{Rate: 3, Period: 24 * time.Hour})
	pro := ratelimit.FixedWindow{Rate: 100, Period: 24 * time.Hour}

	free := limiter.Autocommit(pool)
	for _, request := range []ratelimit.Request{
		exports.For("u1").Count(3),
		exports.For("u1"),
		exports.For("u2").Rule(pro).Count(50),
	} {
		res, err := free.RateLimit(ctx, request)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(res.OK, res.Outcomes[0].Value)
	}
	// Output:
	// true 0
	// false 0
	// true 50
}

// Charge first, check then, give back what turned out to be good: callers who come at once cannot
// pass together.
func ExampleLimiter_GiveBack() {
	ctx := context.Background()
	pool, done := pgtest.Example(messageTable)
	defer done()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	signIn := ratelimit.MustDefine("signIn", ratelimit.TokenBucket{Rate: 3, Period: 24 * time.Hour})

	attempt := func(password string) string {
		res, err := limiter.Autocommit(pool).RateLimit(ctx, signIn.For("alice")) // committed, whatever follows
		if err != nil {
			log.Fatal(err)
		}
		if !res.OK {
			return "locked"
		}
		if password != "secret" { // slow, and outside of any transaction
			return "wrong"
		}
		if err := limiter.Autocommit(pool).GiveBack(ctx, res); err != nil {
			log.Fatal(err)
		}
		return "welcome"
	}
	for _, password := range []string{"secret", "guess", "guess", "secret", "guess", "secret"} {
		fmt.Println(attempt(password))
	}
	// Output:
	// welcome
	// wrong
	// wrong
	// welcome
	// wrong
	// locked
}

// An upstream says to come again in an hour. Until then the limit is closed for whoever calls; what
// can wait is reserved.
func ExampleLimiter_Pause() {
	ctx := context.Background()
	pool, done := pgtest.Example(messageTable)
	defer done()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	partner := ratelimit.MustDefine("partner", ratelimit.TokenBucket{Rate: 100, Period: time.Minute})

	auto := limiter.Autocommit(pool)
	if err := auto.Pause(ctx, time.Hour, partner.For("acme")); err != nil { // Retry-After: 3600
		log.Fatal(err)
	}
	for _, request := range []ratelimit.Request{partner.For("acme"),
		partner.For("acme").OrReserve(), partner.For("other")} {
		res, err := auto.RateLimit(ctx, request)
		if err != nil {
			log.Fatal(err)
		}
		switch {
		case !res.OK:
			fmt.Println("denied for", res.RetryAfter().Round(time.Minute))
		case res.RunAt.IsZero():
			fmt.Println("run now")
		default:
			fmt.Println("run in", res.RunAt.Sub(res.At).Round(time.Minute))
		}
	}
	if err := auto.Resume(ctx, partner.For("acme")); err != nil { // it was a false alarm
		log.Fatal(err)
	}
	res, err := auto.RateLimit(ctx, partner.For("acme"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("resumed:", res.OK)
	// Output:
	// denied for 1h0m0s
	// run in 1h0m0s
	// run now
	// resumed: true
}

// Decide foretells, without a database.
func ExampleDecide() {
	limit := ratelimit.MustDefine("search", ratelimit.TokenBucket{Rate: 10, Period: time.Minute})
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	d, err := ratelimit.Decide(limit.For("u1").Count(4), ratelimit.State{Value: 1, TS: noon}, noon.Add(6*time.Second))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(d.OK, d.State.Value, d.RetryAt.Format(time.TimeOnly))
	// Output: false 2 12:00:18
}

// messageTable is one of the application's.
const messageTable = `CREATE TABLE message (org text, body text)`
