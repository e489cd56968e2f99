package scheduler

import (
	"context"
	"encoding/json"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/jobs/attempt"
	"github.com/weir-go/weir/ratelimit"
)

// Limit limits a worker: before each attempt of a job it takes what requests returns, all of it or
// none. If the tokens do not exist yet, the job is put in line and snoozed until they do, by the
// database's clock. That uses up no attempt. The River client needs the configuration of
// [Scheduler.Configure].
//
// Jobs need not be inserted by [Jobs.InsertTx]. If they are, they take twice: InsertTx for the job
// as a whole, and Limit for each attempt, as an API counts calls and not jobs. If requests returns
// none, the job is not limited. If it returns an invalid request, the attempt fails.
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
	if err := attempt.Take(ctx, requests, w.of); err != nil {
		return err
	}
	return w.Worker.Work(ctx, job)
}

// ofRow are the requests of another job of the kind; none if its arguments cannot be read.
func ofRow[T river.JobArgs, R any](
	requests func(job *river.Job[T]) []R,
) func(*rivertype.JobRow) []R {
	return func(row *rivertype.JobRow) []R {
		job := &river.Job[T]{JobRow: row}
		if err := json.Unmarshal(row.EncodedArgs, &job.Args); err != nil {
			return nil
		}
		return requests(job)
	}
}
