// Fair lines has a tenant with one job share a limit with one that has queued forty.
package main

import (
	"context"
	"fmt"
	"os"
	"sync"
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

var sharedAPI = ratelimit.MustDefine("sharedAPI", ratelimit.TokenBucket{Rate: 10, Period: time.Second,
	Capacity: ratelimit.Tokens(1), MaxReserved: ratelimit.Tokens(10)})

type call struct{ Tenant string }

func (call) Kind() string { return "call" }

func main() {
	ctx, mu, started := context.Background(), sync.Mutex{}, []string{}
	pool := must(pgxpool.New(ctx, os.Getenv("DATABASE_URL")))
	must(0, schema.Migrate(ctx, pool))
	must(must(rivermigrate.New(riverpgxv5.New(pool), nil)).Migrate(ctx, rivermigrate.DirectionUp, nil))
	work := func(_ context.Context, job *river.Job[call]) error {
		mu.Lock()
		defer mu.Unlock()
		if job.Args.Tenant == "modest" {
			fmt.Println("modest has its turn among the first twenty:", len(started) < 20)
		}
		started = append(started, job.Args.Tenant)
		return nil
	}
	limiter, workers := must(ratelimit.New(ratelimit.Config{})), river.NewWorkers()
	sched := scheduler.New(limiter, scheduler.Config{Lines: []scheduler.Line{{Limit: sharedAPI}}})
	river.AddWorker(workers, river.WorkFunc(work))
	client := must(river.NewClient(riverpgxv5.New(pool), sched.Configure(pool, &river.Config{
		Workers: workers, Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 10}}})))
	jobs := sched.Jobs(client)
	queue := func(tenant string, n int) {
		must(0, limiter.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
			for range n {
				_, err := jobs.QueueTx(ctx, tx, call{tenant}, nil, scheduler.Tenant{Key: tenant}, sharedAPI.Global())
				if err != nil {
					return err
				}
			}
			return nil
		}))
		fmt.Println(tenant, "has queued", n)
	}
	queue("greedy", 40)
	queue("modest", 1)
	done, _ := client.Subscribe(river.EventKindJobCompleted)
	must(0, client.Start(ctx))
	for range 41 {
		<-done
	}
	must(0, client.Stop(ctx))
	fmt.Println(len(started), "jobs have started")
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
