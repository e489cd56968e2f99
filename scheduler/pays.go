package scheduler

import (
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/ratelimit"
)

// Pays says when a job that was inserted by [Jobs.InsertTx] takes its tokens again: see [JobArgsWithPays].
type Pays int

const (
	// PerAttempt takes again for each attempt after the first: when a job is tried again after an error, and when it is
	// rescued, as its client has died or hung. Who calls an API twice is counted twice. A snooze, or a [PauseError], costs
	// nothing: no call was answered. It is the default.
	PerAttempt Pays = iota

	// PerJob takes once, when the job is inserted: the one reservation is for all attempts together.
	PerJob

	// PerStart takes again whenever the worker is called again, after a snooze too.
	PerStart
)

// JobArgsWithPays is for job arguments whose kind is not to pay [PerAttempt]. An attempt that takes again does so ahead of
// all who wait, as its job has waited before, and is put back until the tokens exist; the client needs the configuration of
// [Scheduler.Configure] for that, and without it no attempt pays again.
type JobArgsWithPays interface{ Pays() Pays }

// ReservationOf returns what a job has taken: for the attempt that is being worked, where each pays. The worker settles it,
// in the transaction that completes the job:
//
//	if r, ok := scheduler.ReservationOf(job.JobRow); ok {
//		_, err = limiter.Settle(ctx, tx, r, ChatTokens.For(org).Count(used))
//	}
//
// It is false for a job that has taken nothing.
func ReservationOf(job *rivertype.JobRow) (ratelimit.Reservation, bool) {
	t, _, _ := ticketOf(job)
	if t.Reservation == nil {
		return ratelimit.Reservation{}, false
	}
	return *t.Reservation, true
}
