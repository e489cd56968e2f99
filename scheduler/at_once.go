package scheduler

import (
	"context"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/jobs/attempt"
	"github.com/weir-go/weir/slots"
)

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
// killed process, those of [slots.Slots.Do], and those of a limit whose number was raised. Callers
// of Do and jobs may share a limit, but Do does not look whether jobs wait. If callers of Do keep
// all slots busy, jobs may wait for ever.
//
// The ctx of the worker ends if the slot is lost, with [slots.ErrLost] as its cause. An attempt
// that then returns an error is repeated, and uses up no attempt.
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
