package scheduler

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/jobs/ticket"
	"github.com/weir-go/weir/ratelimit"
)

// ReserveTx is [Jobs.InsertTx] for the common case: each of the requests may be granted for later,
// as with [ratelimit.Request.OrReserve], or [ratelimit.Request.Within] where a request has that,
// and a denial is an error.
//
//	err := limiter.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
//		_, err := jobs.ReserveTx(ctx, tx, GenerateReply{ID: id}, nil, ChatTokens.For(org).Count(1200), ChatRequests.For(org))
//		return err
//	})
//
// A denial is a [*ratelimit.DeniedError]: more than a limit's MaxReserved would be owed. No job is
// inserted then, and Inserted has the Result. All other errors are those of InsertTx.
func (j *Jobs) ReserveTx(
	ctx context.Context, tx pgx.Tx, args river.JobArgs, opts *river.InsertOpts,
	requests ...ratelimit.Request,
) (*Inserted, error) {
	return orDenied(j.InsertTx(ctx, tx, args, opts, ticket.Reserving(requests)...))
}

// orDenied returns a denial as an error.
func orDenied(in *Inserted, err error) (*Inserted, error) {
	if err == nil {
		err = in.Err()
	}
	return in, err
}

// InsertManyParams is one job for [Jobs.InsertManyTx]: the arguments of [Jobs.InsertTx].
type InsertManyParams struct {
	// Args are the arguments of the job. It has no default.
	Args river.JobArgs

	// InsertOpts are passed on to River. Default: none.
	InsertOpts *river.InsertOpts

	// Requests are what the job takes. At least one is needed.
	Requests []ratelimit.Request
}

// InsertedMany is what [Jobs.InsertManyTx] returns.
type InsertedMany struct {
	// Result is the decision for all jobs together. Only read it: settle and give back by the
	// Results in Jobs.
	//
	// If it was granted ahead of time, RunAt is when the tokens of the last job exist. Outcomes has
	// one entry per request, job after job, and says how the limits stand after all of them. A
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

// many returns the River client, for so many jobs.
func (j *Jobs) many(n int) (manyInserter, error) {
	client, err := clientOf[manyInserter](j, "InsertManyTx")
	if err == nil && n == 0 {
		err = errors.New("scheduler: no jobs to insert: params is empty")
	}
	return client, err
}

// InsertManyTx inserts many jobs with their tokens in the caller's transaction: all of them, or
// none. It makes as many round trips for a thousand jobs as for one, whatever their keys, limits
// and kinds. Only a [ratelimit.Shadow] takes one for each of its keys.
//
// If all are granted, the jobs are inserted as if [Jobs.InsertTx] had been called for each in the
// order of params, with no other caller in between. The first jobs get the tokens that exist, and
// the others start when their own tokens exist. Each job has a reservation of its own. If one job
// cannot be granted, because it would go beyond MaxReserved for example, nothing is taken and no
// job is inserted. That is a denial, not an error: see [ratelimit.Result.Err].
//
// A job that InsertOpts make unique and that exists already takes nothing: its tokens are given
// back. If they were granted for later, the jobs after it in params keep the times that they were
// given behind it, and later callers get the tokens. If they were granted at once, the jobs behind
// it move up, as after a settlement. If two jobs of one call are duplicates of each other, River's
// insert fails, and the transaction with it.
//
// Requests of several jobs for the same limit and key must agree in Rule, OrReserve, Within,
// OnCredit and Leave, and the sum of their counts must be one that the limit can grant.
// InsertManyTx returns an error before it sends anything if they do not, if params is empty, or if
// a job has no arguments or no requests. A shadow limit takes the sum for all jobs, or nothing. If
// River refuses one job, the call fails. After an error nothing is kept, as with [Jobs.InsertTx].
func (j *Jobs) InsertManyTx(
	ctx context.Context, tx pgx.Tx, params []InsertManyParams,
) (*InsertedMany, error) {
	client, err := j.many(len(params))
	if err != nil {
		return nil, err
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
	jobs, err := j.scheduler.insert(ctx, j.scheduler.in(tx, client), params, each)
	if err != nil {
		return &InsertedMany{}, err
	}
	return &InsertedMany{Result: all, Jobs: jobs}, nil
}

// InsertMany calls [Jobs.InsertManyTx] in a transaction of its own, begun by
// [ratelimit.Limiter.InTx]. The transaction is SERIALIZABLE unless the limiter's Config says
// otherwise, and runs again after a conflict. When InsertMany returns, it is committed, or rolled
// back after a denial. The errors are those of both.
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
