package scheduler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/ratelimit"
)

// PauseError is what a worker returns when the API that it has called says to come later, by a 429 or a 503 with a
// Retry-After, say. Its limits are paused, see [ratelimit.Limiter.Pause]; the job is put back until the pause is over,
// without using up an attempt, and does not pay again.
//
//	if resp.StatusCode == http.StatusTooManyRequests {
//		return &scheduler.PauseError{For: retryAfter(resp), Requests: []ratelimit.Request{ChatTokens.For(org)}}
//	}
//
// Jobs that were inserted by [Jobs.InsertTx], or that a worker made by [Limit] works, wait for the
// pauses of their limits, in their order.
type PauseError struct {
	For      time.Duration       // from now on
	Requests []ratelimit.Request // the limits and keys; their counts do not matter
	Err      error               // for the record, or nil
}

// Error tells how long, and why.
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
	p, on := v.plugin, make([]row, len(e.Requests))
	for i, r := range e.Requests {
		on[i] = row{r.Limit().Name(), r.Key()}
	}
	var now, until time.Time
	err := p.connected(ctx, func(q querier) error {
		if err := readCommitted(ctx, q, func(tx pgx.Tx) error { return p.scheduler.limiter.Pause(ctx, tx, e.For, e.Requests...) }); err != nil {
			return err
		}
		all, at, err := db{q, p.tables}.states(ctx, []*ticket{{more: more{On: on}}})
		now, until = at, at
		for _, s := range all {
			until = latest(until, s.PausedUntil)
		}
		return err
	})
	if err != nil {
		return errors.Join(e, err) // an attempt that has failed
	}
	v.clock = clock{now, time.Now()}
	t := &v.ticket // with what it has taken
	t.From, t.Jitter = 0, random(p.scheduler.jitter).Microseconds()
	t.Due, t.By, t.On, t.Paid = until.UnixMicro()+t.Jitter, len(t.takes()), on, v.paid
	p.along(v.job, t)
	return v.putOff(ctx, t.due())
}
