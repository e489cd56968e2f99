package scheduler

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/ratelimit"
)

// SettleTx settles what a job has taken, as [ratelimit.Limiter.Settle] does: used says how much of
// its limits and keys that was. For a job that was queued by [Jobs.QueueTx] its tenant is charged
// for that, too, in place of the estimate: what it did not use makes its next jobs in line cheaper,
// and what it used beyond makes the tenant wait for longer. A tenant with no job in line gets
// nothing for what it did not use. Settling such a job by the limiter leaves the tenant charged for
// the estimate.
//
// It reports whether it was this call that settled; false, too, for a job that has taken nothing.
// Call it in the transaction that completes the job, or call [Scheduler.CompleteTx]: it locks the balances, and nothing of the line.
func (j *Jobs) SettleTx(
	ctx context.Context, tx pgx.Tx, job *rivertype.JobRow, used ...ratelimit.Request,
) (bool, error) {
	if err := j.check(); err != nil {
		return false, err
	}
	t, _, _ := ticketOf(job)
	if len(t.Taken.Takes) == 0 {
		return false, nil
	}
	settled, err := j.scheduler.limiter.Settle(ctx, tx, t.Taken, used...)
	if err != nil || !settled || t.Seat == nil {
		return settled, err
	}
	beyond, named := -t.Seat.Cost, false
	for _, r := range used {
		if r.Limit().Name() == t.Seat.Limit && r.Key() == t.Seat.Key {
			beyond, named = beyond+r.N(), true
		}
	}
	if !named { // it was used as reserved
		return true, nil
	}
	return true, j.correct(ctx, tx, job.ID, t.Seat, beyond)
}
