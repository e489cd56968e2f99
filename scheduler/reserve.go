package scheduler

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

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
	if err != nil {
		return in, err
	}
	return in, in.Err()
}
