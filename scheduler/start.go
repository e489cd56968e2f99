package scheduler

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/worknow"
)

// visit is one attempt of a job at a client.
type visit struct {
	plugin *plugin
	job    *rivertype.JobRow
	ticket ticket
	found  bool // there is a ticket
	paid   bool // a worker made by Limit has taken its tokens
	used   bool // an attempt before has used what was taken
	clock  clock
}

type visitKey struct{}

// Work looks at a job's limits once more before it starts, and puts it off if it must wait after
// all: in a pause, behind others, or because it is late. It never waits itself.
func (p *plugin) Work(ctx context.Context, job *rivertype.JobRow, doInner func(context.Context) error) error {
	v := &visit{plugin: p, job: job}
	ctx = context.WithValue(ctx, visitKey{}, v)
	var valid bool
	v.ticket, v.found, valid = ticketOf(job)
	if v.found && v.ticket.known() && !worknow.Asked(ctx) {
		if err := v.begin(ctx, valid); err != nil {
			return err
		}
	}
	err := doInner(ctx)
	if v.found || v.paid {
		p.hint() // it may have settled
	}
	return v.after(ctx, err)
}

// begin returns nil when the job may start, or the error that puts it off.
func (v *visit) begin(ctx context.Context, valid bool) error {
	t := &v.ticket
	v.used = t.Used || !valid
	switch {
	case t.Paid && v.used:
		return nil // Limit takes anew
	case t.Reservation != nil && v.used && (t.Pays != PerJob || t.Attempt == givenBack):
		own := t.Again()
		t.Reservation, t.Attempt, t.Used, v.used = &own, v.job.Attempt-1, false, false
		if err := v.anew(ctx, true); err != nil {
			return err
		}
	case v.used: // it waits for no tokens, but for the pauses of their limits
		t.Due, t.From, t.On, t.Attempt, t.Used = 0, 0, nil, v.job.Attempt-1, true
	}
	due, err := v.lookUp(ctx)
	if err != nil {
		return err
	}
	if due.After(v.clock.now()) {
		return v.putOff(ctx, due)
	}
	v.paid = t.Paid
	if t.Due != 0 && !t.Late && !v.used && -v.clock.until(latest(due, v.job.ScheduledAt)) > tooLate {
		if err := v.anew(ctx, false); err != nil {
			return err
		}
	}
	return v.started(ctx)
}

// started notes that the attempt has begun, and with it used what was taken: River writes that
// with whatever becomes of the attempt, at no row version more.
func (v *visit) started(ctx context.Context) error {
	var err error
	if v.job.Metadata, err = v.ticket.into(v.job.Metadata); err != nil { // for ReservationOf
		return err
	}
	began := v.ticket
	began.Used = true
	return mark(ctx, &began)
}

// mark has River write a ticket when the attempt ends. Where River has no context of an attempt,
// in a test that calls the worker itself, nobody reads it.
func mark(ctx context.Context, t *ticket) error {
	if _, ok := ctx.Value(visitKey{}).(*visit); !ok {
		return nil
	}
	return river.MetadataSet(ctx, metadataKey, t)
}

// after sees to it that an attempt that has used nothing does not pay again: one that its worker
// snoozed, unless each start pays, and one that its API has told to come later.
func (v *visit) after(ctx context.Context, err error) error {
	var pause *PauseError
	switch {
	case err == nil || errors.As(err, new(*putOffError)):
		return err
	case errors.As(err, &pause):
		return v.pause(ctx, pause)
	case !v.paid && v.found && v.ticket.known() && v.ticket.Pays != PerStart && errors.As(err, new(*rivertype.JobSnoozeError)):
		t := v.ticket
		t.Due, t.From, t.On, t.Attempt, t.Used = 0, 0, nil, v.job.Attempt-1, v.used
		return join(err, mark(ctx, &t))
	}
	return err // as it is: River tells some errors by their type
}

func join(err, other error) error {
	if other != nil {
		return errors.Join(err, other)
	}
	return err
}

// putOffError is a snooze that has a ticket. A worker's own middleware sees a snooze.
type putOffError struct{ snooze error }

func (e *putOffError) Error() string { return "scheduler: put off until its tokens exist" }
func (e *putOffError) Unwrap() error { return e.snooze }

// putOff returns the error with which River puts the job off until an instant of the database's
// clock, without using up an attempt. River adds the duration to the program's clock, from which
// it was subtracted here.
func (v *visit) putOff(ctx context.Context, due time.Time) error {
	t := v.ticket
	t.Attempt, t.Used = v.job.Attempt-1, v.used
	carried := &t
	if t.Reservation == nil && t.On == nil {
		carried = nil
	}
	if carried != nil || v.found {
		if err := mark(ctx, carried); err != nil {
			return err
		}
	}
	if wait := v.clock.until(due); wait < roundEvery {
		v.plugin.waker.add(v.job.ID, time.Now().Add(wait), true) // sooner than the next round
	}
	return &putOffError{&rivertype.JobSnoozeError{Duration: max(0, time.Until(due))}}
}

// clock is a reading of the database's clock, and when it came.
type clock struct{ at, answered time.Time }

func (c clock) now() time.Time { return c.at.Add(time.Since(c.answered)) }

// until is how long it takes until t.
func (c clock) until(t time.Time) time.Duration { return t.Sub(c.now()) }

// lookUp tells when the job is due, given how its limits stand by now.
func (v *visit) lookUp(ctx context.Context) (time.Time, error) {
	l := look{ticket: &v.ticket}
	for deadline := time.Now().Add(patience); ; {
		if v.plugin.looks.ask(&l); l.err == nil {
			v.clock = l.clock
			v.ticket.By = l.by
			if v.ticket.Due != 0 || l.due.After(l.at) {
				v.ticket.Due = l.due.UnixMicro()
			}
			if l.due.After(l.at) {
				v.plugin.along(v.job, &v.ticket)
			}
			return l.due, nil
		}
		if time.Now().After(deadline) || !sleep(ctx, 100*time.Millisecond) {
			return time.Time{}, &putOffError{&rivertype.JobSnoozeError{Duration: time.Second}}
		}
	}
}

// look asks how the limits of a ticket stand.
type look struct {
	ticket *ticket

	clock
	due time.Time // by now
	by  int
	err error
}

func (p *plugin) look(items []*look) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	asked := make([]*ticket, len(items))
	for i, l := range items {
		asked[i] = l.ticket
	}
	var all states
	var now time.Time
	err := p.connected(ctx, func(q querier) (err error) {
		all, now, err = db{q, p.tables}.states(ctx, asked)
		return err
	})
	answered := time.Now()
	p.warn(err, "jobs start late: their limits could not be read", "jobs", len(items))
	for _, l := range items {
		if l.clock, l.err = (clock{now, answered}), err; err == nil {
			l.ticket.redefine(all, now)
			l.due, l.by = l.ticket.reckon(all, now, p.scheduler.bunch)
		}
	}
}

// connected runs fn on a connection of the pool. Where workers have all of them, in a middleware
// of their own that holds a transaction open, they wait for this look before they go on: then fn
// gets a connection of its own. There is one at a time.
func (p *plugin) connected(ctx context.Context, fn func(q querier) error) error {
	brief, cancel := context.WithTimeout(ctx, 250*time.Millisecond)
	defer cancel()
	c, err := p.pool.Acquire(brief)
	if err == nil {
		defer c.Release()
		return fn(c)
	}
	if stat := p.pool.Stat(); ctx.Err() != nil || stat.AcquiredConns() < stat.MaxConns() {
		return err
	}
	cfg := p.pool.Config()
	if cfg.BeforeConnect != nil {
		if err := cfg.BeforeConnect(ctx, cfg.ConnConfig); err != nil {
			return err
		}
	}
	own, err := pgx.ConnectConfig(ctx, cfg.ConnConfig)
	if err != nil {
		return err
	}
	defer func() { _ = own.Close(context.WithoutCancel(ctx)) }()
	if cfg.AfterConnect != nil {
		if err := cfg.AfterConnect(ctx, own); err != nil {
			return err
		}
	}
	return fn(own)
}

const patience = 10 * time.Second // with the database

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
