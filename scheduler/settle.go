package scheduler

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/jobs/fairline"
	"github.com/weir-go/weir/internal/jobs/riverjob"
	"github.com/weir-go/weir/internal/jobs/rounds"
	"github.com/weir-go/weir/internal/jobs/ticket"
	"github.com/weir-go/weir/ratelimit"
)

// Pays says when a job that was inserted by [Jobs.InsertTx] takes its tokens again: see
// [JobArgsWithPays].
type Pays int

const (
	// PerAttempt takes again for each attempt after the first: when a job is retried after an
	// error, or rescued because its client died or hung. So two calls of an API are counted as two.
	// A snooze, or a [PauseError], takes nothing again. It is the default.
	PerAttempt Pays = iota

	// PerJob takes once, when the job is inserted: the one reservation is for all attempts.
	PerJob

	// PerStart takes again whenever the worker is called again, after a snooze too.
	PerStart
)

// JobArgsWithPays is implemented by job arguments whose kind does not pay [PerAttempt]. An attempt
// that takes again goes ahead of all queued jobs, because its job has waited before. It is snoozed
// until the tokens exist. That needs a client with the configuration of [Scheduler.Configure]; on
// another client no attempt pays again.
type JobArgsWithPays interface{ Pays() Pays }

// ReservationOf returns what a job has taken, or what its current attempt has taken if each attempt
// pays. The worker settles it by [Jobs.SettleTx] or [ratelimit.Limiter.Settle], in the transaction
// that completes the job. It is false for a job that has taken nothing.
func ReservationOf(job *rivertype.JobRow) (ratelimit.Reservation, bool) {
	t, _ := ticket.Of(job)
	return t.Taken, len(t.Taken.Takes) > 0
}

// SettleTx replaces what a job has reserved by what it has used, as [ratelimit.Limiter.Settle]
// does. Call it in the transaction that completes the job; [Scheduler.CompleteTx] does both.
//
// If [Jobs.QueueTx] has queued the job, SettleTx also corrects what its tenant has been charged. If
// the job used less than estimated, the tenant's next jobs in line come earlier; if it used more,
// they come later. A tenant with no job in line gets no credit. If you settle such a job by the
// limiter instead, the tenant stays charged for the estimate.
//
// SettleTx reports whether this call settled. It is false if an earlier one did, or if the job has
// taken nothing. It locks the balances, but no row of the line.
func (j *Jobs) SettleTx(
	ctx context.Context, tx pgx.Tx, job *rivertype.JobRow, used ...ratelimit.Request,
) (bool, error) {
	if err := j.check(); err != nil {
		return false, err
	}
	return settle(ctx, j.store, j.scheduler.limiter.In(tx), tx.Exec, job, used)
}

// settle settles what a job has taken, and corrects what its tenant was charged. exec is the
// transaction's Exec, or its ExecContext if it is one of database/sql.
func settle[T any](
	ctx context.Context, s riverjob.Store, verbs ratelimit.Verbs,
	exec func(context.Context, string, ...any) (T, error),
	job *rivertype.JobRow, used []ratelimit.Request,
) (bool, error) {
	t, _ := ticket.Of(job)
	if len(t.Taken.Takes) == 0 {
		return false, nil
	}
	settled, err := verbs.Settle(ctx, t.Taken, used...)
	if err != nil || !settled || t.Seat == nil {
		return settled, err
	}
	beyond, named := -t.Seat.Cost, false
	for _, r := range used {
		if r.Limit().Name() == t.Seat.Limit && r.Key() == t.Seat.Key {
			beyond, named = beyond+r.N(), true
		}
	}
	if !named { // it was used as reserved
		return true, nil
	}
	return true, fairline.Correct(ctx, s, exec, job.ID, t.Seat, beyond)
}

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
// If two attempts of a job run at once, as when River has rescued a job that it thought stuck, the
// first that calls CompleteTx completes it, and for the other it returns an error. So what the
// attempts write in their transactions is committed once. What the other has taken, and waits for,
// is given back. Before River v0.48 there is an exception: River may rescue a job just while it is
// completed.
//
// ctx must be that of the worker, or made from it. The other errors are those of River and of
// [ratelimit.Limiter.Settle]; after any error, roll back.
func (s *Scheduler) CompleteTx(
	ctx context.Context, tx pgx.Tx, job *rivertype.JobRow, used ...ratelimit.Request,
) error {
	next, err := complete(ctx, s, tx, tx.QueryRow, job, "riverpgxv5", "CompleteSQLTx")
	if err != nil {
		return err
	}
	return settleAll(ctx, s.store(""), s.limiter.In(tx), tx.Exec, job, next, used)
}

// CompleteSQLTx is [Scheduler.CompleteTx] in a transaction of database/sql. The worker's River
// client must have the driver riverdatabasesql: see [Scheduler.SQLJobs].
func (s *Scheduler) CompleteSQLTx(
	ctx context.Context, tx *sql.Tx, job *rivertype.JobRow, used ...ratelimit.Request,
) error {
	next, err := complete(ctx, s, tx, tx.QueryRowContext, job, "riverdatabasesql", "CompleteTx")
	if err != nil {
		return err
	}
	return settleAll(ctx, s.store(""), s.limiter.InSQL(tx), tx.ExecContext, job, next, used)
}

// settleAll settles what a job has taken, and gives back what it took for its next attempt, if that
// waits.
func settleAll[T any](
	ctx context.Context, s riverjob.Store, verbs ratelimit.Verbs,
	exec func(context.Context, string, ...any) (T, error),
	job *rivertype.JobRow, next *ticket.Ticket, used []ratelimit.Request,
) error {
	if _, err := settle(ctx, s, verbs, exec, job, used); err != nil || next == nil {
		return err
	}
	own, _ := ticket.Of(job)
	for of := next; of != nil; of = of.First { // as River writes a put-off twice if it got no answer
		of.Used = of.Used || own.Holds(of.Taken)
	}
	_, err := rounds.Release(ctx, s, verbs, exec, job.ID, next)
	return err
}

// completingSQL locks a job, says what state it is in and how many attempts it has made, reads its
// ticket, and has it run if it waits.
//
// $1 id
const completingSQL = `WITH was AS (
	SELECT id, state, attempt, metadata FROM {river}river_job WHERE id = $1 FOR UPDATE
),
runs AS (
	UPDATE {river}river_job j SET state = 'running' FROM was
	WHERE j.id = was.id AND was.state::text IN ('available', 'retryable', 'scheduled')
)
SELECT state::text, attempt, metadata->'weir'::text FROM was`

// complete completes the job that is being worked, unless it has ended. JobCompleteTx does nothing,
// and returns no error, if the job does not run: River may have rescued it, and it waits for its
// next attempt, for a slot that this attempt holds, say. Then it runs no more, and complete returns
// the ticket of the next attempt, if there is one. The driver of the worker's client must be that of
// the transaction; the error says what to do instead. row is the transaction's QueryRow.
func complete[T any, R interface{ Scan(dest ...any) error }](
	ctx context.Context, s *Scheduler, tx T, row func(context.Context, string, ...any) R,
	job *rivertype.JobRow, driver, other string,
) (next *ticket.Ticket, err error) {
	if s.limiter == nil {
		return nil, errNotMade("Jobs")
	}
	client, err := river.ClientFromContextSafely[T](ctx)
	if err != nil { // JobCompleteTx panics
		return nil, fmt.Errorf("scheduler: a job can only be completed with the context of its worker, whose River client must have the driver of the transaction: use %s, or call Scheduler.%s: %w",
			driver, other, err)
	}
	var raw []byte
	now := rivertype.JobRow{State: rivertype.JobStateRunning} // if it is not there JobCompleteTx says so
	err = row(ctx, s.store(client.Schema()).SQL(completingSQL), job.ID).
		Scan(&now.State, &now.Attempt, &raw)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return nil, err
	}
	switch now.State {
	case rivertype.JobStateRunning:
	case rivertype.JobStateCompleted, rivertype.JobStateCancelled, rivertype.JobStateDiscarded:
		return nil, fmt.Errorf("scheduler: attempt %d of job %d came too late to complete it: the job is %s by now; roll back what this attempt has written",
			job.Attempt, job.ID, now.State)
	default:
		var t ticket.Ticket
		if json.Unmarshal(raw, &t) == nil && t.IsOf(job.ID) && t.IsFor(now.Attempt) {
			next = &t
		}
	}
	_, err = river.JobCompleteTx[riverdriver.Driver[T]](ctx, tx, &river.Job[anyArgs]{JobRow: job})
	return next, err
}

// anyArgs are arguments of any kind.
type anyArgs struct{ json.RawMessage }

func (anyArgs) Kind() string { return "any" }

type canceller interface {
	JobCancelTx(ctx context.Context, tx pgx.Tx, jobID int64) (*rivertype.JobRow, error)
}

// CancelTx cancels a job as River's JobCancelTx does. If the job has not started, it gives back
// what the job has taken, and the jobs that wait behind it start earlier: a client that
// [Scheduler.Configure] has configured moves each of them when its new time comes near. If the job
// has started, its worker settles what it took. A queued job that waits for its turn (see
// [Jobs.QueueTx]) leaves its line.
//
// CancelTx writes the job and the balances of its limits, however many jobs wait. Use READ
// COMMITTED: it reads and writes river_job, so at SERIALIZABLE it conflicts with River.
//
// A configured client also finds a job that River's own client or River UI has cancelled, within a
// few seconds; it looks back for a day. It finds a job that was deleted only if the job was among
// the next 1,000 to start and had waited for a second. Otherwise the job's tokens stay taken.
func (j *Jobs) CancelTx(ctx context.Context, tx pgx.Tx, id int64) (*rivertype.JobRow, error) {
	client, err := clientOf[canceller](j, "JobCancelTx")
	if err != nil {
		return nil, err
	}
	job, err := client.JobCancelTx(ctx, tx, id)
	if err != nil {
		return nil, err
	}
	t, _ := ticket.Of(job)
	if s := t.Seat; s != nil && s.Waits && job.FinalizedAt != nil {
		return job, fairline.Leave(ctx, j.store, tx, fairline.RowOf(s, job))
	}
	if job.State == rivertype.JobStateCancelled && t.IsFor(job.Attempt) {
		_, err = rounds.Free(ctx, j.store, tx, id, &t)
	}
	return job, err
}
