package scheduler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/jobs/riverjob"
	"github.com/weir-go/weir/internal/jobs/ticket"
	"github.com/weir-go/weir/ratelimit"
)

// PauseError is what a worker returns when an API has told it to come back later, for example by a
// 429 or a 503 with a Retry-After. Its limits are paused, as [ratelimit.Limiter.Pause] does. The
// job is snoozed until the pause is over, which uses up no attempt, and does not pay again. All
// jobs that [Jobs.InsertTx] has inserted, or that a worker made by [Limit] works, wait for the
// pauses of their limits and then start in their order.
type PauseError struct {
	For      time.Duration       // from now on
	Requests []ratelimit.Request // the limits and keys; their counts do not matter
	Err      error               // for the record, or nil
}

// Error says how long the pause is, and why.
func (e *PauseError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("paused for %v", e.For)
	}
	return fmt.Sprintf("paused for %v: %v", e.For, e.Err)
}

// Unwrap returns Err.
func (e *PauseError) Unwrap() error { return e.Err }

// pause pauses the limits and puts the job off until they open.
func (v *visit) pause(ctx context.Context, e *PauseError) error {
	p, t := v.plugin, &v.Ticket // with what it has taken
	t.From, t.On, t.Paid = 0, ticket.RowsOf(e.Requests), v.paid
	t.Jitter = ticket.Random(p.Pacing.Jitter).Microseconds()
	met := &riverjob.Waiter{Ticket: ticket.Ticket{On: t.On, Jitter: t.Jitter}}
	err := p.ConnectedInTx(ctx, func(tx pgx.Tx) error {
		return p.Limiter.Pause(ctx, tx, e.For, e.Requests...)
	})
	if err == nil {
		v.clock, err = p.reckon(ctx, []*riverjob.Waiter{met})
	}
	if err != nil {
		return errors.Join(e, err) // an attempt that has failed
	}
	t.Due, t.By = ticket.Latest(met.Due, v.clock.At).UnixMicro(), len(t.Taken.Takes)+met.Ticket.By
	p.along(v.job, t.WaitsFor())
	return v.putOff(ctx, t.DueAt())
}
