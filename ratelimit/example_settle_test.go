package ratelimit_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

// What a call of a model will use is known afterwards. An estimate is reserved, and travels with
// the work; what the call has used replaces it, in the transaction that saves the answer.
func ExampleLimiter_Settle() {
	ctx := context.Background()
	pool, done := pgtest.Example(messageTable)
	defer done()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	calls := ratelimit.MustDefine("modelCalls", ratelimit.TokenBucket{Rate: 500, Period: 30 * 24 * time.Hour})
	tokens := ratelimit.MustDefine("modelTokens", ratelimit.TokenBucket{Rate: 40_000, Period: 30 * 24 * time.Hour})

	var job []byte // as it stands in a queue
	err = limiter.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
		res, err := limiter.RateLimit(ctx, tx, calls.For("acme"), tokens.For("acme").Count(9000).OrReserve())
		if err != nil {
			return err
		}
		if !res.OK {
			return res.Err()
		}
		job, err = json.Marshal(res.Reservation())
		return err
	})
	if err != nil {
		log.Fatal(err)
	}

	answer, usage := "hello", 1700.0 // of the model, which was called outside of any transaction

	for range 2 { // whoever runs the job again settles nothing twice
		err = limiter.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
			var reservation ratelimit.Reservation
			if err := json.Unmarshal(job, &reservation); err != nil {
				return err
			}
			settled, err := limiter.Settle(ctx, tx, reservation, tokens.For("acme").Count(usage))
			if err != nil {
				return err
			}
			fmt.Println("settled:", settled)
			if !settled {
				return nil
			}
			_, err = tx.Exec(ctx, `INSERT INTO message (org, body) VALUES ('acme', $1)`, answer)
			return err
		})
		if err != nil {
			log.Fatal(err)
		}
	}

	for _, request := range []ratelimit.Request{calls.For("acme"), tokens.For("acme")} {
		s, err := limiter.Autocommit(pool).Value(ctx, request)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%.0f left\n", s.Value)
	}
	// Output:
	// settled: true
	// settled: false
	// 499 left
	// 38300 left
}
