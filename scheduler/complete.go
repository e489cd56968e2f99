package scheduler

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/ratelimit"
)

// CompleteTx completes the job that is being worked and settles what it has taken, as
// river.JobCompleteTx and [Jobs.SettleTx] do: used says how much of its limits and keys that was.
// If the transaction rolls back, neither has happened, and River completes or retries the job
// according to what the worker returns.
//
//	return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
//		if err := w.save(ctx, tx, answer); err != nil {
//			return err
//		}
//		return w.sched.CompleteTx(ctx, tx, job.JobRow, ChatTokens.For(org).CountInt(usage.TotalTokens))
//	})
//
// Call it last in the transaction. It first completes the job and then settles, because a
// settlement locks the balances, and other callers wait for them until the transaction ends. Limits
// that used does not name keep what was reserved. A job that has taken nothing, or was settled
// before, is only completed.
//
// ctx must be that of the worker, or made from it. The errors are those of River and of
// [ratelimit.Limiter.Settle]; after one, roll back.
func (s *Scheduler) CompleteTx(
	ctx context.Context, tx pgx.Tx, job *rivertype.JobRow, used ...ratelimit.Request,
) error {
	client, err := river.ClientFromContextSafely[pgx.Tx](ctx)
	if err != nil { // JobCompleteTx panics
		return fmt.Errorf("scheduler: CompleteTx outside of a worker: %w", err)
	}
	jobs := s.Jobs(client)
	if err := jobs.check(); err != nil {
		return err
	}
	worked := &river.Job[anyArgs]{JobRow: job}
	if _, err := river.JobCompleteTx[riverdriver.Driver[pgx.Tx]](ctx, tx, worked); err != nil {
		return err
	}
	_, err = jobs.SettleTx(ctx, tx, job, used...)
	return err
}

// anyArgs are arguments of any kind.
type anyArgs struct{ json.RawMessage }

func (anyArgs) Kind() string { return "any" }
