package scheduler

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/grace"
	"github.com/weir-go/weir/internal/jobs/fairline"
	"github.com/weir-go/weir/internal/jobs/riverjob"
	"github.com/weir-go/weir/internal/jobs/ticket"
	"github.com/weir-go/weir/ratelimit"
)

// Line is a limit that tenants share fairly. Jobs that [Jobs.QueueTx] inserts for it wait in line,
// and when tokens come, the tenant that has had the least goes next. Each key of the limit is a
// line of its own. Put the Line into [Config.Lines] of each program that queues jobs for the limit
// or works them.
//
// [Jobs.InsertTx] may reserve tokens of the same limit. Such jobs keep their RunAt: they go ahead
// of the line, by at most the rule's MaxReserved. Callers that take tokens at once, without waiting
// in line, go ahead only if Others allows it.
type Line struct {
	// Limit is what the tenants share. Its rule must have a MaxReserved, which should be at least
	// the largest count. A job with a larger count waits until the tokens exist, and other callers
	// may take them first. If the limit has shards, each grant takes from all of them alike.
	Limit ratelimit.Limit

	// OverAll compares River's priorities, 1 to 4, across tenants: a job of priority 1 goes ahead
	// of all jobs of priority 2. Tenants with jobs of the same priority share fairly. Default:
	// priorities order only the jobs of one tenant.
	OverAll bool

	// Patience bounds how long jobs of higher priority can pass over a job. Within a tenant, a job
	// goes ahead of jobs one priority lower that were due up to Patience earlier, of jobs two
	// priorities lower that were due up to twice Patience earlier, and so on. With OverAll, a job
	// that has waited for Patience counts as one priority higher in the comparison with other
	// tenants. Default: an hour.
	Patience time.Duration

	// Others is the weight of all callers that take from the limit without waiting in line, such as
	// HTTP handlers. Together they count as one tenant. While they have had no more than their
	// share, the line leaves them Leave tokens. Once they have had more, the line takes all tokens
	// that come until it has caught up, and the others are denied. Default: 0, which gives them
	// tokens only while no job waits in line. Others needs a TokenBucket.
	Others float64

	// Leave is how many tokens are left for Others. The capacity must be at least Leave plus what
	// flows in within 2 s. Default: half of the capacity.
	Leave float64
}

// linesOf checks lines.
func linesOf(all []Line) (fairline.Lines, error) {
	lines := make([]fairline.Line, len(all))
	for i, l := range all {
		lines[i] = fairline.Line(l)
	}
	return fairline.Check(lines)
}

// Tenant is one of the users, customers or teams that share a [Line].
type Tenant struct {
	// Key names it: 1 to 1024 bytes of UTF-8 without NUL.
	Key string

	// Weight is the tenant's share relative to others: a tenant of weight 2 gets twice as much as
	// one of weight 1 while both have jobs that wait. 2^-20 to 2^20. Default: 1.
	Weight float64
}

// QueueTx inserts a job that waits for its turn in a [Line], in the caller's transaction. It takes
// nothing yet. The tokens are taken when the job's turn comes, so until then nobody knows when it
// will run.
//
// Exactly one of the requests must be for a limit of [Config.Lines], which the tenants share. The
// others, such as one for the tenant's own limit, are taken together with it, all or none. While
// one of them has too few tokens, the line passes over the tenant. No request may have OrReserve or
// Within, and the request for the line no option except its count.
//
// A tenant's jobs have their turns in the order of priority, scheduled_at and id: see
// [Line.Patience]. A ScheduledAt in opts counts as the job's scheduled_at, and its turn does not
// come before that. Everything else in opts is passed on to River. If opts make the job unique and
// it exists already, it is not queued again. ByPeriod is refused: River would reckon by the year 2200.
//
// Until its turn comes, the job is scheduled for the year 2200, so that no River client starts it.
// If somebody makes it available earlier, by hand for example, a configured client puts it back and
// keeps its place in line; a client without the configuration of [Scheduler.Configure] starts it. A
// job that is cancelled or deleted leaves the line. While no client with that configuration and the
// Line is working, all jobs of the line wait.
//
// The errors are those of [Jobs.InsertTx]. If the transaction rolls back, nothing is queued.
// QueueTx neither reads nor locks a balance, so transactions that queue jobs do not wait for each
// other.
func (j *Jobs) QueueTx(
	ctx context.Context, tx pgx.Tx, args river.JobArgs, opts *river.InsertOpts, tenant Tenant,
	requests ...ratelimit.Request,
) (*rivertype.JobInsertResult, error) {
	if err := j.check(); err != nil {
		return nil, err
	}
	params := []QueueManyParams{{Args: args, InsertOpts: opts, Tenant: tenant, Requests: requests}}
	jobs, err := j.queue(ctx, tx, single{j.client}, params)
	if err != nil {
		return nil, err
	}
	return jobs[0], nil
}

// QueueManyParams is one job for [Jobs.QueueManyTx]: the arguments of [Jobs.QueueTx].
type QueueManyParams struct {
	// Args are the arguments of the job. It has no default.
	Args river.JobArgs

	// InsertOpts are passed on to River. Default: none.
	InsertOpts *river.InsertOpts

	// Tenant is whose job it is. Its Key has no default.
	Tenant Tenant

	// Requests are what the job takes at its turn. One of them is for a [Line].
	Requests []ratelimit.Request
}

// QueueManyTx is [Jobs.QueueTx] for many jobs, in as many round trips as for one. It returns the
// jobs in the order of params.
func (j *Jobs) QueueManyTx(
	ctx context.Context, tx pgx.Tx, params []QueueManyParams,
) ([]*rivertype.JobInsertResult, error) {
	client, err := j.many(len(params))
	if err != nil {
		return nil, err
	}
	return j.queue(ctx, tx, client, params)
}

func (j *Jobs) queue(
	ctx context.Context, tx pgx.Tx, client manyInserter, params []QueueManyParams,
) ([]*rivertype.JobInsertResult, error) {
	inserts, seats := make([]river.InsertManyParams, len(params)), make([]*ticket.Seat, len(params))
	for i, p := range params {
		var err error
		if inserts[i], seats[i], err = j.scheduler.waits(p); err != nil {
			if len(params) > 1 {
				err = fmt.Errorf("params[%d]: %w", i, err)
			}
			return nil, err
		}
	}
	jobs, err := j.scheduler.in(tx, client).insert(ctx, inserts)
	if err != nil {
		return nil, err
	}
	var turns []*fairline.Row
	for i, job := range jobs {
		if !job.UniqueSkippedAsDuplicate {
			turns = append(turns, fairline.RowOf(seats[i], job.Job))
		}
	}
	ctx, cancel := grace.After(ctx) // a job without a turn would wait for ever
	defer cancel()
	return jobs, fairline.Enter(ctx, j.store, tx, turns...)
}

// waits returns what is to be inserted for a job that waits for its turn.
func (s *Scheduler) waits(
	p QueueManyParams,
) (none river.InsertManyParams, _ *ticket.Seat, _ error) {
	if p.Args == nil {
		return none, nil, errNoArgs
	}
	seat, err := s.lines.Seat(fairline.Tenant(p.Tenant), p.Requests)
	if err = cmp.Or(s.misused, err, fairline.NoPeriod(p.Args, p.InsertOpts)); err != nil {
		return none, nil, err
	}
	t := ticket.Ticket{Version: ticket.Version, Seat: seat}
	var o river.InsertOpts
	o, seat.From = fill(&t, p.Args, p.InsertOpts)
	o.ScheduledAt = riverjob.FarOff
	o.Metadata, err = t.Into(o.Metadata)
	return river.InsertManyParams{Args: p.Args, InsertOpts: &o}, seat, err
}
