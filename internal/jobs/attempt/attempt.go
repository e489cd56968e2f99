// Package attempt starts the attempts of jobs at a client: it looks at a job's limits once more,
// has it pay anew if it is late or tries again, and puts it off if it must wait after all. It takes
// the tokens and slots of limited workers, and has the jobs behind one that waits wait as well. It
// does not know how jobs are inserted. Attempts may be used concurrently: each job is in a
// goroutine of its own, and those that come together ask the database together.
//
//	attempt.go  what happens before the worker is called, and after; slots
//	ask.go      asks how the limits stand, for many jobs together
//	late.go     late jobs and further attempts pay anew
//	pay.go      limited workers take their tokens, and the jobs behind them wait, too
package attempt

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/grace"
	"github.com/weir-go/weir/internal/hand"
	"github.com/weir-go/weir/internal/jobs/batch"
	"github.com/weir-go/weir/internal/jobs/fairline"
	"github.com/weir-go/weir/internal/jobs/riverjob"
	"github.com/weir-go/weir/internal/jobs/rounds"
	"github.com/weir-go/weir/internal/jobs/slotline"
	"github.com/weir-go/weir/internal/jobs/ticket"
	"github.com/weir-go/weir/internal/worknow"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/slots"
)

// visit is one attempt of a job at a client.
type visit struct {
	riverjob.Waiter
	at    *Attempts
	job   *rivertype.JobRow
	found bool // there is a ticket
	newer bool // a later release wrote the ticket, so it stays as it is
	paid  bool // a worker made by Limit has taken its tokens
	used  bool // an attempt before has used what was taken
	clock riverjob.Clock

	by       any             // the worker made by Limit that has asked for tokens
	ctx      context.Context //nolint:containedctx // of the attempt
	requests []ratelimit.Request
	res      ratelimit.Result
	err      error
}

type visitKey struct{}

// visiting returns the visit in a context: nil if the job is to be worked now.
func visiting(ctx context.Context, by string) (*visit, error) {
	v, _ := ctx.Value(visitKey{}).(*visit)
	switch {
	case worknow.Asked(ctx):
		return nil, nil
	case v == nil:
		return nil, errors.New("scheduler: a worker made by " + by +
			", on a River client whose configuration was not made by Scheduler.Configure")
	}
	return v, nil
}

// visits answers many visits together.
type visits = batch.Batch[*visit]

// Pause says that an attempt was told to come back later: see scheduler.PauseError.
type Pause struct {
	For      time.Duration
	Requests []ratelimit.Request
	Err      error // what the attempt has returned
}

// Attempts are those at one client.
type Attempts struct {
	*riverjob.Client
	rounds                   *rounds.Rounds
	slots                    *slotline.Giver
	paused                   func(error) *Pause // nil if the error is no pause
	looks, renewals, charges *visits
	paces                    sync.Map // of a *riverjob.Pace for each thing that is done beside
}

// New returns the Attempts at a client.
func New(
	c *riverjob.Client, r *rounds.Rounds, s *slotline.Giver, paused func(error) *Pause,
) *Attempts {
	a := &Attempts{Client: c, rounds: r, slots: s, paused: paused}
	a.looks, a.charges = batch.New(a.look, 0), batch.New(a.charge, gather)
	a.renewals = batch.New(a.renew, 10*gather) // their looks may have been several
	return a
}

// Work looks at a job's limits once more before it starts, and puts it off if it must wait after
// all: in a pause, behind others, or because it is late. It never waits itself.
func (a *Attempts) Work(
	ctx context.Context, job *rivertype.JobRow, doInner func(context.Context) error,
) error {
	v := &visit{at: a, job: job, Waiter: riverjob.Waiter{ID: job.ID, Attempt: job.Attempt - 1}}
	ctx = context.WithValue(ctx, visitKey{}, v)
	v.Ticket, v.found = ticket.Of(job)
	v.Ticket.Job = v.ID
	v.newer = v.found && !v.Ticket.Known()
	v.Valid = v.found && v.Ticket.Attempt == v.Attempt
	if v.found && !v.newer && !worknow.Asked(ctx) {
		if err := v.begin(ctx); err != nil {
			return err
		}
	}
	err := doInner(ctx)
	if v.found || v.paid {
		a.rounds.Hint() // it may have settled
	}
	return v.after(ctx, err)
}

// begin returns nil when the job may start, or the error that puts it off.
func (v *visit) begin(ctx context.Context) error {
	t := &v.Ticket
	if v.used = t.Used || !v.Valid; t.Paid && v.used && t.First != nil {
		*t = *t.First // Limit takes anew, and so does the job
		t.Job = v.ID
	}
	if t.Seat != nil && t.Seat.Waits {
		return v.backInLine(ctx)
	}
	switch {
	case t.Paid && v.used:
		return nil // Limit takes anew
	case len(t.Taken.Takes) > 0 && v.used &&
		(t.Pays != ticket.PerJob || t.Attempt == ticket.GivenBack):
		t.Taken, t.Attempt, t.Used, v.used = t.Taken.Again(), v.Attempt, false, false
		if err := v.anew(ctx, true); err != nil {
			return err
		}
	case t.Used: // it needs no tokens, but waits for the end of a pause
		v.usedUp(t, true)
	case v.used: // nor here, unless the attempt before was rescued just as it was put off
		t.Attempt = v.Attempt
	}
	if err := v.ask(ctx, v.at.looks); err != nil {
		return err
	}
	v.paid = t.Paid
	v.At = v.job.ScheduledAt
	if !v.used && v.Late(v.clock.Now()) {
		if err := v.anew(ctx, false); err != nil {
			return err
		}
		return v.started(ctx)
	}
	t.Missed = false
	if t.Due != 0 || v.Due.After(v.clock.At) {
		t.Due = v.Due.UnixMicro()
	}
	if v.Due.After(v.clock.Now()) {
		if !v.Paused.After(v.clock.Now()) {
			v.used = t.Used // its tokens have not come, so no attempt has used them
		}
		v.at.along(v.job, t.WaitsFor())
		return v.putOff(ctx, v.Due)
	}
	return v.started(ctx)
}

// backInLine puts a job back that was started before its turn. It has its place still, unless it
// was cancelled and then retried by hand.
func (v *visit) backInLine(ctx context.Context) error {
	err := v.at.Connected(ctx, func(c *pgxpool.Conn) error {
		return fairline.Enter(ctx, v.at.Store, c, fairline.RowOf(v.Ticket.Seat, v.job))
	})
	if err != nil {
		v.at.Warn(err, "a job could not be put back in line", "job", v.ID)
		return putOff(time.Second)
	}
	v.Ticket.Attempt, v.Ticket.Used, v.Ticket.Fetched = v.Attempt, false, v.fetched()
	if err := river.MetadataSet(ctx, ticket.Key, &v.Ticket); err != nil {
		return err
	}
	return putOff(time.Until(riverjob.FarOff))
}

// fetched is how often the job has been fetched, this time included.
func (v *visit) fetched() int { return len(v.job.AttemptedBy) }

// usedUp has a ticket wait for nothing but pauses.
func (v *visit) usedUp(t *ticket.Ticket, used bool) {
	t.Due, t.From, t.On, t.Attempt, t.Used = 0, 0, nil, v.Attempt, used
}

// keep notes that what was taken by a ticket is for the next start, and whether it was used before.
func (v *visit) keep(ctx context.Context, t ticket.Ticket, used bool) error {
	if v.newer {
		return nil
	}
	v.usedUp(&t, used)
	t.Fetched = v.fetched()
	return river.MetadataSet(ctx, ticket.Key, &t)
}

// started notes that the attempt has begun, and with it used what was taken: River writes that with
// whatever becomes of the attempt, at no row version more.
func (v *visit) started(ctx context.Context) error {
	var err error
	if v.job.Metadata, err = v.Ticket.Onto(v.job.Metadata); err != nil { // for ReservationOf
		return err
	}
	began := v.Ticket
	began.Used = true
	return river.MetadataSet(ctx, ticket.Key, &began)
}

// after sees to it that an attempt that has used nothing does not pay again: one that its worker
// snoozed, unless each start pays, and one that its API has told to come later.
func (v *visit) after(ctx context.Context, err error) error {
	pause := v.at.paused(err)
	switch {
	case err == nil || errors.As(err, new(*putOffError)):
		return err
	case pause != nil:
		return v.pause(ctx, pause)
	case v.found && errors.As(err, new(*rivertype.JobSnoozeError)):
		t, used := &v.Ticket, v.used
		if v.paid { // Limit takes anew at the next start
			if t = t.First; t != nil {
				used = t.Used
			}
		}
		if t == nil || t.Pays == ticket.PerStart {
			return err
		}
		if other := v.keep(ctx, *t, used); other != nil {
			return errors.Join(err, other)
		}
	}
	return err // as it is: River tells some errors by their type
}

// putOffError is a snooze that has a ticket. A worker's own middleware sees a snooze.
type putOffError struct{ snooze error }

func (e *putOffError) Error() string { return "scheduler: put off until its tokens exist" }
func (e *putOffError) Unwrap() error { return e.snooze }

func putOff(d time.Duration) error { return &putOffError{&rivertype.JobSnoozeError{Duration: d}} }

// putOff returns the error with which River puts the job off until an instant of the database's
// clock, without using up an attempt. River adds the duration to the program's clock, from which it
// was subtracted here.
func (v *visit) putOff(ctx context.Context, due time.Time) error {
	t := v.Ticket
	t.Fetched = v.fetched()
	t.Attempt, t.Used = v.Attempt, v.used
	var carried any
	if len(t.Rows()) > 0 {
		carried = &t
	}
	if !v.newer && (carried != nil || v.found) {
		if err := river.MetadataSet(ctx, ticket.Key, carried); err != nil {
			return err
		}
	}
	if wait := v.clock.Until(due); wait < riverjob.RoundEvery {
		v.at.Waker.Add(v.ID, time.Now().Add(wait), true) // sooner than the next round
	}
	return putOff(max(0, time.Until(due)))
}

// pause pauses the limits and puts the job off until they open.
func (v *visit) pause(ctx context.Context, e *Pause) error {
	ctx, cancel := grace.After(ctx) // the client may be stopping
	defer cancel()
	a, t := v.at, &v.Ticket // with what it has taken
	t.From, t.On, t.Paid = 0, ticket.RowsOf(e.Requests), v.paid
	t.Jitter = ticket.Random(a.Pacing.Jitter).Microseconds()
	met := &riverjob.Waiter{Ticket: ticket.Ticket{On: t.On, Jitter: t.Jitter}}
	err := a.ConnectedInTx(ctx, func(tx pgx.Tx) error {
		return a.Limiter.Pause(ctx, tx, e.For, e.Requests...)
	})
	if err == nil {
		v.clock, err = a.reckon(ctx, []*riverjob.Waiter{met})
	}
	if err != nil {
		return errors.Join(e.Err, err) // an attempt that has failed
	}
	t.Due, t.By = ticket.Latest(met.Due, v.clock.At).UnixMicro(), len(t.Taken.Takes)+met.Ticket.By
	a.along(v.job, t.WaitsFor())
	return v.putOff(ctx, t.DueAt())
}

// WithSlot works the job in ctx while it holds a slot of what requests returns, or has it wait in
// line for one. of are the requests of another job of the kind.
func WithSlot(
	ctx context.Context, requests func() []slots.Request,
	of func(*rivertype.JobRow) []slots.Request, work func(ctx context.Context) error,
) error {
	v, err := visiting(ctx, "AtOnce")
	switch {
	case err != nil:
		return err
	case v == nil:
		return work(ctx)
	case v.at.slots.None():
		return errors.New("scheduler: a worker made by AtOnce, and a Scheduler without Config.Slots")
	}
	want, err := one(requests())
	switch {
	case err != nil:
		return err
	case want == (hand.Want{}):
		return work(ctx)
	}
	hold, err := v.at.slots.Take(ctx, v.job, want)
	switch {
	case err != nil:
		v.at.Warn(err, "a job could not take a slot, and will try again in a second", "job", v.ID)
		return v.unstarted(ctx, time.Second)
	case hold == nil:
		v.at.clearFor(v.job, want, of)
		return v.unstarted(ctx, time.Until(riverjob.FarOff))
	}
	return v.holding(ctx, want, hold, work)
}

// one checks what a job asks for: the zero Want for nothing.
func one(requests []slots.Request) (hand.Want, error) {
	switch len(requests) {
	case 0:
		return hand.Want{}, nil
	case 1:
		return requests[0].Hand()
	}
	return hand.Want{}, fmt.Errorf("scheduler: a worker made by AtOnce asks for %d slots: want one at most", len(requests))
}

// holding works a job that holds a slot, and then hands the slot on. An attempt that has lost its
// slot has used what it took.
func (v *visit) holding(
	ctx context.Context, want hand.Want, hold hand.Hold, work func(context.Context) error,
) (err error) {
	defer v.at.slots.HandOn(ctx, want, hold)
	err = work(hold.Context(ctx))
	if err == nil || !errors.Is(hold.Err(), slots.ErrLost) ||
		v.at.paused(err) != nil || errors.As(err, new(*rivertype.JobSnoozeError)) ||
		errors.As(err, new(*rivertype.JobCancelError)) {
		return err
	}
	v.at.Warn(err, "an attempt ended because its slot was lost, and is repeated", "job", v.ID)
	if v.used = true; v.Ticket.First != nil {
		v.Ticket.First.Used = true
	}
	return river.JobSnooze(time.Second)
}

// unstarted puts off a job that has not started, and that keeps what it has paid. It waits for no
// tokens any more, so it is not late.
func (v *visit) unstarted(ctx context.Context, d time.Duration) error {
	if v.paid || v.found {
		if err := v.keep(ctx, v.Ticket, v.used); err != nil {
			return err
		}
	}
	return putOff(d)
}

// clearFor has the other due jobs of a job's kind and queue wait that ask for slots of the same
// key, so that none of them is fetched in front of the jobs of other keys, to wait after all. Jobs
// with tokens are left alone. It reads them once a second at most.
func (a *Attempts) clearFor(
	job *rivertype.JobRow, want hand.Want, of func(*rivertype.JobRow) []slots.Request,
) {
	queue, kind := job.Queue, job.Kind
	a.beside(queue+" "+kind+" slots", riverjob.RoundEvery, func(ctx context.Context) error {
		row, err := a.stored(ctx, job)
		if err != nil {
			return err
		}
		if own, err := one(of(row)); err != nil || own.Place != want.Place {
			return nil
		}
		return a.EachDue(ctx, queue, kind, func(jobs []*rivertype.JobRow) error {
			var waiting []*rivertype.JobRow
			for _, j := range jobs {
				_, found := ticket.Of(j)
				w, err := one(of(j))
				if err == nil && w.Place == want.Place && !found && !slotline.WasGiven(j) {
					waiting, want.N = append(waiting, j), w.N // which may have changed since
				}
			}
			return a.slots.HaveWait(ctx, want, waiting)
		})
	})
}
