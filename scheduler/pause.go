package scheduler

import (
	"errors"
	"fmt"
	"time"

	"github.com/weir-go/weir/internal/jobs/attempt"
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

// pauseOf is what an attempt has returned, if that is a pause.
func pauseOf(err error) *attempt.Pause {
	var e *PauseError
	if !errors.As(err, &e) {
		return nil
	}
	return &attempt.Pause{For: e.For, Requests: e.Requests, Err: e}
}
