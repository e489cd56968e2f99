package scheduler

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/jobs/fairline"
	"github.com/weir-go/weir/internal/jobs/riverjob"
	"github.com/weir-go/weir/internal/jobs/ticket"
	"github.com/weir-go/weir/ratelimit"
)

// SettleTx replaces what a job has reserved by what it has used, as [ratelimit.Limiter.Settle]
// does. Call it in the transaction that completes the job; [Scheduler.CompleteTx] does both.
//
// If [Jobs.QueueTx] has queued the job, SettleTx also corrects what its tenant has been charged. If
// the job used less than estimated, the tenant's next jobs in line come earlier; if it used more,
// they come later. A tenant with no job in line gets no credit. If you settle such a job by the
// limiter instead, the tenant stays charged for the estimate.
//
// SettleTx reports whether this call settled. It is false if an earlier one did, or if the job has
// taken nothing. It locks the balances, but no row of the line.
func (j *Jobs) SettleTx(
	ctx context.Context, tx pgx.Tx, job *rivertype.JobRow, used ...ratelimit.Request,
) (bool, error) {
	if err := j.check(); err != nil {
		return false, err
	}
	return settle(ctx, j.store, j.scheduler.limiter.In(tx), tx.Exec, job, used)
}

// settle settles what a job has taken, and corrects what its tenant was charged. exec is the
// transaction's Exec, or its ExecContext if it is one of database/sql.
func settle[T any](
	ctx context.Context, s riverjob.Store, verbs ratelimit.Verbs,
	exec func(context.Context, string, ...any) (T, error),
	job *rivertype.JobRow, used []ratelimit.Request,
) (bool, error) {
	t, _ := ticket.Of(job)
	if len(t.Taken.Takes) == 0 {
		return false, nil
	}
	settled, err := verbs.Settle(ctx, t.Taken, used...)
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
	return true, fairline.Correct(ctx, s, exec, job.ID, t.Seat, beyond)
}
