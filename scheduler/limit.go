package scheduler

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/worknow"
	"github.com/weir-go/weir/ratelimit"
)

// Limit limits a worker: each attempt of a job takes what requests ask for, all or none, before the
// worker sees it. A job whose tokens do not exist yet takes its place in the line of its limits and
// is put off until they do, by the database's clock; no attempt is used up. Its River client needs
// the configuration of [Scheduler.Configure].
//
// When a job has to wait, the other jobs of its kind that are due in its queue and wait for the
// same limits take their places with it and are moved out of the way, so that the jobs of other
// customers start. For that, requests is called with jobs that do not start yet: it must depend on
// the job alone. Jobs take their places in River's order: by priority, time and id; those that two
// clients fetch at the same moment may pass each other. They need not be inserted by
// [Jobs.InsertTx]: what that takes is for the job as a whole, and comes on top.
//
// The backlog of a key is a debt of its limit. Another caller of the same limit and key, such as an
// HTTP handler, is denied until that is repaid. Give such callers a limit of their own, or bound
// the debt by the rule's MaxReserved: then the jobs beyond it wait for their turn without tokens,
// and compete with the other callers when it comes.
//
// Each attempt takes anew: an API counts calls, not jobs. The worker may settle what its attempt
// took, see [ReservationOf]. An attempt that is put off by a [PauseError] has paid already. A
// client that is killed between the take and the start loses the tokens.
//
// No requests: the job is not limited. A request that is refused as invalid fails the attempt.
//
// In tests, weirtest.WorkNow has such a worker called without taking anything.
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
	if v.plugin.charges.ask(v); v.err != nil {
		return v.err
	}
	if !v.res.OK || !v.res.RunAt.IsZero() {
		v.plugin.clear(v.job, of)
	}
	if !v.res.OK { // beyond MaxReserved
		return v.putOff(ctx, v.res.RetryAt)
	}
	v.ticket, v.paid = v.plugin.scheduler.newTicket(&v.res, v.attempt, true), true
	if v.ticket.Due != 0 {
		return v.putOff(ctx, v.ticket.due())
	}
	var err error
	v.job.Metadata, err = v.ticket.into(v.job.Metadata) // for ReservationOf
	return err
}

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
		v.err = p.connected(v.ctx, func(c *pgxpool.Conn) error {
			return pgx.BeginTxFunc(v.ctx, c, readCommitted, func(tx pgx.Tx) (err error) {
				v.res, err = p.scheduler.limiter.RateLimit(v.ctx, tx, v.requests...)
				return err
			})
		})
		v.clock = clock{v.res.At, time.Now()}
	}
}
