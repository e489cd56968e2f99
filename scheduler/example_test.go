package scheduler_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

var ChatTokens = ratelimit.MustDefine("chatTokens", ratelimit.TokenBucket{
	Rate: 1000, Period: time.Hour, MaxReserved: ratelimit.Tokens(1000),
})

type GenerateReply struct {
	MessageID int64 `json:"message_id"`
}

func (GenerateReply) Kind() string { return "generate_reply" }

// The tokens, the message and the job that answers it commit together.
func Example() {
	ctx := context.Background()
	pool, stop := examplePool(ctx)
	defer stop()
	riverClient, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: quiet()}) // inserts only
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	jobs := scheduler.New(limiter, scheduler.Config{}).Jobs(riverClient)

	for id := range int64(4) {
		err := limiter.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
			in, err := jobs.InsertTx(ctx, tx, GenerateReply{id}, nil, ChatTokens.For("acme").Count(700).OrReserve())
			if err != nil {
				return err
			}
			switch {
			case !in.OK:
				fmt.Println("denied: too much is reserved")
			case in.RunAt.IsZero():
				fmt.Println(in.Job.Job.State, "now")
			default:
				fmt.Println(in.Job.Job.State, "in", in.RunAt.Sub(in.At).Round(time.Minute))
			}
			return in.Err()
		})
		if err != nil {
			fmt.Println("rolled back")
		}
	}
	// Output:
	// available now
	// scheduled in 24m0s
	// denied: too much is reserved
	// rolled back
	// denied: too much is reserved
	// rolled back
}

// examplePool is a pool on a schema of its own, with Weir's tables and River's.
func examplePool(ctx context.Context) (pool *pgxpool.Pool, done func()) {
	pool, done = pgtest.Example()
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: quiet()})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		log.Fatal(err)
	}
	return pool, done
}
