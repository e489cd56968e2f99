package scheduler

import (
	"context"
	"database/sql"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/jobs/riverjob"
	"github.com/weir-go/weir/internal/jobs/ticket"
	"github.com/weir-go/weir/ratelimit"
)

// SQLClient is the part of a River client over database/sql that [SQLJobs] needs.
// *river.Client[*sql.Tx] implements it.
type SQLClient interface {
	InsertTx(
		ctx context.Context, tx *sql.Tx, args river.JobArgs, opts *river.InsertOpts,
	) (*rivertype.JobInsertResult, error)
}

// SQLJobs inserts jobs in transactions of database/sql. It is safe for concurrent use.
type SQLJobs struct {
	scheduler *Scheduler
	client    SQLClient
}

// SQLJobs returns an SQLJobs that inserts through a River client over database/sql: one with the
// driver riverdatabasesql, on a *sql.DB over pgx's stdlib driver.
//
//	client, err := river.NewClient(riverdatabasesql.New(db), sched.Configure(pool, &river.Config{}))
//	jobs := sched.SQLJobs(client)
//
// Configure needs a pgx pool as well. stdlib.OpenDBFromPool makes a *sql.DB from that pool.
//
// Clients that work the jobs should use the driver riverpgxv5. With riverdatabasesql before v0.46 a
// client cannot listen, and its jobs start up to a FetchPollInterval late. Its workers complete and
// settle jobs with [Scheduler.CompleteSQLTx].
func (s *Scheduler) SQLJobs(client SQLClient) *SQLJobs { return &SQLJobs{s, client} }

// InsertTx is [Jobs.InsertTx] in a transaction of database/sql, such as that of
// [ratelimit.Limiter.InSQLTx].
func (j *SQLJobs) InsertTx(
	ctx context.Context, tx *sql.Tx, args river.JobArgs, opts *river.InsertOpts,
	requests ...ratelimit.Request,
) (*Inserted, error) {
	if j.scheduler.limiter == nil || j.client == nil {
		return nil, errNotMade("SQLJobs")
	}
	return j.scheduler.insertOne(ctx, j.in(tx), args, opts, requests)
}

// in is a target for one job.
func (j *SQLJobs) in(tx *sql.Tx) target {
	verbs := j.scheduler.limiter.InSQL(tx)
	return target{verbs,
		func(ctx context.Context, ps []river.InsertManyParams) ([]*rivertype.JobInsertResult, error) {
			job, err := j.client.InsertTx(ctx, tx, ps[0].Args, ps[0].InsertOpts)
			return []*rivertype.JobInsertResult{job}, err
		},
		func(ctx context.Context, results []ratelimit.Result) error {
			return verbs.GiveBack(ctx, results[0])
		},
		func(ctx context.Context) { _, _ = tx.ExecContext(ctx, riverjob.FailSQL) }}
}

// ReserveTx is [Jobs.ReserveTx] in a transaction of database/sql: each of the requests may be
// granted for later, and a denial is an error.
func (j *SQLJobs) ReserveTx(
	ctx context.Context, tx *sql.Tx, args river.JobArgs, opts *river.InsertOpts,
	requests ...ratelimit.Request,
) (*Inserted, error) {
	return orDenied(j.InsertTx(ctx, tx, args, opts, ticket.Reserving(requests)...))
}
