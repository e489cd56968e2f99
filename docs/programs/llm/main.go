// Llm asks a model six questions on a budget of tokens: it reserves an estimate, and settles what was used.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
	"github.com/weir-go/weir/schema"
)

var modelTokens = ratelimit.MustDefine("modelTokens", ratelimit.TokenBucket{
	Rate: 1000, Period: time.Second, Capacity: ratelimit.Tokens(500), MaxReserved: ratelimit.Tokens(60_000)})

type question struct{ Text string }

func (question) Kind() string { return "question" }

func main() {
	ctx, began := context.Background(), time.Now()
	pool := must(pgxpool.New(ctx, os.Getenv("DATABASE_URL")))
	check(schema.Migrate(ctx, pool))
	must(must(rivermigrate.New(riverpgxv5.New(pool), nil)).Migrate(ctx, rivermigrate.DirectionUp, nil))
	limiter := must(ratelimit.New(ratelimit.Config{}))
	sched := scheduler.New(limiter, scheduler.Config{})
	var calls, used atomic.Int64
	answer := func(ctx context.Context, job *river.Job[question]) error {
		if calls.Add(1) == 3 { // call the model here; its third answer is a 429 with Retry-After: 1
			return &scheduler.PauseError{For: time.Second, Requests: []ratelimit.Request{modelTokens.Global()}, Err: errors.New("429")}
		}
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { // save the answer here, too
			used.Add(150)
			return sched.CompleteTx(ctx, tx, job.JobRow, modelTokens.Global().Count(150)) // the answer has this number
		})
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, river.WorkFunc(answer))
	client := must(river.NewClient(riverpgxv5.New(pool), sched.Configure(pool, &river.Config{
		Workers: workers, Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 10}}})))
	check(client.Start(ctx))
	answered, _ := client.Subscribe(river.EventKindJobCompleted)
	for i := range 6 {
		check(limiter.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error { // save the question here, too
			_, err := sched.Jobs(client).ReserveTx(ctx, tx, question{fmt.Sprint(i + 1)}, nil, modelTokens.Global().Count(400))
			return err // a *ratelimit.DeniedError if more than MaxReserved would be owed
		}))
	}
	for range 6 {
		fmt.Printf("answered: %s\n", (<-answered).Job.EncodedArgs)
	}
	fmt.Printf("%d calls, %d tokens of 2400, the 429 was heeded: %v\n", calls.Load(), used.Load(), time.Since(began) > time.Second)
	check(client.Stop(ctx))
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}

func check(err error) { must(0, err) }
