// Package ahead shows the jobs that package scheduler has reserved on the dashboard's time line. It
// is a separate package so that a dashboard alone does not link River.
//
//	page, err := dashboard.New(pool, dashboard.Config{Ahead: ahead.Of(pool, jobs)})
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
func Of(db inspect.DB, jobs *scheduler.Jobs) func(ctx context.Context, limit, key string, n int) ([]dashboard.Job, error) {
	return func(ctx context.Context, limit, key string, n int) (list []dashboard.Job, err error) {
		err = pgx.BeginTxFunc(ctx, db, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
			waiting, err := jobs.WaitingFor(ctx, tx, limit, key, n)
			for _, w := range waiting {
				list = append(list, dashboard.Job{ID: w.Job.ID, Kind: w.Job.Kind, Until: w.Until, Paused: w.Paused})
			}
			return err
		})
		return list, err
	}
}
