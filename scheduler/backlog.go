package scheduler

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/ratelimit"
)

// The backlog of a limited worker. Jobs of a key that has no tokens would all pass a worker once, to
// be put off one by one, and the jobs of other keys behind them would wait for that. So when the
// first is put off, all due jobs of its kind in the queue whose limits are out take their places in
// one go, and are moved to their times.

// kindSQL reads the due jobs of a kind in a queue, in River's order, behind a place in it.
//
// $1 queue $2 kind $3 $4 $5 priority, time and id of the place $6 most
const kindSQL = `SELECT id, priority, scheduled_at, attempt, max_attempts, created_at, args, metadata, tags FROM {river}river_job
WHERE queue = $1::text AND state = 'available' AND kind = $2::text AND scheduled_at <= now()
	AND (priority, scheduled_at, id) > ($3::smallint, $4::timestamptz, $5::bigint)
ORDER BY priority, scheduled_at, id LIMIT $6::integer`

// backlogged is a job of the backlog, and what it asks for.
type backlogged struct {
	job      *rivertype.JobRow
	requests []ratelimit.Request
}

// clear clears a backlog, in the background.
func (p *plugin) clear(job *rivertype.JobRow, requests func(*rivertype.JobRow) []ratelimit.Request) {
	queue, kind := job.Queue, job.Kind
	p.beside(queue+" "+kind, func(ctx context.Context) error {
		turns := map[string]time.Time{}
		for last := (&rivertype.JobRow{}); ; {
			jobs, err := p.due(ctx, queue, kind, last)
			if err == nil {
				err = p.placeAll(ctx, jobs, requests, turns)
			}
			if err != nil || len(jobs) < mostMoved {
				return err
			}
			last = jobs[len(jobs)-1]
		}
	})
}

// due are the next due jobs of a kind behind another one.
func (p *plugin) due(ctx context.Context, queue, kind string, last *rivertype.JobRow) ([]*rivertype.JobRow, error) {
	var all []*rivertype.JobRow
	var j rivertype.JobRow
	err := p.db().query(ctx, kindSQL, []any{&j.ID, &j.Priority, &j.ScheduledAt, &j.Attempt, &j.MaxAttempts, &j.CreatedAt, &j.EncodedArgs, &j.Metadata, &j.Tags},
		func() {
			job := j
			job.Queue, job.Kind, job.State = queue, kind, rivertype.JobStateAvailable
			job.EncodedArgs, job.Metadata, job.Tags = slices.Clone(j.EncodedArgs), slices.Clone(j.Metadata), slices.Clone(j.Tags)
			all = append(all, &job)
		}, queue, kind, last.Priority, last.ScheduledAt, last.ID, mostMoved)
	return all, err
}

// placeAll gives those of the jobs places whose limits have nothing for the first of them. turns
// remembers where the jobs without tokens end.
func (p *plugin) placeAll(
	ctx context.Context, jobs []*rivertype.JobRow, requests func(*rivertype.JobRow) []ratelimit.Request, turns map[string]time.Time,
) (err error) {
	groups := map[string][]backlogged{}
	var order []string
	for _, job := range jobs {
		if t, ok, _ := ticketOf(job); ok && t.Paid && !t.Used && t.Attempt == job.Attempt {
			continue // it has its place
		}
		rs := requests(job)
		if len(rs) == 0 {
			continue
		}
		of := placesOf(rs)
		if groups[of] == nil {
			order = append(order, of)
		}
		groups[of] = append(groups[of], backlogged{job, rs})
	}
	for _, of := range order {
		if turns[of], err = p.place(ctx, groups[of], turns[of]); err != nil {
			return err
		}
	}
	return nil
}

// placesOf names the limits and keys of requests.
func placesOf(requests []ratelimit.Request) string {
	names := make([]string, len(requests))
	for i, r := range requests {
		names[i] = r.Limit().Name() + "\x00" + r.Key()
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), "\x00")
}

// place gives jobs of the same limits and keys their places, in their order, and moves them there.
// If the rule's MaxReserved leaves no room for all of them, each is moved to when its turn comes if
// nobody else takes, without tokens: the first not before turn. It returns when the next one's comes.
func (p *plugin) place(ctx context.Context, jobs []backlogged, turn time.Time) (time.Time, error) {
	limiter := p.scheduler.limiter
	check, err := limiter.Autocommit(p.pool).CheckRateLimit(ctx, reserving(jobs[0].requests)...)
	if err != nil || check.OK && check.RunAt.IsZero() {
		return turn, err // there are tokens, and workers take them
	}
	err = readCommitted(ctx, p.pool, func(tx pgx.Tx) error {
		d := db{tx, p.tables}
		jobs, err := d.lock(ctx, jobs)
		if err != nil || len(jobs) == 0 {
			return err
		}
		calls := make([][]ratelimit.Request, len(jobs))
		for i, j := range jobs {
			calls[i] = reserving(j.requests)
		}
		all, each, err := limiter.RateLimitMany(ctx, tx, calls)
		if err != nil && !errors.Is(err, ratelimit.ErrInvalid) { // together they may be more than can ever be owed
			return err
		}
		moved := make([]*waiter, len(jobs))
		turn = latest(turn, check.RetryAt)
		if alone, err := limiter.CheckRateLimit(ctx, tx, jobs[0].requests...); err == nil && !alone.OK {
			turn = latest(turn, alone.RetryAt)
		}
		for i, j := range jobs {
			w := &waiter{id: j.job.ID, at: j.job.ScheduledAt, due: latest(turn, check.At)}
			if all.OK {
				w.ticket, w.changed = p.scheduler.newTicket(&each[i]), true
				w.ticket.Paid, w.ticket.Attempt = true, j.job.Attempt
				w.due = latest(w.ticket.due(), check.At)
			}
			turn = turn.Add(flowing(j.requests, check.Outcomes))
			moved[i] = w
		}
		return d.move(ctx, moved, check.At)
	})
	return turn, err
}

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

// lockSQL locks those of the jobs that are due still, and that nobody is fetching.
//
// $1 ids
const lockSQL = `SELECT id FROM {river}river_job WHERE id = ANY ($1::bigint[]) AND state = 'available' ORDER BY id FOR UPDATE SKIP LOCKED`

func (d db) lock(ctx context.Context, jobs []backlogged) ([]backlogged, error) {
	ids := make([]int64, len(jobs))
	for i, j := range jobs {
		ids[i] = j.job.ID
	}
	locked := map[int64]bool{}
	var id int64
	err := d.query(ctx, lockSQL, []any{&id}, func() { locked[id] = true }, ids)
	return slices.DeleteFunc(slices.Clone(jobs), func(j backlogged) bool { return !locked[j.job.ID] }), err
}
