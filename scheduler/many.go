package scheduler

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/ratelimit"
)

// InsertManyParams is one job for [Jobs.InsertManyTx]: the arguments of [Jobs.InsertTx].
type InsertManyParams struct {
	// Args are the arguments of the job. It has no default.
	Args river.JobArgs

	// InsertOpts are passed on to River. Default: none.
	InsertOpts *river.InsertOpts

	// Requests is what the job takes. At least one is needed.
	Requests []ratelimit.Request
}

// InsertedMany is what [Jobs.InsertManyTx] did.
type InsertedMany struct {
	// Result is the decision over all jobs. It is for reading: what to settle or to give back is in
	// Jobs.
	//
	// Granted ahead of time, its RunAt is when the tokens of the last job exist. Its Outcomes are
	// those of all requests, job after job, and tell how the limits stand after all of them. A
	// denial names the limit and key whose tokens come last.
	ratelimit.Result

	// Jobs has what [Jobs.InsertTx] returns for each job, in the order of the params. It is nil if
	// the Result is a denial.
	Jobs []*Inserted
}

// manyInserter is what InsertManyTx needs of a River client: *river.Client[pgx.Tx] has it.
type manyInserter interface {
	InsertManyTx(
		ctx context.Context, tx pgx.Tx, params []river.InsertManyParams,
	) ([]*rivertype.JobInsertResult, error)
}

// InsertManyTx inserts many jobs with their tokens, in the caller's transaction: all of them, or
// none. Over whatever keys, limits and kinds, it makes as many round trips for a thousand jobs as
// for one.
//
// If all are granted, each job is inserted as [Jobs.InsertTx] would have inserted it after those
// before it in params, with no other caller in between: the first with the tokens that are there,
// and the others for when their own tokens exist. Each has a reservation of its own. If they are
// not all granted, because one job would go beyond MaxReserved say, nothing is taken and no job is
// inserted. That is a denial and no error: see [ratelimit.Result.Err].
//
// A job that InsertOpts make unique and that exists already takes nothing: its tokens are given
// back. Jobs after it in params keep the times that they were given with it in front of them. What
// it leaves goes to callers that come later; only tokens that it had taken at once move up the jobs
// behind it, as a settlement does. Two jobs of one call that are duplicates of each other make
// River's insert fail, and with it the transaction.
//
// Requests of several jobs for the same limit and key must agree in Rule, OrReserve, Within,
// OnCredit and Leave, and what all jobs ask of it must be a count that it can grant. Otherwise, and
// if params is empty, a job has no requests or no arguments, the error comes before anything is
// sent. A limit in the shadow takes what all jobs ask of it, or nothing. One job that River refuses
// fails the call. After an error nothing is kept, as with [Jobs.InsertTx].
func (j *Jobs) InsertManyTx(
	ctx context.Context, tx pgx.Tx, params []InsertManyParams,
) (*InsertedMany, error) {
	if err := j.check(); err != nil {
		return nil, err
	}
	client, ok := j.client.(manyInserter)
	if !ok {
		return nil, errors.New("scheduler: the River client has no InsertManyTx")
	}
	if len(params) == 0 {
		return nil, errors.New("scheduler: no jobs to insert: params is empty")
	}
	calls := make([][]ratelimit.Request, len(params))
	for i, p := range params {
		if p.Args == nil {
			return nil, fmt.Errorf("scheduler: no job arguments in params[%d]", i)
		}
		calls[i] = p.Requests
	}
	all, each, err := j.scheduler.limiter.RateLimitMany(ctx, tx, calls)
	if err != nil || !all.OK {
		return &InsertedMany{Result: all}, err
	}

	to := transaction{j.scheduler.limiter, tx, client}
	jobs, err := j.scheduler.insert(ctx, to, params, each)
	if err != nil {
		return &InsertedMany{}, err
	}
	return &InsertedMany{Result: all, Jobs: jobs}, nil
}

// InsertMany is [Jobs.InsertManyTx] in a SERIALIZABLE transaction of its own, by
// [ratelimit.Limiter.InTx]: it runs again if it conflicts with others, and is committed when
// InsertMany returns. After a denial it is rolled back. The errors are those of both.
func (j *Jobs) InsertMany(
	ctx context.Context, db ratelimit.Beginner, params []InsertManyParams,
) (*InsertedMany, error) {
	if err := j.check(); err != nil {
		return nil, err
	}
	var in *InsertedMany
	err := j.scheduler.limiter.InTx(ctx, db, func(ctx context.Context, tx pgx.Tx) (err error) {
		if in, err = j.InsertManyTx(ctx, tx, params); err != nil {
			return err
		}
		return in.Err()
	})
	if errors.As(err, new(*ratelimit.DeniedError)) && in != nil && !in.OK {
		return in, nil
	}
	if err != nil {
		in = &InsertedMany{}
	}
	return in, err
}
