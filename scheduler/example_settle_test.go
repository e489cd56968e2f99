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

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// ModelTokens are what a provider lets all of its customer's calls together use.
var ModelTokens = ratelimit.MustDefine("modelTokens", ratelimit.TokenBucket{Rate: 1000, Period: 24 * 365 * time.Hour})

// SettlingWorker settles what its calls have used, in the transaction that completes the job.
type SettlingWorker struct {
	river.WorkerDefaults[Summarize]
	limiter *ratelimit.Limiter
	pool    *pgxpool.Pool
	done    chan struct{}
}

func (w *SettlingWorker) Work(ctx context.Context, job *river.Job[Summarize]) error {
	defer close(w.done)
	const used = 180 // as the API's answer says
	return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		// ... save the answer ...
		if r, ok := scheduler.ReservationOf(job.JobRow); ok {
			if _, err := w.limiter.Settle(ctx, tx, r, ModelTokens.Global().Count(used)); err != nil {
				return err
			}
		}
		_, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job)
		return err
	})
}

// A job reserves an estimate and settles what its call has used.
func ExampleReservationOf() {
	ctx := context.Background()
	pool, stop := examplePool(ctx)
	defer stop()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		log.Fatal(err)
	}
	worker := &SettlingWorker{limiter: limiter, pool: pool, done: make(chan struct{})}
	sched, client := startClient(ctx, pool, worker)
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
		in, err := sched.Jobs(client).InsertTx(ctx, tx, Summarize{"acme", 1}, nil, ModelTokens.Global().Count(500).OrReserve())
		if err != nil {
			return err
		}
		fmt.Printf("reserved: %.0f\n", in.Outcomes[0].Value)
		return in.Err()
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
