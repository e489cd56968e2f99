package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/riverqueue/river"

	"github.com/weir-go/weir/slots"
)

// AtOnce is how many documents of a customer are summarized at once.
var AtOnce = slots.MustDefine("summariesAtOnce", 1)

// At most n jobs of a customer run at once. A job that finds no slot is snoozed: it uses no attempt,
// and its worker goes on with the jobs of other customers.
func Example_slots() {
	ctx := context.Background()
	pool, stop := examplePool(ctx)
	defer stop()
	s, err := slots.New(pool, slots.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = s.Close(ctx) }()

	done, other := make(chan string, 3), make(chan bool)
	summarize := func(_ context.Context, d Summarize, attempt int) error { //nolint:unparam // real work can fail
		if d.Document == 1 {
			<-other // so long the slot of acme is held
		}
		done <- fmt.Sprintf("%s %d, attempt %d", d.Customer, d.Document, attempt)
		return nil
	}
	work := func(ctx context.Context, job *river.Job[Summarize]) error {
		hold, err := s.TryAcquire(ctx, AtOnce.For(job.Args.Customer))
		switch {
		case errors.Is(err, slots.ErrFull):
			return river.JobSnooze(time.Second)
		case err != nil:
			return err
		}
		defer func() { _ = hold.Release(context.WithoutCancel(ctx)) }()
		return summarize(hold.Context(ctx), job.Args, job.Attempt)
	}
	_, client := startClient(ctx, pool, river.WorkFunc(work))
	defer func() { _ = client.Stop(ctx) }()

	insert := func(d Summarize) {
		if _, err := client.Insert(ctx, d, nil); err != nil {
			log.Fatal(err)
		}
	}
	insert(Summarize{"acme", 1})
	for n := 0; n == 0; time.Sleep(5 * time.Millisecond) { // until it has begun
		if n, err = s.Held(ctx, AtOnce.For("acme")); err != nil {
			log.Fatal(err)
		}
	}
	insert(Summarize{"acme", 2})
	insert(Summarize{"globex", 3})
	fmt.Println(<-done)
	close(other)
	fmt.Println(<-done)
	fmt.Println(<-done)
	// Output:
	// globex 3, attempt 1
	// acme 1, attempt 1
	// acme 2, attempt 1
}
