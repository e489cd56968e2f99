package scheduler

import (
	"context"
	"database/sql"
	"errors"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

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
// Clients that work the jobs should use the driver riverpgxv5. With riverdatabasesql a client
// cannot listen for notifications, so its jobs start up to a FetchPollInterval late. Its workers
// complete and settle jobs with [Scheduler.CompleteSQLTx].
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
	if args == nil {
		return nil, errors.New("scheduler: no job arguments")
	}
	res, err := j.scheduler.limiter.InSQL(tx).RateLimit(ctx, requests...)
	if err != nil || !res.OK {
		return &Inserted{Result: res}, err
	}
	params := []InsertManyParams{{Args: args, InsertOpts: opts}}
	to := sqlTransaction{j.scheduler.limiter.InSQL(tx), tx, j.client}
	jobs, err := j.scheduler.insert(ctx, to, params, []ratelimit.Result{res})
	if err != nil {
		return &Inserted{}, err
	}
	return jobs[0], nil
}

// ReserveTx is [Jobs.ReserveTx] in a transaction of database/sql: each of the requests may be granted
// for later, and a denial is an error.
func (j *SQLJobs) ReserveTx(
	ctx context.Context, tx *sql.Tx, args river.JobArgs, opts *river.InsertOpts,
	requests ...ratelimit.Request,
) (*Inserted, error) {
	return orDenied(j.InsertTx(ctx, tx, args, opts, reserving(requests)...))
}

// sqlTransaction is an inserter in a transaction of database/sql.
type sqlTransaction struct {
	verbs  ratelimit.Verbs
	tx     *sql.Tx
	client SQLClient
}

func (t sqlTransaction) insert(
	ctx context.Context, params []river.InsertManyParams,
) (jobs []*rivertype.JobInsertResult, err error) {
	for _, p := range params {
		job, err := t.client.InsertTx(ctx, t.tx, p.Args, p.InsertOpts)
		if err != nil {
			return nil, err
		}
		jobs = append(jobs, job)
	}
	return jobs, nil
}

func (t sqlTransaction) giveBack(ctx context.Context, results []ratelimit.Result) error {
	for _, res := range results {
		if err := t.verbs.GiveBack(ctx, res); err != nil {
			return err
		}
	}
	return nil
}
