package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/jobs/pace"
	"github.com/weir-go/weir/internal/jobs/riverjob"
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
	own, _ := p.paces.LoadOrStore(what, &pace.Pace{})
	own.(*pace.Pace).Begin(gap, 3*riverjob.Patience, func(ctx context.Context) {
		p.Warn(do(ctx), "jobs that have to wait could not be moved", "queue", what)
	})
}

const mostDue = 20_000 // jobs that are read in one go

// along moves the due jobs of a job's queue that wait for the same as it does.
func (p *plugin) along(job *rivertype.JobRow, of ticket.Row) {
	p.beside(job.Queue, 0, func(ctx context.Context) error {
		all, err := p.Waiters(ctx, p.Pool, riverjob.DueSQL, []string{job.Queue}, time.Duration(0), mostDue)
		if err != nil {
			return err
		}
		due := slices.DeleteFunc(riverjob.Valid(all), func(w *riverjob.Waiter) bool {
			return !slices.Contains(w.Ticket.Rows(), of)
		})
		now, err := p.Reckon(ctx, p.Pool, due)
		if err != nil {
			return err
		}
		due = slices.DeleteFunc(due, func(w *riverjob.Waiter) bool {
			return w.Late(now) || w.Due.Sub(now) < time.Millisecond
		})
		for i, w := range due {
			// If the pause is extended, not all of them meet it. Rounds move up the others.
			w.Due = w.Due.Add(time.Duration(i/riverjob.MostMoved) * riverjob.RoundEvery)
		}
		return p.Move(ctx, p.Pool, due, now)
	})
}

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
		return p.EachDue(ctx, queue, kind, func(jobs []*rivertype.JobRow) (err error) {
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

// place gives jobs of the same limits and keys their places, in their order, and moves them there.
// If the rule's MaxReserved leaves no room for all of them, each is moved to when its turn comes if
// nobody else takes, without tokens: the first not before turn. It returns when the next one's
// comes.
func (p *plugin) place(ctx context.Context, jobs []backlogged, turn time.Time) (time.Time, error) {
	limiter := p.Limiter
	check, err := limiter.Autocommit(p.Pool).CheckRateLimit(ctx, jobs[0].requests...)
	if err != nil || check.OK && check.RunAt.IsZero() {
		return turn, err // there are tokens, and workers take them
	}
	turn = ticket.Latest(turn, check.RetryAt, check.RunAt, check.At)
	err = p.InTx(ctx, func(tx pgx.Tx) error {
		var rows []*rivertype.JobRow
		for _, j := range jobs {
			rows = append(rows, j.job)
		}
		locked, err := p.Lock(ctx, tx, rows)
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
		var moved []*riverjob.Waiter
		for i, j := range jobs {
			w := &riverjob.Waiter{ID: j.job.ID, At: j.job.ScheduledAt, Due: turn, Differs: all.OK}
			if all.OK {
				w.Ticket = p.Pacing.Ticket(&each[i], j.job.Attempt, true)
				w.Due = ticket.Latest(w.Ticket.DueAt(), check.At)
			}
			moved, turn = append(moved, w), turn.Add(flowing(j.requests, check.Outcomes))
		}
		return p.Move(ctx, tx, moved, check.At)
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
