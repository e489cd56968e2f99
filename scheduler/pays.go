package scheduler

import (
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/jobs/ticket"
	"github.com/weir-go/weir/ratelimit"
)

// Pays says when a job that was inserted by [Jobs.InsertTx] takes its tokens again: see
// [JobArgsWithPays].
type Pays int

const (
	// PerAttempt takes again for each attempt after the first: when a job is retried after an
	// error, or rescued because its client died or hung. So two calls of an API are counted as two.
	// A snooze, or a [PauseError], takes nothing again. It is the default.
	PerAttempt Pays = iota

	// PerJob takes once, when the job is inserted: the one reservation is for all attempts.
	PerJob

	// PerStart takes again whenever the worker is called again, after a snooze too.
	PerStart
)

// JobArgsWithPays is implemented by job arguments whose kind does not pay [PerAttempt]. An attempt
// that takes again goes ahead of all queued jobs, because its job has waited before. It is snoozed
// until the tokens exist. That needs a client with the configuration of [Scheduler.Configure]; on
// another client no attempt pays again.
type JobArgsWithPays interface{ Pays() Pays }

// ReservationOf returns what a job has taken, or what its current attempt has taken if each attempt
// pays. The worker settles it by [Jobs.SettleTx] or [ratelimit.Limiter.Settle], in the transaction
// that completes the job. It is false for a job that has taken nothing.
func ReservationOf(job *rivertype.JobRow) (ratelimit.Reservation, bool) {
	t, _ := ticket.Of(job)
	return t.Taken, len(t.Taken.Takes) > 0
}
