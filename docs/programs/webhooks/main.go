// Webhooks delivers events to two receivers, each at its own rate, and pauses for one that asks for it.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
	"github.com/weir-go/weir/schema"
	"github.com/weir-go/weir/upstream"
)

var deliveries = ratelimit.MustDefine("deliveries", ratelimit.TokenBucket{Rate: 10, Period: time.Second, Capacity: ratelimit.Tokens(1)})

type delivery struct{ Receiver, Event string }

func (delivery) Kind() string { return "delivery" }

func main() {
	ctx, refused, sender := context.Background(), atomic.Bool{}, http.Client{Timeout: 10 * time.Second}
	pool := must(pgxpool.New(ctx, os.Getenv("DATABASE_URL")))
	check(schema.Migrate(ctx, pool))
	must(must(rivermigrate.New(riverpgxv5.New(pool), nil)).Migrate(ctx, rivermigrate.DirectionUp, nil))
	receivers := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if event := r.URL.Query().Get("event"); r.URL.Path == "/busy" && event == "event-2" && refused.CompareAndSwap(false, true) {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	limits := func(job *river.Job[delivery]) []ratelimit.Request {
		return []ratelimit.Request{deliveries.For(job.Args.Receiver)}
	}
	deliver := func(_ context.Context, job *river.Job[delivery]) error {
		resp, err := sender.Post(receivers.URL+"/"+job.Args.Receiver+"?event="+job.Args.Event, "", nil)
		if err != nil {
			return err
		}
		_ = resp.Body.Close()
		fmt.Println(job.Args.Receiver, "answers", job.Args.Event, "with", resp.StatusCode)
		if d, _ := upstream.RetryAfter(resp.Header); d > 0 && resp.StatusCode >= 400 { // no delivery goes there until then
			return &scheduler.PauseError{For: min(d, time.Hour), Requests: limits(job)} // this uses no attempt
		} else if resp.StatusCode >= 300 {
			return errors.New(resp.Status) // River retries it later, up to MaxAttempts
		}
		return nil
	}
	sched, workers := scheduler.New(must(ratelimit.New(ratelimit.Config{})), scheduler.Config{}), river.NewWorkers()
	river.AddWorker(workers, scheduler.Limit(river.WorkFunc(deliver), limits))
	client := must(river.NewClient(riverpgxv5.New(pool), sched.Configure(pool, &river.Config{
		Workers: workers, Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 10}}})))
	done, _ := client.Subscribe(river.EventKindJobCompleted)
	check(client.Start(ctx))
	must(client.InsertMany(ctx, []river.InsertManyParams{ // or InsertManyTx, in the transaction that saves the events
		{Args: delivery{"quick", "event-1"}}, {Args: delivery{"quick", "event-2"}}, {Args: delivery{"busy", "event-1"}}, {Args: delivery{"busy", "event-2"}}}))
	for range 4 {
		<-done
	}
	check(client.Stop(ctx))
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func check(err error) { must(0, err) }
