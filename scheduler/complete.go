package scheduler

import (
	"context"
	"database/sql"
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
	if err := complete(ctx, s, tx, job, "riverpgxv5, or call Scheduler.CompleteSQLTx"); err != nil {
		return err
	}
	_, err := settle(ctx, s.store(""), s.limiter.In(tx), tx.Exec, job, used)
	return err
}

// CompleteSQLTx is [Scheduler.CompleteTx] in a transaction of database/sql. The worker's River
// client must have the driver riverdatabasesql: see [Scheduler.SQLJobs].
func (s *Scheduler) CompleteSQLTx(
	ctx context.Context, tx *sql.Tx, job *rivertype.JobRow, used ...ratelimit.Request,
) error {
	if err := complete(ctx, s, tx, job,
		"riverdatabasesql, or call Scheduler.CompleteTx"); err != nil {
		return err
	}
	_, err := settle(ctx, s.store(""), s.limiter.InSQL(tx), tx.ExecContext, job, used)
	return err
}

// complete completes the job that is being worked. The driver of the worker's client must be that
// of the transaction; the error says what to do instead.
func complete[TTx any](
	ctx context.Context, s *Scheduler, tx TTx, job *rivertype.JobRow, use string,
) error {
	if s.limiter == nil {
		return errNotMade("Jobs")
	}
	if _, err := river.ClientFromContextSafely[TTx](ctx); err != nil { // JobCompleteTx panics
		return fmt.Errorf("scheduler: a job can only be completed with the context of its worker, "+
			"whose River client must have the driver of the transaction: use %s: %w", use, err)
	}
	worked := &river.Job[anyArgs]{JobRow: job}
	_, err := river.JobCompleteTx[riverdriver.Driver[TTx]](ctx, tx, worked)
	return err
}

// anyArgs are arguments of any kind.
type anyArgs struct{ json.RawMessage }

func (anyArgs) Kind() string { return "any" }
