package scheduler

import (
	"context"
	"errors"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
)

// visit is one attempt of a job at a client.
type visit struct {
	plugin *plugin
	line   *line // nil for a queue that was added to the client later
	job    *rivertype.JobRow
	ticket ticket
	found  bool  // there is a ticket
	valid  bool  // and it is for this attempt
	paid   bool  // a worker made by Limit has taken its tokens
	clock  clock // as it was last seen
}

// due is when the job may start.
func (v *visit) due() time.Time {
	if v.valid && v.ticket.Due != 0 {
		return v.ticket.due()
	}
	return v.job.ScheduledAt
}

type visitKey struct{}

// Work holds a job with a ticket until it is due, and longer if its limits are paused. It sees to it that a queue and the
// one beside it run no more jobs together than the queue has workers.
func (p *plugin) Work(ctx context.Context, job *rivertype.JobRow, doInner func(context.Context) error) error {
	v := &visit{plugin: p, line: p.lines[job.Queue], job: job}
	ctx = context.WithValue(ctx, visitKey{}, v)
	taken, beside := false, v.line != nil && job.Queue == v.line.beside
	if beside {
		job.Queue = v.line.queue
		v.line.busy.Add(1)
		defer func() {
			v.line.busy.Add(-1)
			if !taken {
				p.returns.ask(job) // whatever becomes of it
			}
		}()
	}
	v.ticket, v.found, v.valid = ticketOf(job)
	if v.goesOn() {
		t := &v.ticket
		t.Due, t.From, t.On, t.Attempt, t.Used = 0, 0, nil, job.Attempt-1, true
		v.valid = true
	}
	if v.valid {
		if !beside && job.AttemptedAt != nil && v.due().Sub(*job.AttemptedAt) > time.Second {
			v.ticket.Due = 0 // somebody wants it now, and has retried it by hand
		}
		err := v.hold(ctx)
		if taken = errors.Is(err, errTakenAway); taken {
			return nil // which changes nothing: see yield
		}
		if err != nil {
			return err
		}
		job.ScheduledAt = v.due()
	} else if v.paysAgain() {
		if err := v.renew(ctx, true); err != nil {
			return err
		}
	}
	if v.line != nil {
		if err := v.slot(ctx); err != nil {
			return err
		}
		defer func() { <-v.line.slots }()
	}
	return v.after(ctx, doInner(ctx))
}

// slot returns with a slot of the queue, or with the error that puts the job back. A job that is too late by then is paced
// anew, together with all others here that are due and have no slot: they would come before it.
func (v *visit) slot(ctx context.Context) error {
	for {
		recall := v.line.recalled()
		select {
		case v.line.slots <- struct{}{}:
			if !v.late(tooLate) {
				return nil
			}
			<-v.line.slots
			v.line.recall()
		case <-recall:
			if !v.late(0) {
				continue
			}
		case <-ctx.Done():
			return v.interrupted(ctx)
		}
		if err := v.renew(ctx, false); err != nil {
			return err
		}
	}
}

// late says that the job was to start longer than d ago.
func (v *visit) late(d time.Duration) bool {
	return v.valid && v.ticket.Due != 0 && -v.clock.until(v.ticket.due()) > d
}

// after sees to it that a snooze of the worker's own, which keeps the attempt's number, does not find a ticket to wait by.
// Where each start pays it finds none for its attempt.
func (v *visit) after(ctx context.Context, err error) error {
	var pause *PauseError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &pause):
		return v.pause(ctx, pause)
	case errors.As(err, new(*putBackError)):
		return err
	}
	var e error
	switch {
	case v.paid: // the next attempt takes anew
		e = river.MetadataSet(ctx, metadataKey, nil)
	case v.valid && errors.As(err, new(*rivertype.JobSnoozeError)):
		v.ticket.Due, v.ticket.From, v.ticket.On = 0, 0, nil
		if v.ticket.Pays == PerStart {
			v.ticket.Attempt = givenBack // or as good as
		}
		e = river.MetadataSet(ctx, metadataKey, &v.ticket)
	}
	if e != nil {
		return errors.Join(err, e)
	}
	return err // as it is: River tells some errors by their type
}

// putBackError is a snooze that has a ticket, or the end of a job that was cancelled before it started.
type putBackError struct{ snooze error }

func (e *putBackError) Error() string { return "scheduler: put back until its tokens exist" }
func (e *putBackError) Unwrap() error { return e.snooze }

// putBack returns the error with which River puts the job back, without using up an attempt, until t by the database's
// clock: with a ticket, or with none. River adds the snooze to the client's clock, from which it was subtracted here.
func (v *visit) putBack(ctx context.Context, t *ticket, until time.Time) error {
	if err := river.MetadataSet(ctx, metadataKey, t); err != nil {
		return err
	}
	if v.line != nil && ctx.Err() == nil {
		v.line.poke(2 * brief)
	}
	return &putBackError{&rivertype.JobSnoozeError{Duration: time.Until(until)}}
}

// interrupted puts the job back as it was, or lets it be cancelled.
func (v *visit) interrupted(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), rivertype.ErrJobCancelledRemotely) {
		if v.valid { // else its tokens are those of an attempt before, and used
			// It has not started: River writes that along with the cancellation, and the watch finds it. To give the tokens
			// back from here would be to do so for a job that goes on, if this client died before River has written.
			v.ticket.Attempt = v.job.Attempt
			if err := river.MetadataSet(ctx, metadataKey, &v.ticket); err != nil {
				return err
			}
		}
		return &putBackError{ctx.Err()} // and River says that it was cancelled
	}
	if v.line != nil {
		v.line.rest()
	}
	if !v.valid {
		return &rivertype.JobSnoozeError{}
	}
	return v.putBack(ctx, &v.ticket, v.due())
}

// brief is more than River's client takes to write what becomes of its jobs: every 250 ms.
const brief = 300 * time.Millisecond

func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
