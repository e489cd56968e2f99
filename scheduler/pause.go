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

// pause pauses the limits and puts the job back until they open.
func (v *visit) pause(ctx context.Context, e *PauseError) error {
	var on []place
	var until time.Time
	err := v.plugin.connected(ctx, func(q querier) error {
		begin := func(fn func(tx pgx.Tx) error) error {
			return pgx.BeginTxFunc(ctx, q.(beginner), pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, fn) //nolint:forcetypeassert // a connection is
		}
		err := begin(func(tx pgx.Tx) error { return v.plugin.scheduler.limiter.Pause(ctx, tx, e.For, e.Requests...) })
		if err != nil {
			return err
		}
		return begin(func(tx pgx.Tx) (err error) {
			on, until, err = v.paused(ctx, tx, e.Requests)
			return err
		})
	})
	if err != nil {
		return errors.Join(e, err) // an attempt that has failed
	}
	t := &v.ticket // with what it has taken
	t.From, t.Jitter = until.UnixMicro(), random(v.plugin.scheduler.jitter).Microseconds()
	t.Due, t.By, t.On = t.From+t.Jitter, len(t.takes()), on
	t.Paid = v.paid
	v.plugin.along(v.job, t)
	return v.putOff(ctx, t.due())
}

// paused returns how paused limits stand, and when all of them are open again.
func (v *visit) paused(ctx context.Context, tx pgx.Tx, requests []ratelimit.Request) ([]place, time.Time, error) {
	limiter := v.plugin.scheduler.limiter
	look := make([]ratelimit.Request, len(requests))
	for i, r := range requests {
		look[i] = r.Count(0)
	}
	res, err := limiter.CheckRateLimit(ctx, tx, look...)
	if err != nil {
		return nil, time.Time{}, err
	}
	v.clock = clock{res.At, time.Now()}
	until := res.At
	on := make([]place, len(requests))
	for i, r := range requests {
		s, err := limiter.Value(ctx, tx, r)
		if err != nil {
			return nil, time.Time{}, err
		}
		on[i] = place{res.Outcomes[i].Limit, res.Outcomes[i].Key, s.Delay}
		until = latest(until, s.PausedUntil)
	}
	return on, until, nil
}
