package scheduler

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/batch"
	"github.com/weir-go/weir/internal/jobs/ticket"
	"github.com/weir-go/weir/internal/worknow"
	"github.com/weir-go/weir/ratelimit"
)

// visit is one attempt of a job at a client.
type visit struct {
	waiter
	plugin *plugin
	job    *rivertype.JobRow
	found  bool // there is a ticket
	paid   bool // a worker made by Limit has taken its tokens
	used   bool // an attempt before has used what was taken
	clock  clock

	ctx      context.Context //nolint:containedctx // of the attempt
	requests []ratelimit.Request
	res      ratelimit.Result
	err      error
}

type visitKey struct{}

// visits answers many visits together.
type visits = batch.Batch[*visit]

// Work looks at a job's limits once more before it starts, and puts it off if it must wait after
// all: in a pause, behind others, or because it is late. It never waits itself.
func (p *plugin) Work(
	ctx context.Context, job *rivertype.JobRow, doInner func(context.Context) error,
) error {
	v := &visit{plugin: p, job: job, waiter: waiter{ID: job.ID, attempt: job.Attempt - 1}}
	ctx = context.WithValue(ctx, visitKey{}, v)
	v.ticket, v.found = ticket.Of(job)
	v.valid = v.found && v.ticket.Attempt == v.attempt
	if v.found && v.ticket.Known() && !worknow.Asked(ctx) {
		if err := v.begin(ctx); err != nil {
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
func (v *visit) begin(ctx context.Context) error {
	t := &v.ticket
	v.used = t.Used || !v.valid
	if t.Seat != nil && t.Seat.Waits {
		return v.backInLine(ctx)
	}
	switch {
	case t.Paid && v.used:
		return nil // Limit takes anew
	case len(t.Taken.Takes) > 0 && v.used &&
		(t.Pays != ticket.PerJob || t.Attempt == ticket.GivenBack):
		t.Taken, t.Attempt, t.Used, v.used = t.Taken.Again(), v.attempt, false, false
		if err := v.anew(ctx, true); err != nil {
			return err
		}
	case v.used: // it waits for no tokens, but for the pauses of their limits
		v.usedUp(t, true)
	}
	if err := v.ask(ctx, v.plugin.looks); err != nil {
		return err
	}
	v.paid = t.Paid
	v.At = v.job.ScheduledAt
	if !v.used && v.late(v.clock.now()) {
		if err := v.anew(ctx, false); err != nil {
			return err
		}
		return v.started(ctx)
	}
	if t.Due != 0 || v.Due.After(v.clock.at) {
		t.Due = v.Due.UnixMicro()
	}
	if v.Due.After(v.clock.now()) {
		v.plugin.along(v.job, t.WaitsFor())
		return v.putOff(ctx, v.Due)
	}
	return v.started(ctx)
}

// backInLine puts a job back that was started before its turn. It has its place still, unless it
// was cancelled and then retried by hand.
func (v *visit) backInLine(ctx context.Context) error {
	err := v.plugin.connected(ctx, func(c *pgxpool.Conn) error {
		return sendRows(ctx, v.plugin.store, c, enterSQL, []*turnRow{turnOf(v.ticket.Seat, v.job)})
	})
	if err != nil {
		v.plugin.warn(err, "a job could not be put back in line", "job", v.ID)
		return putOff(time.Second)
	}
	v.ticket.Attempt, v.ticket.Used = v.attempt, false
	if err := river.MetadataSet(ctx, ticket.Key, &v.ticket); err != nil {
		return err
	}
	return putOff(time.Until(farOff))
}

// usedUp has a ticket wait for nothing but pauses.
func (v *visit) usedUp(t *ticket.Ticket, used bool) {
	t.Due, t.From, t.On, t.Attempt, t.Used = 0, 0, nil, v.attempt, used
}

// started notes that the attempt has begun, and with it used what was taken: River writes that with
// whatever becomes of the attempt, at no row version more.
func (v *visit) started(ctx context.Context) error {
	var err error
	if v.job.Metadata, err = v.ticket.Into(v.job.Metadata); err != nil { // for ReservationOf
		return err
	}
	began := v.ticket
	began.Used = true
	return river.MetadataSet(ctx, ticket.Key, &began)
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
	case !v.paid && v.found && v.ticket.Known() && v.ticket.Pays != ticket.PerStart &&
		errors.As(err, new(*rivertype.JobSnoozeError)):
		t := v.ticket
		v.usedUp(&t, v.used)
		if other := river.MetadataSet(ctx, ticket.Key, &t); other != nil {
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
	t := v.ticket
	t.Attempt, t.Used = v.attempt, v.used
	var carried any
	if len(t.Rows()) > 0 {
		carried = &t
	}
	if carried != nil || v.found {
		if err := river.MetadataSet(ctx, ticket.Key, carried); err != nil {
			return err
		}
	}
	if wait := v.clock.until(due); wait < roundEvery {
		v.plugin.waker.Add(v.ID, time.Now().Add(wait), true) // sooner than the next round
	}
	return putOff(max(0, time.Until(due)))
}

// clock is a reading of the database's clock, and when it came.
type clock struct{ at, answered time.Time }

func (c clock) now() time.Time { return c.at.Add(time.Since(c.answered)) }

// until is how long it takes until t.
func (c clock) until(t time.Time) time.Duration { return t.Sub(c.now()) }

// look tells visits when their jobs are due, given how their limits stand by now.
func (p *plugin) look(items []*visit) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	jobs := make([]*waiter, len(items))
	for i, v := range items {
		jobs[i] = &v.waiter
	}
	var now time.Time
	err := p.connected(ctx, func(c *pgxpool.Conn) (err error) {
		now, err = p.reckon(ctx, c, jobs)
		return err
	})
	p.warn(err, "jobs start late: their limits could not be read", "jobs", len(items))
	for _, v := range items {
		v.clock, v.err = clock{now, time.Now()}, err
	}
}

// connected runs fn on a connection of the pool. If workers hold all of them, in a middleware of
// their own that keeps a transaction open, they wait for this look before they go on: then fn gets
// a connection of its own. There is one at a time, however many workers there are. A connection that
// is being opened is waited for.
func (p *plugin) connected(ctx context.Context, fn func(c *pgxpool.Conn) error) error {
	for {
		brief, cancel := context.WithTimeout(ctx, 250*time.Millisecond)
		c, err := p.pool.Acquire(brief)
		cancel()
		stat := p.pool.Stat()
		switch {
		case err == nil:
			defer c.Release()
			return fn(c)
		case ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded):
			return err
		case stat.AcquiredConns() == stat.MaxConns():
			return p.onItsOwn(ctx, fn)
		}
	}
}

// onItsOwn runs fn on a connection outside of the pool.
func (p *plugin) onItsOwn(ctx context.Context, fn func(c *pgxpool.Conn) error) error {
	select {
	case p.beyond <- struct{}{}:
		defer func() { <-p.beyond }()
	case <-ctx.Done():
		return ctx.Err()
	}
	cfg := p.pool.Config()
	cfg.MaxConns, cfg.MinConns, cfg.MinIdleConns = 1, 0, 0
	own, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer own.Close()
	return own.AcquireFunc(ctx, fn)
}

const patience = 10 * time.Second // with the database

// ask has a batch answer, and again until the database does.
func (v *visit) ask(ctx context.Context, b *visits) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		if b.Do(v); v.err == nil {
			return nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return putOff(time.Second)
		}
	}
}
