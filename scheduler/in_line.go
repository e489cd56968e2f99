package scheduler

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/jobs/ticket"
)

// InLine lists the jobs that wait in a fair [Line], in the order in which they will have their
// turns if nobody else comes, and there are tokens and workers for all of them. Jobs are left out
// before their ScheduledAt, and while they run or wait for a retry. It takes the limit's name and
// the key, which is "" for [ratelimit.Limit.Global].
//
// It lists at most n jobs, and at most 500. However many wait, it reads a few hundred, and at least
// four of each tenant. If more is true, others wait: behind the last that is listed, or behind the
// last of a tenant that has many. [Waiting.Charged], the priority of the job and
// [Waiting.PassedOver] say why a job goes before or after others.
//
// It takes nothing, writes nothing, and may be called in a read-only transaction. The role needs
// SELECT on weir_balance, weir_line, weir_line_tenant, weir_turn and river_job. A Scheduler that
// does not have the Line in its Config assumes a Patience of an hour, and no OverAll. PassedOver is
// only known of limits that this process has defined.
func (j *Jobs) InLine(
	ctx context.Context, tx pgx.Tx, limit, key string, n int,
) (next []Waiting, more bool, err error) {
	if err := j.check(); err != nil {
		return nil, false, err
	}
	found, more, err := j.scheduler.lines.List(ctx, j.store, tx, ticket.Row{limit, key}, n)
	if err != nil {
		return nil, false, err
	}
	for _, w := range found {
		next = append(next, Waiting{Job: &rivertype.JobRow{ID: w.ID}, Limit: w.For[0],
			Key: w.For[1], Tenant: w.Tenant, Place: w.Place, Charged: w.Charged,
			PassedOver: w.PassedOver})
	}
	next, err = j.withJobs(ctx, tx, next)
	return next, more, err
}
