package scheduler

import (
	"context"
	"errors"
	"fmt"
	"time"

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

// pause pauses the limits and puts the job back until they open.
func (v *visit) pause(ctx context.Context, e *PauseError) error {
	autocommit := v.plugin.scheduler.limiter.Autocommit(v.plugin.pool)
	look := make([]ratelimit.Request, len(e.Requests))
	for i, r := range e.Requests {
		look[i] = r.Count(0)
	}
	err := autocommit.Pause(ctx, e.For, e.Requests...)
	var res ratelimit.Result
	if err == nil {
		res, err = autocommit.CheckRateLimit(ctx, look...)
	}
	until := res.At
	on := make([]place, len(e.Requests))
	for i, r := range e.Requests {
		var s ratelimit.State
		if err == nil {
			s, err = autocommit.Value(ctx, r)
		}
		if err == nil {
			on[i] = place{res.Outcomes[i].Limit, res.Outcomes[i].Key, s.Delay}
			until = latest(until, s.PausedUntil)
		}
	}
	if err != nil {
		return errors.Join(e, err) // an attempt that has failed
	}
	t := &v.ticket // with what it has taken
	t.From, t.Jitter = until.UnixMicro(), random(v.plugin.scheduler.jitter).Microseconds()
	t.Due, t.By, t.On = t.From+t.Jitter, len(t.takes()), on
	t.Paid, v.clock = v.paid, clock{res.At, time.Now()}
	v.plugin.along(v.job, t)
	return v.putOff(ctx, t.due())
}
