package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/jobs/attempt"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/slots"
)

// Limit limits a worker: before each attempt of a job it takes what requests returns, all of it or
// none. If the tokens do not exist yet, the job is put in line and snoozed until they do, by the
// database's clock. That uses up no attempt. The River client needs the configuration of
// [Scheduler.Configure]. For several limits, have requests return several: with a Limit inside
// another one, the attempt fails.
//
// Jobs need not be inserted by [Jobs.InsertTx]. If they are, they take twice: InsertTx for the job
// as a whole, and Limit for each attempt, as an API counts calls and not jobs. If requests returns
// none, the job is not limited. If it returns an invalid request, the attempt fails. If the
// database cannot take the tokens, or somebody holds the balance for two seconds, the job tries
// again a second later, which uses up no attempt.
//
// The worker may settle what its attempt took: see [ReservationOf]. An attempt that ends with a
// [PauseError] does not pay again when it is repeated. A client that is killed after the take and
// before the start loses the tokens.
//
// When a job has to wait, Limit also moves the other due jobs of its kind and queue that wait for
// the same limits, so that the jobs of other customers can start. To find them it calls requests
// with jobs that do not start yet, so requests must depend on nothing but the job. These jobs queue
// in River's order: by priority, time and id. Jobs that two clients fetch at the same moment may
// swap places.
//
// The backlog of a key is a debt of its limit. Any other caller of that limit and key, such as an
// HTTP handler, is denied until the debt is repaid. Give such callers a limit of their own, or
// bound the debt by the rule's MaxReserved. Jobs beyond MaxReserved wait without a place in the
// queue, and compete with the other callers when their time comes.
//
// In a test, weirtest.WorkNow calls such a worker without taking anything.
func Limit[T river.JobArgs](
	worker river.Worker[T], requests func(job *river.Job[T]) []ratelimit.Request,
) river.Worker[T] {
	return &limited[T]{worker, requests, ofRow(requests)}
}

type limited[T river.JobArgs] struct {
	river.Worker[T]
	requests func(job *river.Job[T]) []ratelimit.Request
	of       func(*rivertype.JobRow) []ratelimit.Request
}

func (w *limited[T]) Work(ctx context.Context, job *river.Job[T]) error {
	requests := func() []ratelimit.Request { return w.requests(job) }
	if err := attempt.Take(ctx, w, requests, w.of); err != nil {
		return err
	}
	return w.Worker.Work(ctx, job)
}

// ofRow are the requests of another job of the kind, for its next attempt: none if its arguments
// cannot be read, or if requests panics for it. Then that attempt tells what is wrong.
func ofRow[T river.JobArgs, R any](
	requests func(job *river.Job[T]) []R,
) func(*rivertype.JobRow) []R {
	return func(row *rivertype.JobRow) (all []R) {
		defer func() {
			if recover() != nil {
				all = nil
			}
		}()
		next := *row
		next.Attempt++
		job := &river.Job[T]{JobRow: &next}
		if err := json.Unmarshal(row.EncodedArgs, &job.Args); err != nil {
			return nil
		}
		return requests(job)
	}
}

// AtOnce bounds how many jobs run at once: while a job runs, it holds a slot of what requests
// returns. If all slots are held, the job waits without occupying a worker, and its waiting uses no
// attempt. Set [Config.Slots], and make the River client's configuration with
// [Scheduler.Configure].
//
//	worker = scheduler.AtOnce(worker, func(job *river.Job[Export]) []slots.Request {
//		return []slots.Request{Exports.For(job.Args.Tenant)}
//	})
//
// A job asks for one slot, or for none; more than one is an error. requests must depend on nothing
// but the job, because it is also called for jobs that do not start yet.
//
// A job that ends, however it ends, hands its slot to the next waiting job of the key in the
// transaction that frees the slot. Jobs are served in River's order: priority, scheduled_at, id. A
// job that is given a slot has five seconds to start. After that the slot goes to the next job. A
// job that comes while others wait goes behind them. Jobs that were cancelled or deleted, and jobs
// of paused queues, are passed over.
//
// Slots that become free in another way are given to waiting jobs within about a second: those of a
// killed process, those of [slots.Slots.Do], and those of a limit whose number was raised. A
// changed number holds for jobs in line, too, from when a client has met a job that asks for the
// new one. Callers of Do and jobs may share a limit, but Do does not look whether jobs wait. If
// callers of Do keep all slots busy, jobs may wait for ever.
//
// The ctx of the worker ends if the slot is lost, with [slots.ErrLost] as its cause. An attempt
// that then returns an error is repeated, and uses up no attempt. It pays again, as for another
// attempt.
//
// To take tokens as well, put Limit inside: AtOnce(Limit(worker, tokens), slots). Then a job that
// waits for a slot takes no tokens, and a job that waits for tokens holds no slot. When its tokens
// have come, it may have to wait for a slot again, and then keeps its tokens. So does a job that
// was inserted by [Jobs.InsertTx].
//
// In a test, weirtest.WorkNow calls such a worker without taking anything.
func AtOnce[T river.JobArgs](
	worker river.Worker[T], requests func(job *river.Job[T]) []slots.Request,
) river.Worker[T] {
	return &atOnce[T]{worker, requests, ofRow(requests)}
}

type atOnce[T river.JobArgs] struct {
	river.Worker[T]
	requests func(job *river.Job[T]) []slots.Request
	of       func(*rivertype.JobRow) []slots.Request
}

func (w *atOnce[T]) Work(ctx context.Context, job *river.Job[T]) error {
	return attempt.WithSlot(ctx, func() []slots.Request { return w.requests(job) }, w.of,
		func(ctx context.Context) error { return w.Worker.Work(ctx, job) })
}

// PauseError is what a worker returns when an API has told it to come back later, for example by a
// 429 or a 503 with a Retry-After. Its limits are paused, as [ratelimit.Limiter.Pause] does. The
// job is snoozed until the pause is over, which uses up no attempt, and does not pay again. All
// jobs that [Jobs.InsertTx] has inserted, or that a worker made by [Limit] works, wait for the
// pauses of their limits and then start in their order.
type PauseError struct {
	For      time.Duration       // from now on
	Requests []ratelimit.Request // the limits and keys; their counts do not matter
	Err      error               // for the record, or nil
}

// Error says how long the pause is, and why.
func (e *PauseError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("paused for %v", e.For)
	}
	return fmt.Sprintf("paused for %v: %v", e.For, e.Err)
}

// Unwrap returns Err.
func (e *PauseError) Unwrap() error { return e.Err }

// pauseOf is what an attempt has returned, if that is a pause.
func pauseOf(err error) *attempt.Pause {
	if e := (*PauseError)(nil); errors.As(err, &e) {
		return &attempt.Pause{For: e.For, Requests: e.Requests, Err: e}
	}
	return nil
}
