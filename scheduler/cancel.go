package scheduler

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/jobs/fairline"
	"github.com/weir-go/weir/internal/jobs/riverjob"
	"github.com/weir-go/weir/internal/jobs/ticket"
	"github.com/weir-go/weir/ratelimit"
)

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
		if _, err := free(ctx, j.store, tx, id, &t); err != nil {
			return nil, err
		}
	}
	return job, nil
}

// freedSQL writes a ticket that is for no attempt: see ticket.GivenBack.
//
// $1 id $2 ticket
const freedSQL = `UPDATE {river}river_job SET metadata = jsonb_set(metadata, '{weir}'::text[], $2::text::jsonb)
WHERE id = $1::bigint AND state OPERATOR(pg_catalog.=) 'cancelled'`

// free gives back what a job took that will not be worked, and reports whether it did.
func free(
	ctx context.Context, s riverjob.Store, tx pgx.Tx, id int64, t *ticket.Ticket,
) (bool, error) {
	if len(t.Taken.Takes) == 0 {
		return false, nil
	}
	var now time.Time // before the balances are locked: who takes after that stands behind no gap
	if err := s.Query(ctx, tx, `SELECT clock_timestamp()`, nil, func() {}, &now); err != nil {
		return false, err
	}
	released, err := s.Limiter.Release(ctx, tx, t.Taken)
	if err != nil || !released {
		return false, err
	}
	if err := fairline.Correct(ctx, s, tx.Exec, id, t.Seat, -t.Seat.Charged()); err != nil {
		return false, err
	}
	t.Attempt, t.Gone = ticket.GivenBack, now.UnixMicro()
	b, err := t.MarshalJSON()
	if err != nil {
		return false, err
	}
	return true, s.Query(ctx, tx, freedSQL, []any{id, string(b)}, nil)
}

// watch is what is remembered of the jobs that have gone.
type watch struct {
	last  time.Time
	from  time.Time          // jobs that were cancelled before are known,
	known map[int64]bool     // and these
	seen  []*riverjob.Waiter // that waited when it was last looked
	gaps  ticket.Gaps        // in the order in which they were left
}

const (
	watchEvery = 2 * time.Second
	overlap    = 10 * time.Minute // a transaction that cancels may take that long
	lookBack   = 24 * time.Hour
	mostGone   = 10_000
)

// cancelledSQL finds jobs with tickets that were cancelled from $1 on, except $2.
const cancelledSQL = `SELECT id, attempt, 'cancelled', finalized_at, metadata->'weir'::text
FROM {river}river_job WHERE state OPERATOR(pg_catalog.=) 'cancelled' AND finalized_at > $1::timestamptz AND metadata->'weir'::text IS NOT NULL
	AND id <> ALL ($2::bigint[])
ORDER BY finalized_at LIMIT 1000`

// findGone gives back what jobs had taken that were cancelled or deleted by others before they
// started, and remembers the gaps that cancelled jobs have left. next are the next jobs that wait.
func (p *plugin) findGone(ctx context.Context, next []*riverjob.Waiter, c riverjob.Clock) error {
	w, now := &p.round.watch, c.At
	if now.Sub(w.last) < watchEvery {
		return nil
	}
	if now.Sub(w.last) > time.Minute { // it was another client's turn
		*w = watch{from: now.Add(-lookBack)}
	}
	if w.last = now; w.known == nil || len(w.known) > mostGone { // then those behind stay
		w.known, w.gaps = map[int64]bool{}, ticket.Gaps{}
	}
	known := slices.AppendSeq([]int64{}, maps.Keys(w.known)) // an array, if an empty one
	found, err := p.Waiters(ctx, p.Pool, cancelledSQL, w.from, known)
	if err != nil {
		return err
	}
	for _, f := range found {
		if t := &f.Ticket; t.Known() && t.Attempt == ticket.GivenBack {
			w.gaps.Left(t)
		} else if err := p.freed(ctx, f); err != nil {
			return err
		}
		if w.known[f.ID] = true; f.At.Before(now.Add(-overlap)) {
			w.from = f.At
		}
	}

	missing := map[int64]*riverjob.Waiter{}
	for _, s := range w.seen {
		missing[s.ID] = s
	}
	for _, n := range next {
		delete(missing, n.ID)
	}
	if w.seen = next; len(missing) == 0 {
		return nil
	}
	const sql = `SELECT id FROM {river}river_job WHERE id = ANY ($1::bigint[])`
	there, err := p.Which(ctx, p.Pool, sql, slices.Collect(maps.Keys(missing)))
	for id, m := range missing {
		if err == nil && !there[id] && c.Until(m.Due) > 0 { // it cannot have started
			err = p.freed(ctx, m)
		}
	}
	return err
}

// freed frees a job that has gone, in a transaction of its own.
func (p *plugin) freed(ctx context.Context, w *riverjob.Waiter) error {
	if !w.Valid {
		return nil
	}
	t, released := &w.Ticket, false
	err := p.InTx(ctx, func(tx pgx.Tx) (err error) {
		released, err = free(ctx, p.Store, tx, w.ID, t)
		return err
	})
	if released && err == nil {
		p.round.watch.gaps.Left(t)
	}
	if errors.Is(err, ratelimit.ErrInvalid) { // metadata is anybody's
		return nil
	}
	return err
}
