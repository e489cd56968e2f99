package weirtest

import (
	"context"

	"github.com/weir-go/weir/internal/worknow"
)

// WorkNow returns a context in which package scheduler lets a River job start at once. It is for
// tests that work a job themselves, with River's package rivertest:
//
//	result, err := rivertest.NewWorker(t, driver, sched.Configure(pool, &river.Config{}), worker).
//		WorkJob(weirtest.WorkNow(ctx), t, tx, inserted.Job.Job)
//
// Without it, the client of such a test looks at the job's limits first, as it does in production,
// and snoozes a job that is not due or whose limits are paused. With it, the client does not look
// at limits. It calls the worker, and [scheduler.ReservationOf] returns what the job took when it
// was inserted, for the worker to settle. A further attempt does not pay again.
//
// A worker made by [scheduler.Limit] takes nothing, so its job has no reservation of its own. Such
// a worker may also be called directly, without River. One made by
// [scheduler.AtOnce] takes no slot.
//
// The worker's own effects are real: a [scheduler.PauseError] pauses its limits, on the pool that
// Configure was given and not in the transaction of the test.
//
// [scheduler.AtOnce]: https://pkg.go.dev/github.com/weir-go/weir/scheduler#AtOnce
// [scheduler.Limit]: https://pkg.go.dev/github.com/weir-go/weir/scheduler#Limit
// [scheduler.PauseError]: https://pkg.go.dev/github.com/weir-go/weir/scheduler#PauseError
// [scheduler.ReservationOf]: https://pkg.go.dev/github.com/weir-go/weir/scheduler#ReservationOf
func WorkNow(ctx context.Context) context.Context { return worknow.With(ctx) }
