package rounds

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/jobs/fairline"
	"github.com/weir-go/weir/internal/jobs/riverjob"
	"github.com/weir-go/weir/internal/jobs/ticket"
	"github.com/weir-go/weir/ratelimit"
)

// freedSQL writes a ticket that is for no attempt: see ticket.GivenBack.
//
// $1 id $2 ticket
const freedSQL = `UPDATE {river}river_job SET metadata = jsonb_set(metadata, '{weir}'::text[], $2::text::jsonb)
WHERE id = $1::bigint AND state OPERATOR(pg_catalog.=) 'cancelled'`

// Free gives back what a job took that will not be worked, and reports whether it did.
func Free(
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
func (r *Rounds) findGone(ctx context.Context, next []*riverjob.Waiter, c riverjob.Clock) error {
	w, now := &r.watch, c.At
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
	found, err := r.Waiters(ctx, r.Pool, cancelledSQL, w.from, known)
	if err != nil {
		return err
	}
	for _, f := range found {
		if t := &f.Ticket; t.Known() && t.Attempt == ticket.GivenBack {
			w.gaps.Left(t)
		} else if err := r.freed(ctx, f); err != nil {
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
	there, err := r.Which(ctx, r.Pool, sql, slices.Collect(maps.Keys(missing)))
	for id, m := range missing {
		if err == nil && !there[id] && c.Until(m.Due) > 0 { // it cannot have started
			err = r.freed(ctx, m)
		}
	}
	return err
}

// freed frees a job that has gone, in a transaction of its own.
func (r *Rounds) freed(ctx context.Context, w *riverjob.Waiter) error {
	if !w.Valid {
		return nil
	}
	t, released := &w.Ticket, false
	err := r.InTx(ctx, func(tx pgx.Tx) (err error) {
		released, err = Free(ctx, r.Store, tx, w.ID, t)
		return err
	})
	if released && err == nil {
		r.watch.gaps.Left(t)
	}
	if errors.Is(err, ratelimit.ErrInvalid) { // metadata is anybody's
		return nil
	}
	return err
}
