package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// Summarize is a job of one of the customers.
type Summarize struct {
	Customer string `json:"customer"`
	Document int    `json:"document"`
}

func (Summarize) Kind() string { return "summarize" }

// SummarizeWorker calls an API.
type SummarizeWorker struct {
	river.WorkerDefaults[Summarize]
	call func(job *river.Job[Summarize]) error
	done sync.WaitGroup
}

func (w *SummarizeWorker) Work(_ context.Context, job *river.Job[Summarize]) error {
	err := w.call(job)
	if err == nil {
		w.done.Done()
	}
	return err
}

var (
	// Summaries are for each customer.
	Summaries = ratelimit.MustDefine("summaries",
		ratelimit.TokenBucket{Rate: 4, Period: time.Second, Capacity: ratelimit.Tokens(2)})

	// Model is for all of them together.
	Model = ratelimit.MustDefine("model", ratelimit.TokenBucket{Rate: 100, Period: time.Second})
)

// startClient starts a River client that a Scheduler has configured.
func startClient(
	ctx context.Context, pool *pgxpool.Pool, worker river.Worker[Summarize],
) (*scheduler.Scheduler, *river.Client[pgx.Tx]) {
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	sched := scheduler.New(limiter, scheduler.Config{})
	workers := river.NewWorkers()
	river.AddWorker(workers, worker)
	client, err := river.NewClient(riverpgxv5.New(pool), sched.Configure(pool, &river.Config{
		Logger:  quiet(),
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 10}},
		Workers: workers,
	}))
	if err != nil {
		log.Fatal(err)
	}
	if err := client.Start(ctx); err != nil {
		log.Fatal(err)
	}
	return sched, client
}

// Work that is reserved ahead starts when its tokens exist.
func ExampleScheduler_Configure() {
	ctx := context.Background()
	pool, stop := examplePool(ctx)
	defer stop()
	worker := &SummarizeWorker{call: func(job *river.Job[Summarize]) error {
		fmt.Println("document", job.Args.Document)
		return nil
	}}
	sched, client := startClient(ctx, pool, worker)
	defer func() { _ = client.Stop(ctx) }()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}

	jobs := sched.Jobs(client)
	for i := range 4 {
		worker.done.Add(1)
		err := limiter.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
			in, err := jobs.InsertTx(ctx, tx, Summarize{"acme", i}, nil, Summaries.For("acme").Count(2).OrReserve())
			if err != nil {
				return err
			}
			return in.Err()
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	worker.done.Wait()
	// Unordered output:
	// document 0
	// document 1
	// document 2
	// document 3
}

// A queue of jobs, limited for each customer and for all together: whoever inserts them need not
// know.
func ExampleLimit() {
	ctx := context.Background()
	pool, stop := examplePool(ctx)
	defer stop()
	start := time.Now()
	worker := &SummarizeWorker{call: func(*river.Job[Summarize]) error { return nil }}
	_, client := startClient(ctx, pool, scheduler.Limit(worker, func(job *river.Job[Summarize]) []ratelimit.Request {
		return []ratelimit.Request{Summaries.For(job.Args.Customer), Model.Global()}
	}))
	defer func() { _ = client.Stop(ctx) }()

	for i := range 8 {
		worker.done.Add(1)
		if _, err := client.Insert(ctx, Summarize{"acme", i}, nil); err != nil {
			log.Fatal(err)
		}
	}
	worker.done.Wait()
	fmt.Println("8 jobs, 2 at once and 4 a second, took more than 1.4 s:", time.Since(start) > 1400*time.Millisecond)
	// Output: 8 jobs, 2 at once and 4 a second, took more than 1.4 s: true
}

// An API that says 429 is left alone for as long as it asks, by all jobs that need it.
func ExamplePauseError() {
	ctx := context.Background()
	pool, stop := examplePool(ctx)
	defer stop()
	calls := 0
	worker := &SummarizeWorker{call: func(job *river.Job[Summarize]) error {
		if calls++; calls == 1 {
			return &scheduler.PauseError{
				For:      500 * time.Millisecond, // see upstream.RetryAfter
				Requests: []ratelimit.Request{Model.Global()},
				Err:      errors.New("429 Too Many Requests"),
			}
		}
		fmt.Println("answered, at attempt", job.Attempt)
		return nil
	}}
	_, client := startClient(ctx, pool, worker)
	defer func() { _ = client.Stop(ctx) }()

	worker.done.Add(1)
	if _, err := client.Insert(ctx, Summarize{"acme", 1}, nil); err != nil {
		log.Fatal(err)
	}
	worker.done.Wait()
	// Output: answered, at attempt 1
}

// What is reserved, for when, and why.
func ExampleJobs_Waiting() {
	ctx := context.Background()
	pool, stop := examplePool(ctx)
	defer stop()
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: quiet()}) // inserts only
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	jobs := scheduler.New(limiter, scheduler.Config{}).Jobs(client)

	err = limiter.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
		for id := range int64(2) {
			in, err := jobs.InsertTx(ctx, tx, GenerateReply{id}, nil, ChatTokens.For("acme").Count(700).OrReserve())
			if err != nil {
				return err
			}
			if err := in.Err(); err != nil {
				return err
			}
		}
		waiting, err := jobs.Waiting(ctx, tx, ChatTokens.For("acme"), 10)
		// or w.String(): job 2 (generate_reply) is blocked by chatTokens of acme until 14:32:10.000
		// UTC
		for _, w := range waiting {
			fmt.Println(w.Job.Kind, "is blocked by", w.Limit, "of", w.Key, "for",
				time.Until(w.Until).Round(time.Minute))
		}
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: generate_reply is blocked by chatTokens of acme for 24m0s
}

// The API takes calls again, earlier than it said: what the pause has put off comes forward.
func Example_resume() {
	ctx := context.Background()
	pool, stop := examplePool(ctx)
	defer stop()
	worker := &SummarizeWorker{call: func(*river.Job[Summarize]) error {
		fmt.Println("answered")
		return nil
	}}
	sched, client := startClient(ctx, pool, worker)
	defer func() { _ = client.Stop(ctx) }()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	jobs := sched.Jobs(client)
	if err := limiter.Autocommit(pool).Pause(ctx, time.Hour, Summaries.For("acme")); err != nil {
		log.Fatal(err)
	}
	worker.done.Add(1)
	if err := limiter.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
		in, err := jobs.InsertTx(ctx, tx, Summarize{"acme", 1}, nil, Summaries.For("acme").OrReserve())
		if err != nil {
			return err
		}
		fmt.Println("reserved for when the pause is over, in", in.RunAt.Sub(in.At).Round(time.Minute))
		return in.Err()
	}); err != nil {
		log.Fatal(err)
	}

	if err := limiter.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
		return limiter.Resume(ctx, tx, Summaries.For("acme"))
	}); err != nil {
		log.Fatal(err)
	}
	worker.done.Wait()
	// Output:
	// reserved for when the pause is over, in 1h0m0s
	// answered
}
