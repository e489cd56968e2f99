package scheduler

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/jobs/riverjob"
	"github.com/weir-go/weir/internal/worknow"
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
	return &limited[T]{worker, requests}
}

type limited[T river.JobArgs] struct {
	river.Worker[T]
	requests func(job *river.Job[T]) []ratelimit.Request
}

func (w *limited[T]) Work(ctx context.Context, job *river.Job[T]) error {
	if worknow.Asked(ctx) {
		return w.Worker.Work(ctx, job)
	}
	v, _ := ctx.Value(visitKey{}).(*visit)
	if v == nil {
		return errors.New("scheduler: a worker made by Limit, on a River client whose " +
			"configuration was not made by Scheduler.Configure")
	}
	if !v.paid {
		if requests := w.requests(job); len(requests) > 0 {
			if err := v.take(ctx, requests, w.of); err != nil {
				return err
			}
		}
	}
	return w.Worker.Work(ctx, job)
}

// of are the requests of another job of the kind; none if its arguments cannot be read.
func (w *limited[T]) of(row *rivertype.JobRow) []ratelimit.Request {
	job := &river.Job[T]{JobRow: row}
	if err := json.Unmarshal(row.EncodedArgs, &job.Args); err != nil {
		return nil
	}
	return w.requests(job)
}

// take takes the tokens. It returns nil when they exist, or the error that puts the job off until
// they do.
func (v *visit) take(
	ctx context.Context, requests []ratelimit.Request,
	of func(*rivertype.JobRow) []ratelimit.Request,
) error {
	v.ctx, v.requests = ctx, reserving(requests)
	if v.plugin.charges.Do(v); v.err != nil {
		return v.err
	}
	if !v.res.OK || !v.res.RunAt.IsZero() {
		v.plugin.clear(v.job, of)
	}
	if !v.res.OK { // beyond MaxReserved
		return v.putOff(ctx, v.res.RetryAt)
	}
	v.Ticket, v.paid = v.plugin.Pacing.Ticket(&v.res, v.Attempt, true), true
	if v.Ticket.Due != 0 {
		return v.putOff(ctx, v.Ticket.DueAt())
	}
	var err error
	v.job.Metadata, err = v.Ticket.Into(v.job.Metadata) // for ReservationOf
	return err
}

// reserving returns requests that may be granted for later. A Within of theirs stays.
func reserving(requests []ratelimit.Request) []ratelimit.Request {
	all := make([]ratelimit.Request, len(requests))
	for i, r := range requests {
		all[i] = r.OrReserve()
	}
	return all
}

// gather is how long jobs that a client has fetched together, and that it starts each in a
// goroutine of its own, take to come together again.
const gather = time.Millisecond

// charge takes for jobs in River's order.
func (p *plugin) charge(items []*visit) {
	slices.SortFunc(items, func(a, b *visit) int {
		return cmp.Or(cmp.Compare(a.job.Priority, b.job.Priority),
			a.job.ScheduledAt.Compare(b.job.ScheduledAt), cmp.Compare(a.ID, b.ID))
	})
	for _, v := range items {
		v.err = p.ConnectedInTx(v.ctx, func(tx pgx.Tx) (err error) {
			v.res, err = p.Limiter.RateLimit(v.ctx, tx, v.requests...)
			return err
		})
		v.clock = riverjob.Clock{At: v.res.At, Answered: time.Now()}
	}
}
