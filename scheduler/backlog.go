package scheduler

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/jobs/ticket"
	"github.com/weir-go/weir/ratelimit"
)

// When the first job of a key is put off, the key's other jobs that are due have to wait as well.
// Each of them would be fetched by a worker and put off in its turn, in front of the jobs of other
// keys. So they are moved along, a thousand in a statement. Those of a limited worker take their
// places first.

// beside runs do in the background, unless it is under way for the same already, or began less than
// gap ago: the next job that is put off asks again.
func (p *plugin) beside(what string, gap time.Duration, do func(ctx context.Context) error) {
	own, _ := p.paces.LoadOrStore(what, &pace{})
	own.(*pace).begin(gap, 3*patience, func(ctx context.Context) {
		p.warn(do(ctx), "jobs that have to wait could not be moved", "queue", what)
	})
}

const mostDue = 20_000 // jobs that are read in one go

// along moves the due jobs of a job's queue that wait for the same as it does.
func (p *plugin) along(job *rivertype.JobRow, of ticket.Row) {
	p.beside(job.Queue, 0, func(ctx context.Context) error {
		all, err := p.waiters(ctx, p.pool, dueSQL, []string{job.Queue}, time.Duration(0), mostDue)
		if err != nil {
			return err
		}
		due := slices.DeleteFunc(valid(all), func(w *waiter) bool {
			return !slices.Contains(w.ticket.Rows(), of)
		})
		now, err := p.reckon(ctx, p.pool, due)
		if err != nil {
			return err
		}
		due = slices.DeleteFunc(due, func(w *waiter) bool {
			return w.late(now) || w.Due.Sub(now) < time.Millisecond
		})
		for i, w := range due {
			// If the pause is extended, not all of them meet it. Rounds move up the others.
			w.Due = w.Due.Add(time.Duration(i/mostMoved) * roundEvery)
		}
		return p.move(ctx, p.pool, due, now)
	})
}

// kindSQL reads the due jobs of a kind in a queue, in River's order, behind a place in it.
//
// $1 queue $2 kind $3 $4 $5 priority, time and id of the place $6 most
const kindSQL = `SELECT id, priority, scheduled_at, attempt, max_attempts, created_at, args, metadata,
	tags FROM {river}river_job
WHERE queue = $1::text AND state OPERATOR(pg_catalog.=) 'available' AND kind = $2::text AND scheduled_at <= now()
	AND (priority, scheduled_at, id) > ($3::smallint, $4::timestamptz, $5::bigint)
ORDER BY priority, scheduled_at, id LIMIT $6::integer`

// backlogged is a job of the backlog, and what it asks for.
type backlogged struct {
	job      *rivertype.JobRow
	requests []ratelimit.Request
}

// clear clears the backlog of a limited worker: all due jobs of its kind in the queue whose limits
// are out take their places in one go.
func (p *plugin) clear(job *rivertype.JobRow,
	requests func(*rivertype.JobRow) []ratelimit.Request) {
	queue, kind := job.Queue, job.Kind
	p.beside(queue+" "+kind, 0, func(ctx context.Context) error {
		turns := map[string]time.Time{} // where the jobs without tokens end
		return p.eachDue(ctx, queue, kind, func(jobs []*rivertype.JobRow) (err error) {
			groups := map[string][]backlogged{} // by what they take from
			for _, job := range jobs {
				if t, ok := ticket.Of(job); ok && t.Paid && t.IsFor(job.Attempt) {
					continue // it has its place
				}
				if rs := requests(job); len(rs) > 0 {
					of := fmt.Sprintf("%q", ticket.RowsOf(rs))
					groups[of] = append(groups[of], backlogged{job, rs})
				}
			}
			for of, group := range groups {
				if err == nil {
					turns[of], err = p.place(ctx, group, turns[of])
				}
			}
			return err
		})
	})
}

// eachDue calls do with the due jobs of a kind in a queue, in River's order, some at a time.
func (p *plugin) eachDue(
	ctx context.Context, queue, kind string, do func(jobs []*rivertype.JobRow) error,
) error {
	for last := (&rivertype.JobRow{}); ; {
		var jobs []*rivertype.JobRow
		var j rivertype.JobRow
		args := []any{queue, kind, last.Priority, last.ScheduledAt, last.ID, mostMoved}
		err := p.query(ctx, p.pool, kindSQL, args, func() {
			job := j
			job.Queue, job.Kind, job.State = queue, kind, rivertype.JobStateAvailable
			jobs, j = append(jobs, &job), rivertype.JobRow{} // whose slices are the job's
		}, &j.ID, &j.Priority, &j.ScheduledAt, &j.Attempt, &j.MaxAttempts, &j.CreatedAt,
			&j.EncodedArgs, &j.Metadata, &j.Tags)
		if err == nil {
			err = do(jobs)
		}
		if err != nil || len(jobs) < mostMoved {
			return err
		}
		last = jobs[len(jobs)-1]
	}
}

// place gives jobs of the same limits and keys their places, in their order, and moves them there.
// If the rule's MaxReserved leaves no room for all of them, each is moved to when its turn comes if
// nobody else takes, without tokens: the first not before turn. It returns when the next one's
// comes.
func (p *plugin) place(ctx context.Context, jobs []backlogged, turn time.Time) (time.Time, error) {
	limiter := p.scheduler.limiter
	check, err := limiter.Autocommit(p.pool).CheckRateLimit(ctx, jobs[0].requests...)
	if err != nil || check.OK && check.RunAt.IsZero() {
		return turn, err // there are tokens, and workers take them
	}
	turn = ticket.Latest(turn, check.RetryAt, check.RunAt, check.At)
	err = pgx.BeginTxFunc(ctx, p.pool, readCommitted, func(tx pgx.Tx) error {
		var rows []*rivertype.JobRow
		for _, j := range jobs {
			rows = append(rows, j.job)
		}
		locked, err := p.lock(ctx, tx, rows)
		jobs = slices.DeleteFunc(jobs, func(j backlogged) bool { return !locked[j.job.ID] })
		if err != nil || len(jobs) == 0 {
			return err
		}
		var calls [][]ratelimit.Request
		for _, j := range jobs {
			calls = append(calls, reserving(j.requests))
		}
		all, each, err := limiter.RateLimitMany(ctx, tx, calls)
		// together more than can ever be owed
		if err != nil && !errors.Is(err, ratelimit.ErrInvalid) {
			return err
		}
		var moved []*waiter
		for i, j := range jobs {
			w := &waiter{ID: j.job.ID, At: j.job.ScheduledAt, Due: turn, differs: all.OK}
			if all.OK {
				w.ticket = p.scheduler.pacing.Ticket(&each[i], j.job.Attempt, true)
				w.Due = ticket.Latest(w.ticket.DueAt(), check.At)
			}
			moved, turn = append(moved, w), turn.Add(flowing(j.requests, check.Outcomes))
		}
		return p.move(ctx, tx, moved, check.At)
	})
	return turn, err
}

// lock locks those of the due jobs that are as they were read, and that nobody is fetching. Others
// have been paid for, given a slot or put off since: by another client that clears the same backlog,
// or by a worker.
func (p *plugin) lock(
	ctx context.Context, tx pgx.Tx, jobs []*rivertype.JobRow,
) (map[int64]bool, error) {
	var ids []int64
	read := map[int64]*rivertype.JobRow{}
	for _, job := range jobs {
		ids, read[job.ID] = append(ids, job.ID), job
	}
	var now rivertype.JobRow
	locked := map[int64]bool{}
	err := p.query(ctx, tx, lockSQL, []any{ids}, func() {
		was := read[now.ID]
		locked[now.ID] = now.ScheduledAt.Equal(was.ScheduledAt) && now.Attempt == was.Attempt &&
			bytes.Equal(now.Metadata, was.Metadata)
	}, &now.ID, &now.ScheduledAt, &now.Attempt, &now.Metadata)
	return locked, err
}

// lockSQL locks those of the jobs that are available.
//
// The state is compared as text, for which there is no index: by the index of the states, Postgres
// would look for each due job through the whole list of ids.
//
// $1 ids
const lockSQL = `SELECT id, scheduled_at, attempt, metadata FROM {river}river_job
WHERE id = ANY ($1::bigint[]) AND state::text = 'available'
ORDER BY id FOR UPDATE SKIP LOCKED`

// flowing is how long it takes until the tokens of requests have flowed.
func flowing(requests []ratelimit.Request, rules []ratelimit.Outcome) (d time.Duration) {
	for _, r := range requests {
		for _, o := range rules {
			if o.Limit == r.Limit().Name() && o.Key == r.Key() {
				d = max(d, time.Duration(r.N()*float64(o.Period)/o.Rate))
			}
		}
	}
	return d
}
