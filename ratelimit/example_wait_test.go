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

// In a transaction: reserve only what runs soon enough to wait for after COMMIT. What would run
// later is refused, and the order with it.
func ExampleRequest_Within() {
	ctx := context.Background()
	pool, done := pgtest.Example(messageTable)
	defer done()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	mails := ratelimit.MustDefine("mails",
		ratelimit.TokenBucket{Rate: 1, Period: time.Second, Capacity: ratelimit.Tokens(1)})

	order := func(text string) error {
		var res ratelimit.Result
		err := limiter.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) (err error) {
			if res, err = limiter.RateLimit(ctx, tx, mails.For("acme").Within(2*time.Second)); err != nil {
				return err
			}
			if !res.OK {
				return res.Err()
			}
			_, err = tx.Exec(ctx, `INSERT INTO message (org, body) VALUES ('acme', $1)`, text)
			return err
		})
		if err != nil {
			return err
		}
		if !res.RunAt.IsZero() {
			time.Sleep(res.RunAt.Sub(res.At)) // or hand it to a queue, for RunAt
		}
		return nil // send the mail
	}
	began := time.Now()
	for _, text := range []string{"first", "second"} {
		if err := order(text); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println("sent two, the second after a second:", time.Since(began) >= time.Second)

	if err := limiter.Autocommit(pool).Pause(ctx, time.Minute, mails.For("acme")); err != nil {
		log.Fatal(err)
	}
	fmt.Println("the third is denied:", errors.Is(order("third"), ratelimit.ErrDenied))
	// Output:
	// sent two, the second after a second: true
	// the third is denied: true
}

// On credit a large request starts at once, and the next one waits until it is paid for.
func ExampleRequest_OnCredit() {
	ctx := context.Background()
	pool, done := pgtest.Example(messageTable)
	defer done()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	pages := ratelimit.MustDefine("pages", ratelimit.TokenBucket{Rate: 100, Period: time.Hour})

	for _, n := range []float64{90, 60, 5} {
		res, err := limiter.Autocommit(pool).RateLimit(ctx, pages.For("acme").Count(n).OnCredit())
		if err != nil {
			log.Fatal(err)
		}
		if res.OK {
			fmt.Println(n, "pages start now")
		} else {
			fmt.Println(n, "pages can start in", res.RetryAfter().Round(time.Minute))
		}
	}
	// Output:
	// 90 pages start now
	// 60 pages start now
	// 5 pages can start in 30m0s
}

// Wait sleeps until it is this caller's turn, or says at once that it would not come in time.
func ExampleAutocommit_Wait() {
	ctx := context.Background()
	pool, done := pgtest.Example(messageTable)
	defer done()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	partner := ratelimit.MustDefine("partner",
		ratelimit.TokenBucket{Rate: 20, Period: time.Second, Capacity: ratelimit.Tokens(1)})

	auto := limiter.Autocommit(pool)
	began := time.Now()
	for range 5 {
		if _, err := auto.Wait(ctx, partner.For("acme")); err != nil {
			log.Fatal(err)
		}
		// call the partner's API
	}
	fmt.Println("five calls took 200 ms or more:", time.Since(began) >= 200*time.Millisecond)

	soon, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := auto.Pause(ctx, time.Minute, partner.For("acme")); err != nil {
		log.Fatal(err)
	}
	var denied *ratelimit.DeniedError
	if _, err := auto.Wait(soon, partner.For("acme")); errors.As(err, &denied) {
		fmt.Println("not within ten seconds: ask again in", denied.RetryAfter().Round(10*time.Second))
	}
	// Output:
	// five calls took 200 ms or more: true
	// not within ten seconds: ask again in 50s
}
