package scheduler_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
	"github.com/weir-go/weir/slots"
)

// Exports is how many documents of a customer are summarized at once.
var Exports = slots.MustDefine("summariesAtOnce", 1)

// At most n jobs of a customer run at once. A job that finds no slot waits for one: it uses no
// attempt, and its worker goes on with the jobs of other customers.
func ExampleAtOnce() {
	ctx := context.Background()
	pool, stop := examplePool(ctx)
	defer stop()
	s, err := slots.New(pool, slots.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = s.Close(ctx) }()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}

	done, other := make(chan string, 3), make(chan bool)
	work := func(_ context.Context, job *river.Job[Summarize]) error {
		d := job.Args
		if d.Document == 1 {
			<-other // so long the slot of acme is held
		}
		done <- fmt.Sprintf("%s %d, attempt %d", d.Customer, d.Document, job.Attempt)
		return nil
	}
	worker := scheduler.AtOnce(river.WorkFunc(work), func(job *river.Job[Summarize]) []slots.Request {
		return []slots.Request{Exports.For(job.Args.Customer)}
	})
	workers := river.NewWorkers()
	river.AddWorker(workers, worker)

	sched := scheduler.New(limiter, scheduler.Config{Slots: s})
	client, err := river.NewClient(riverpgxv5.New(pool), sched.Configure(pool, &river.Config{
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 2}},
		Workers: workers,
	}))
	if err != nil {
		log.Fatal(err)
	}
	if err := client.Start(ctx); err != nil {
		log.Fatal(err)
	}
	defer func() { _ = client.Stop(ctx) }()

	insertSummary(ctx, client, Summarize{"acme", 1})
	for n := 0; n == 0; time.Sleep(5 * time.Millisecond) { // until it has begun
		if n, err = s.Held(ctx, Exports.For("acme")); err != nil {
			log.Fatal(err)
		}
	}
	insertSummary(ctx, client, Summarize{"acme", 2})
	insertSummary(ctx, client, Summarize{"globex", 3})
	fmt.Println(<-done)
	close(other)
	fmt.Println(<-done)
	fmt.Println(<-done)
	// Output:
	// globex 3, attempt 1
	// acme 1, attempt 1
	// acme 2, attempt 1
}

func insertSummary(ctx context.Context, client *river.Client[pgx.Tx], d Summarize) {
	if _, err := client.Insert(ctx, d, nil); err != nil {
		log.Fatal(err)
	}
}
