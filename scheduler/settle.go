package scheduler

import (
	"context"
	"database/sql"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river/rivertype"

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
	return j.settle(ctx, tx, job, used)
}

func (s store) settle(
	ctx context.Context, tx pgx.Tx, job *rivertype.JobRow, used []ratelimit.Request,
) (bool, error) {
	settled, seat, beyond, err := settle(ctx, s.scheduler.limiter.In(tx), job, used)
	if err != nil || !settled {
		return settled, err
	}
	return true, s.correct(ctx, tx, job.ID, seat, beyond)
}

func (s store) settleInSQL(
	ctx context.Context, tx *sql.Tx, job *rivertype.JobRow, used []ratelimit.Request,
) (bool, error) {
	settled, seat, beyond, err := settle(ctx, s.scheduler.limiter.InSQL(tx), job, used)
	if err != nil || !settled {
		return settled, err
	}
	return true, s.correctInSQL(ctx, tx, job.ID, seat, beyond)
}

// settle settles what a job has taken. It returns the seat of a job that was queued, and what the
// job has used beyond what its tenant was charged.
func settle(
	ctx context.Context, verbs ratelimit.Verbs, job *rivertype.JobRow, used []ratelimit.Request,
) (settled bool, _ *seat, beyond float64, err error) {
	t, _, _ := ticketOf(job)
	if len(t.Taken.Takes) == 0 {
		return false, nil, 0, nil
	}
	settled, err = verbs.Settle(ctx, t.Taken, used...)
	if err != nil || !settled || t.Seat == nil {
		return settled, nil, 0, err
	}
	beyond, named := -t.Seat.Cost, false
	for _, r := range used {
		if r.Limit().Name() == t.Seat.Limit && r.Key() == t.Seat.Key {
			beyond, named = beyond+r.N(), true
		}
	}
	if !named { // it was used as reserved
		return true, nil, 0, nil
	}
	return true, t.Seat, beyond, nil
}
