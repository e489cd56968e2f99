package attempt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/jobs/riverjob"
	"github.com/weir-go/weir/internal/jobs/ticket"
	"github.com/weir-go/weir/ratelimit"
)

// errNested says what to do instead. The ticket of a job says only that it has paid, so a second
// worker made by Limit would let it start without its own tokens.
var errNested = errors.New("scheduler: a worker made by Limit is inside another one: have one Limit return the requests of both")

// Take takes what requests returns for the attempt in ctx, on behalf of the worker by. It returns
// nil when the tokens exist, or the error that puts the job off until they do. of are the requests
// of another job of the kind.
func Take(
	ctx context.Context, by any, requests func() []ratelimit.Request,
	of func(*rivertype.JobRow) []ratelimit.Request,
) error {
	v, err := visiting(ctx, "Limit")
	if v == nil {
		return err
	}
	rs := requests()
	switch {
	case len(rs) == 0:
		return nil
	case v.by != nil && v.by != by:
		return errNested
	}
	if v.by = by; v.paid {
		return nil
	}
	// with a newer ticket, nothing would say at the job's next start that it has paid
	if v.ctx, v.requests = ctx, rs; !v.newer {
		v.requests = ticket.Reserving(rs)
	}
	switch v.at.charges.Do(v); {
	case errors.Is(v.err, ratelimit.ErrInvalid):
		return v.err
	case v.err != nil:
		v.at.Warn(v.err, "a job could not take its tokens, and will try again in a second", "job", v.ID)
		return v.unstarted(ctx, time.Second)
	}
	if !v.res.OK || !v.res.RunAt.IsZero() {
		v.at.clear(v.job, rs, of)
	}
	if !v.res.OK { // beyond MaxReserved
		v.usedUp(&v.Ticket, v.used) // its tokens came: by their time, rounds would bring it forward
		return v.putOff(ctx, v.res.RetryAt)
	}
	first := v.Ticket
	v.usedUp(&first, v.used)
	v.Ticket, v.paid, v.used = v.at.Pacing.Ticket(&v.res, v.Attempt, true), true, false
	v.Ticket.Job = v.ID
	if len(first.Taken.Takes) > 0 && !first.Paid {
		v.Ticket.First = &first
	}
	if v.Ticket.Due != 0 {
		return v.putOff(ctx, v.Ticket.DueAt())
	}
	v.job.Metadata, err = v.Ticket.Onto(v.job.Metadata) // for ReservationOf
	return err
}

// gather is how long jobs that a client has fetched together, and that it starts each in a
// goroutine of its own, take to come together again.
const gather = time.Millisecond

const (
	// chargeIn is how long one job may keep the others waiting when somebody holds its balance.
	chargeIn = 2 * time.Second

	// chargeNext is the same for jobs of other balances after that: who holds one may hold many.
	chargeNext = 200 * time.Millisecond
)

// charge takes for jobs in River's order. Those that take from a balance that another one has
// waited for in vain do not wait for it once more.
func (a *Attempts) charge(items []*visit) {
	slices.SortFunc(items, func(a, b *visit) int {
		return cmp.Or(cmp.Compare(a.job.Priority, b.job.Priority),
			a.job.ScheduledAt.Compare(b.job.ScheduledAt), cmp.Compare(a.ID, b.ID))
	})
	held := map[ticket.Row]error{}
	for _, v := range items {
		if !v.res.At.IsZero() { // it was charged in a round that then panicked
			continue
		}
		rows := ticket.RowsOf(v.requests)
		for _, of := range rows {
			v.err = cmp.Or(held[of], v.err)
		}
		if v.err != nil {
			continue
		}
		in := chargeIn
		if len(held) > 0 {
			in = chargeNext
		}
		ctx, cancel := context.WithTimeout(v.ctx, in)
		v.err = a.ConnectedInTx(ctx, func(tx pgx.Tx) (err error) {
			v.res, err = a.Limiter.RateLimit(ctx, tx, v.requests...)
			return err
		})
		cancel()
		if errors.Is(v.err, context.DeadlineExceeded) && v.ctx.Err() == nil {
			for _, of := range rows {
				held[of] = v.err
			}
		}
		v.clock = riverjob.Clock{At: v.res.At, Answered: time.Now()}
	}
	spread(items)
}

// spread gives the jobs that were denied together a turn each, in their order. Else all would come
// again for the next token, and all but one once more for the one after it.
func spread(items []*visit) {
	next := map[string]time.Time{} // by what they take from
	for _, v := range items {
		if v.err == nil && !v.res.OK && !v.res.RetryAt.IsZero() {
			of := fmt.Sprintf("%q", ticket.RowsOf(v.requests))
			v.res.RetryAt = ticket.Latest(v.res.RetryAt, next[of])
			next[of] = v.res.RetryAt.Add(flowing(v.requests, v.res.Outcomes))
		}
	}
}

// When the first job of a key is put off, the key's other jobs that are due have to wait as well.
// Each of them would be fetched by a worker and put off in its turn, in front of the jobs of other
// keys. So they are moved along, a thousand in a statement. Those of a limited worker take their
// places first.

// beside runs do in the background, unless it is under way for the same already, or began less than
// gap ago: the next job that is put off asks again.
func (a *Attempts) beside(what string, gap time.Duration, do func(ctx context.Context) error) {
	own, _ := a.paces.LoadOrStore(what, &riverjob.Pace{})
	own.(*riverjob.Pace).Begin(gap, 3*riverjob.Patience, func(ctx context.Context) {
		a.Warn(do(ctx), "jobs that have to wait could not be moved", "queue", what)
	})
}

const mostDue = 20_000 // jobs that are read in one go

// along moves the due jobs of a job's queue that wait for the same as it does.
func (a *Attempts) along(job *rivertype.JobRow, of ticket.Row) {
	a.beside(job.Queue, 0, func(ctx context.Context) error {
		queue := []string{job.Queue}
		all, err := a.Waiters(ctx, a.Pool, riverjob.DueSQL, queue, time.Duration(0), mostDue)
		if err != nil {
			return err
		}
		due := slices.DeleteFunc(riverjob.Valid(all), func(w *riverjob.Waiter) bool {
			return !slices.Contains(w.Ticket.Rows(), of)
		})
		now, err := a.ReckonEach(ctx, a.Pool, due)
		if err != nil {
			return err
		}
		due = slices.DeleteFunc(due, func(w *riverjob.Waiter) bool {
			return w.Late(now) || w.Due.Sub(now) < time.Millisecond
		})
		for i, w := range due {
			// If the pause is extended, not all of them meet it. Rounds move up the others.
			w.Due = w.Due.Add(time.Duration(i/riverjob.MostMoved) * riverjob.RoundEvery)
			if w.Ticket.Due == 0 { // else rounds would take it for a snooze
				w.Ticket.Due, w.Differs = w.Due.UnixMicro(), true
			}
		}
		return a.Move(ctx, a.Pool, due, now)
	})
}

// stored returns the row of a job as it is read for the backlog. Hooks may store arguments in another
// form than that in which an attempt gets them, encrypted say: then others ask for something else.
func (a *Attempts) stored(ctx context.Context, job *rivertype.JobRow) (*rivertype.JobRow, error) {
	row := *job
	row.Attempt--
	const sql = `SELECT args FROM {river}river_job WHERE id = $1::bigint`
	err := a.Query(ctx, a.Pool, sql, []any{job.ID}, func() {}, &row.EncodedArgs)
	return &row, err
}

// backlogged is a job of the backlog, and what it asks for.
type backlogged struct {
	job      *rivertype.JobRow
	requests []ratelimit.Request
}

// clear clears the backlog of a limited worker: all due jobs of its kind in the queue whose limits
// are out take their places in one go. If somebody holds the balance of some, only these stay. asked
// is what the job itself has asked for.
func (a *Attempts) clear(job *rivertype.JobRow, asked []ratelimit.Request,
	requests func(*rivertype.JobRow) []ratelimit.Request) {
	queue, kind := job.Queue, job.Kind
	a.beside(queue+" "+kind, 0, func(ctx context.Context) error {
		if row, err := a.stored(ctx, job); err != nil || !reflect.DeepEqual(requests(row), asked) {
			return err
		}
		turns := map[string]time.Time{} // where the jobs without tokens end
		held := map[string]error{}      // by what they take from, as turns
		err := a.EachDue(ctx, queue, kind, func(jobs []*rivertype.JobRow) error {
			groups := map[string][]backlogged{} // by what they take from
			for _, job := range jobs {
				// A ticket says where the job belongs, except one that an attempt of a limited worker
				// has used, if the job has taken nothing else.
				if t, ok := ticket.Of(job); ok &&
					(!t.Known() || !t.Paid || t.IsFor(job.Attempt) || t.First != nil) {
					continue
				}
				if rs := requests(job); canBeGranted(rs) { // else its own attempt tells
					of := fmt.Sprintf("%q", ticket.RowsOf(rs))
					groups[of] = append(groups[of], backlogged{job, rs})
				}
			}
			for of, group := range groups {
				if held[of] != nil {
					continue
				}
				turn, err := a.place(ctx, group, turns[of])
				switch {
				case riverjob.IsBlocked(err):
					held[of] = err
				case err != nil:
					return err
				}
				turns[of] = turn
			}
			return nil
		})
		return errors.Join(err, errors.Join(slices.Collect(maps.Values(held))...))
	})
}

// canBeGranted reports whether a job asks for something that its limits can ever grant. One that
// asks for too much would keep all that are placed with it from reserving, and those behind it
// waiting until as much had come.
func canBeGranted(requests []ratelimit.Request) bool {
	if len(requests) == 0 {
		return false
	}
	full := func(string, string) ratelimit.State { return ratelimit.State{} }
	_, _, err := ratelimit.Foretell(time.Now(), full, ticket.Reserving(requests)...)
	return err == nil
}

// placeIn is how long the backlogs of all keys wait when somebody holds the balance of one.
const placeIn = time.Second

// place gives jobs of the same limits and keys their places, in their order, and moves them there.
// If the rule's MaxReserved leaves no room for all of them, each is moved to when its turn comes if
// nobody else takes, without tokens: the first not before turn. It returns when the next one's
// comes.
func (a *Attempts) place(
	ctx context.Context, jobs []backlogged, turn time.Time,
) (time.Time, error) {
	limiter, first := a.Limiter, jobs[0].requests
	check, err := limiter.Autocommit(a.Pool).CheckRateLimit(ctx, first...)
	if errors.Is(err, ratelimit.ErrInvalid) { // at once: only a reservation grants what it asks for
		check, err = limiter.Autocommit(a.Pool).CheckRateLimit(ctx, ticket.Reserving(first)...)
	}
	if err != nil || check.OK && check.RunAt.IsZero() {
		return turn, err // there are tokens, and workers take them
	}
	turn = ticket.Latest(turn, check.RetryAt, check.RunAt, check.At)
	err = a.InTx(ctx, func(tx pgx.Tx) error {
		var rows []*rivertype.JobRow
		for _, j := range jobs {
			rows = append(rows, j.job)
		}
		if err := a.Briefly(ctx, tx, placeIn); err != nil {
			return err
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
				w.Ticket.Job = j.job.ID
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
