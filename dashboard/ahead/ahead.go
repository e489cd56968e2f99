// Package ahead shows the jobs that package scheduler has reserved on the dashboard's time line,
// and the tenants that wait in a fair line. It is a separate package so that a dashboard alone does
// not link River.
//
//	page, err := dashboard.New(pool, dashboard.Config{
//		Ahead: ahead.Of(pool, jobs), InLine: ahead.InLine(pool, jobs)})
package ahead

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/dashboard"
	"github.com/weir-go/weir/inspect"
	"github.com/weir-go/weir/scheduler"
)

// Of reads the jobs that wait with [scheduler.Jobs.WaitingFor], in a read-only transaction of its
// own. The River client of jobs need not work any. The role needs SELECT on weir_balance and on
// river_job.
func Of(
	db inspect.DB, jobs *scheduler.Jobs,
) func(ctx context.Context, limit, key string, n int) ([]dashboard.Job, error) {
	return func(ctx context.Context, limit, key string, n int) (list []dashboard.Job, err error) {
		err = pgx.BeginTxFunc(ctx, db, reading, func(tx pgx.Tx) error {
			waiting, err := jobs.WaitingFor(ctx, tx, limit, key, n)
			for _, w := range waiting {
				list = append(list,
					dashboard.Job{ID: w.Job.ID, Kind: w.Job.Kind, Until: w.Until, Paused: w.Paused})
			}
			return err
		})
		return list, err
	}
}

var reading = pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadOnly}

// InLine reads the tenants that wait in a fair line with [scheduler.Jobs.InLine], in a read-only
// transaction of its own. The River client of jobs need not work any, but their Scheduler should
// have the line in its Config. The role needs SELECT on weir_balance, weir_line, weir_line_tenant,
// weir_turn and river_job.
func InLine(
	db inspect.DB, jobs *scheduler.Jobs,
) func(ctx context.Context, limit, key string) ([]dashboard.Tenant, bool, error) {
	return func(ctx context.Context, limit, key string) (tenants []dashboard.Tenant, more bool,
		err error) {
		err = pgx.BeginTxFunc(ctx, db, reading, func(tx pgx.Tx) error {
			next, others, err := jobs.InLine(ctx, tx, limit, key, most)
			tenants, more = byTenant(next), others
			return err
		})
		return tenants, more, err
	}
}

const most = 500 // jobs that are read: as many as are listed

// byTenant are the tenants of jobs, in the order of the first job of each.
func byTenant(jobs []scheduler.Waiting) (tenants []dashboard.Tenant) {
	at := map[string]int{}
	for _, w := range jobs {
		i, known := at[w.Tenant]
		if !known {
			i = len(tenants)
			at[w.Tenant] = i
			t := dashboard.Tenant{Key: w.Tenant, Next: dashboard.Job{ID: w.Job.ID,
				Kind: w.Job.Kind}, Turn: w.Place, Charged: w.Charged}
			if w.PassedOver {
				t.PassedOver = w.Limit
			}
			tenants = append(tenants, t)
		}
		tenants[i].Jobs++
	}
	return tenants
}
