package scheduler_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// ModelTokens are what a provider lets all of its customer's calls together use.
var ModelTokens = ratelimit.MustDefine("modelTokens", ratelimit.TokenBucket{Rate: 1000, Period: 24 * 365 * time.Hour})

// SettlingWorker settles what its calls have used, in the transaction that completes the job.
type SettlingWorker struct {
	river.WorkerDefaults[Summarize]
	pool  *pgxpool.Pool
	sched *scheduler.Scheduler
	done  chan struct{}
}

func (w *SettlingWorker) Work(ctx context.Context, job *river.Job[Summarize]) error {
	defer close(w.done)
	const used = 180 // as the API's answer says
	return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		// ... save the answer ...
		return w.sched.CompleteTx(ctx, tx, job.JobRow, ModelTokens.Global().CountInt(used))
	})
}

// A job reserves an estimate, and is completed and settled with what its call has used.
func ExampleScheduler_CompleteTx() {
	ctx := context.Background()
	pool, stop := examplePool(ctx)
	defer stop()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	sched := scheduler.New(limiter, scheduler.Config{})
	worker := &SettlingWorker{pool: pool, sched: sched, done: make(chan struct{})}
	_, client := startClient(ctx, pool, worker)
	jobs := sched.Jobs(client)
	defer func() { _ = client.Stop(ctx) }()

	left := func(when string) {
		s, err := limiter.Autocommit(pool).Value(ctx, ModelTokens.Global())
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: %.0f\n", when, s.Value)
	}
	left("before")
	err = limiter.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
		in, err := jobs.ReserveTx(ctx, tx, Summarize{"acme", 1}, nil, ModelTokens.Global().Count(500))
		if err != nil {
			return err // a *ratelimit.DeniedError if more than MaxReserved would be owed
		}
		fmt.Printf("reserved: %.0f\n", in.Outcomes[0].Value)
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	<-worker.done
	left("settled")
	// Output:
	// before: 1000
	// reserved: 500
	// settled: 820
}
