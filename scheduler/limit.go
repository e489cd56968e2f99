package scheduler

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/ratelimit"
)

// Limit limits a worker: each attempt of a job takes what requests ask for, all or none, before the worker sees it. A job
// whose tokens do not exist yet takes its place in the line of its limits and is put back until they do, by the database's
// clock: it is woken once, at its own time, and no attempt is used up. Ten a minute for each customer are
//
//	var Summaries = ratelimit.MustDefine("summaries", ratelimit.TokenBucket{Rate: 10, Period: time.Minute})
//
//	river.AddWorker(workers, scheduler.Limit(&SummarizeWorker{}, func(job *river.Job[SummarizeArgs]) []ratelimit.Request {
//		return []ratelimit.Request{Summaries.For(job.Args.Customer)}
//	}))
//	client, err := river.NewClient(riverpgxv5.New(pool), sched.Configure(pool, &river.Config{Queues: queues, Workers: workers}))
//
// Jobs take their places in River's order: by priority, time and id; those that one client fetches together keep it, those
// that two clients fetch at the same moment may pass each other. Jobs of other keys, and other jobs of the queue, do not
// wait for them. They need not be inserted by [Jobs.InsertTx]: what that takes is for the job as a whole, and comes on top.
//
// Each attempt takes anew: an API counts calls, not jobs. The worker may settle what its attempt took, see [ReservationOf].
// An attempt that is put back by a [PauseError] has paid already. A client
// that is killed between the take and the start loses the tokens. Leave the rule's MaxReserved unset: where it is reached,
// jobs are put back until there may be room, and then compete for it.
//
// No requests: the job is not limited. A request that is refused as invalid fails the attempt.
func Limit[T river.JobArgs](worker river.Worker[T], requests func(job *river.Job[T]) []ratelimit.Request) river.Worker[T] {
	return &limited[T]{worker, requests}
}

type limited[T river.JobArgs] struct {
	river.Worker[T]
	requests func(job *river.Job[T]) []ratelimit.Request
}

func (w *limited[T]) Work(ctx context.Context, job *river.Job[T]) error {
	v, _ := ctx.Value(visitKey{}).(*visit)
	if v == nil {
		return errors.New("scheduler: a worker made by Limit, on a River client whose configuration was not made by Scheduler.Configure")
	}
	v.paid = v.valid && v.ticket.Paid
	if !v.paid {
		if requests := w.requests(job); len(requests) > 0 {
			if err := v.pay(ctx, requests); err != nil {
				return err
			}
		}
	}
	return w.Worker.Work(ctx, job)
}

// pay takes the tokens. It returns nil when they exist, or the error that puts the job back until they do.
func (v *visit) pay(ctx context.Context, requests []ratelimit.Request) error {
	c := charge{ctx: ctx, job: v.job, requests: make([]ratelimit.Request, len(requests))}
	for i, r := range requests {
		c.requests[i] = r.OrReserve()
	}
	v.plugin.charges.ask(&c)
	if c.err != nil {
		return c.err
	}
	res := &c.res
	if !res.OK {
		return v.putBack(ctx, nil, res.RetryAt)
	}
	v.ticket, v.valid, v.paid = v.plugin.scheduler.newTicket(res), true, true
	v.ticket.Paid, v.ticket.Attempt = true, v.job.Attempt-1
	v.clock = clock{res.At, c.answered}
	return v.await(ctx)
}

// await returns when the job of a new ticket is due, or with the error that puts it back until then.
func (v *visit) await(ctx context.Context) error {
	var err error
	if v.job.Metadata, err = v.ticket.into(v.job.Metadata); err != nil { // for ReservationOf
		return err
	}
	// To put it back takes River's client as long as to wait here.
	wait := v.clock.until(v.ticket.due())
	if v.ticket.Due == 0 || wait <= brief && sleep(ctx, wait) {
		return nil
	}
	if ctx.Err() != nil {
		return v.interrupted(ctx)
	}
	return v.putBack(ctx, &v.ticket, v.ticket.due())
}

// charge is what a job takes.
type charge struct {
	ctx      context.Context //nolint:containedctx // of the attempt
	job      *rivertype.JobRow
	requests []ratelimit.Request

	res      ratelimit.Result
	answered time.Time
	err      error
}

// gather is how long jobs that a client has fetched together, and that it starts each in a goroutine of its own, take to
// come together again.
const gather = time.Millisecond

// charge takes for jobs in River's order.
func (p *plugin) charge(items []*charge) {
	slices.SortFunc(items, func(a, b *charge) int {
		return cmp.Or(cmp.Compare(a.job.Priority, b.job.Priority), a.job.ScheduledAt.Compare(b.job.ScheduledAt), cmp.Compare(a.job.ID, b.job.ID))
	})
	autocommit := p.scheduler.limiter.Autocommit(p.pool)
	for _, c := range items {
		c.res, c.err = autocommit.RateLimit(c.ctx, c.requests...)
		c.answered = time.Now()
	}
}
