package attempt

import (
	"cmp"
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
	"github.com/weir-go/weir/internal/worknow"
	"github.com/weir-go/weir/ratelimit"
)

// Take takes what requests returns for the attempt in ctx. It returns nil when the tokens exist, or
// the error that puts the job off until they do. of are the requests of another job of the kind.
func Take(
	ctx context.Context, requests func() []ratelimit.Request,
	of func(*rivertype.JobRow) []ratelimit.Request,
) error {
	if worknow.Asked(ctx) {
		return nil
	}
	v, _ := ctx.Value(visitKey{}).(*visit)
	if v == nil {
		return notConfigured("Limit")
	}
	if v.paid {
		return nil
	}
	if rs := requests(); len(rs) > 0 {
		return v.take(ctx, rs, of)
	}
	return nil
}

func notConfigured(by string) error {
	return errors.New("scheduler: a worker made by " + by + ", on a River client whose " +
		"configuration was not made by Scheduler.Configure")
}

func (v *visit) take(
	ctx context.Context, requests []ratelimit.Request,
	of func(*rivertype.JobRow) []ratelimit.Request,
) error {
	v.ctx, v.requests = ctx, ticket.Reserving(requests)
	if v.at.charges.Do(v); v.err != nil {
		return v.err
	}
	if !v.res.OK || !v.res.RunAt.IsZero() {
		v.at.clear(v.job, of)
	}
	if !v.res.OK { // beyond MaxReserved
		return v.putOff(ctx, v.res.RetryAt)
	}
	v.Ticket, v.paid = v.at.Pacing.Ticket(&v.res, v.Attempt, true), true
	if v.Ticket.Due != 0 {
		return v.putOff(ctx, v.Ticket.DueAt())
	}
	var err error
	v.job.Metadata, err = v.Ticket.Into(v.job.Metadata) // for ReservationOf
	return err
}

// gather is how long jobs that a client has fetched together, and that it starts each in a
// goroutine of its own, take to come together again.
const gather = time.Millisecond

// charge takes for jobs in River's order.
func (a *Attempts) charge(items []*visit) {
	slices.SortFunc(items, func(a, b *visit) int {
		return cmp.Or(cmp.Compare(a.job.Priority, b.job.Priority),
			a.job.ScheduledAt.Compare(b.job.ScheduledAt), cmp.Compare(a.ID, b.ID))
	})
	for _, v := range items {
		v.err = a.ConnectedInTx(v.ctx, func(tx pgx.Tx) (err error) {
			v.res, err = a.Limiter.RateLimit(v.ctx, tx, v.requests...)
			return err
		})
		v.clock = riverjob.Clock{At: v.res.At, Answered: time.Now()}
	}
}

// When the first job of a key is put off, the key's other jobs that are due have to wait as well.
// Each of them would be fetched by a worker and put off in its turn, in front of the jobs of other
// keys. So they are moved along, a thousand in a statement. Those of a limited worker take their
// places first.

// beside runs do in the background, unless it is under way for the same already, or began less than
// gap ago: the next job that is put off asks again.
func (a *Attempts) beside(what string, gap time.Duration, do func(ctx context.Context) error) {
	own, _ := a.paces.LoadOrStore(what, &pace.Pace{})
	own.(*pace.Pace).Begin(gap, 3*riverjob.Patience, func(ctx context.Context) {
		a.Warn(do(ctx), "jobs that have to wait could not be moved", "queue", what)
	})
}

const mostDue = 20_000 // jobs that are read in one go

// along moves the due jobs of a job's queue that wait for the same as it does.
func (a *Attempts) along(job *rivertype.JobRow, of ticket.Row) {
	a.beside(job.Queue, 0, func(ctx context.Context) error {
		all, err := a.Waiters(ctx, a.Pool, riverjob.DueSQL, []string{job.Queue}, time.Duration(0), mostDue)
		if err != nil {
			return err
		}
		due := slices.DeleteFunc(riverjob.Valid(all), func(w *riverjob.Waiter) bool {
			return !slices.Contains(w.Ticket.Rows(), of)
		})
		now, err := a.Reckon(ctx, a.Pool, due)
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
		return a.Move(ctx, a.Pool, due, now)
	})
}

// backlogged is a job of the backlog, and what it asks for.
type backlogged struct {
	job      *rivertype.JobRow
	requests []ratelimit.Request
}

// clear clears the backlog of a limited worker: all due jobs of its kind in the queue whose limits
// are out take their places in one go.
func (a *Attempts) clear(job *rivertype.JobRow,
	requests func(*rivertype.JobRow) []ratelimit.Request) {
	queue, kind := job.Queue, job.Kind
	a.beside(queue+" "+kind, 0, func(ctx context.Context) error {
		turns := map[string]time.Time{} // where the jobs without tokens end
		return a.EachDue(ctx, queue, kind, func(jobs []*rivertype.JobRow) (err error) {
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
					turns[of], err = a.place(ctx, group, turns[of])
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
func (a *Attempts) place(ctx context.Context, jobs []backlogged, turn time.Time) (time.Time, error) {
	limiter := a.Limiter
	check, err := limiter.Autocommit(a.Pool).CheckRateLimit(ctx, jobs[0].requests...)
	if err != nil || check.OK && check.RunAt.IsZero() {
		return turn, err // there are tokens, and workers take them
	}
	turn = ticket.Latest(turn, check.RetryAt, check.RunAt, check.At)
	err = a.InTx(ctx, func(tx pgx.Tx) error {
		var rows []*rivertype.JobRow
		for _, j := range jobs {
			rows = append(rows, j.job)
		}
		locked, err := a.Lock(ctx, tx, rows)
		jobs = slices.DeleteFunc(jobs, func(j backlogged) bool { return !locked[j.job.ID] })
		if err != nil || len(jobs) == 0 {
			return err
		}
		var calls [][]ratelimit.Request
		for _, j := range jobs {
			calls = append(calls, ticket.Reserving(j.requests))
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
				w.Ticket = a.Pacing.Ticket(&each[i], j.job.Attempt, true)
				w.Due = ticket.Latest(w.Ticket.DueAt(), check.At)
			}
			moved, turn = append(moved, w), turn.Add(flowing(j.requests, check.Outcomes))
		}
		return a.Move(ctx, tx, moved, check.At)
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
