package rounds

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
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
	var now time.Time // before the balances are locked: later takes are not behind the gap
	if err := s.Query(ctx, tx, `SELECT clock_timestamp()`, nil, func() {}, &now); err != nil {
		return false, err
	}
	some, err := Release(ctx, s, s.Limiter.In(tx), tx.Exec, id, t)
	if err != nil || !some {
		return false, err
	}
	for of := t; of != nil; of = of.First {
		if of.Attempt == ticket.GivenBack {
			of.Gone = now.UnixMicro()
		}
	}
	b, err := t.MarshalJSON()
	if err != nil {
		return false, err
	}
	return true, s.Query(ctx, tx, freedSQL, []any{id, string(b)}, nil)
}

// Release gives back what a job's next attempt would have used, has the ticket be for none, and
// reports whether it has. What was settled stays as it is. exec is the transaction's Exec, or its
// ExecContext if it is one of database/sql.
func Release[T any](
	ctx context.Context, s riverjob.Store, verbs ratelimit.Verbs,
	exec func(context.Context, string, ...any) (T, error), id int64, t *ticket.Ticket,
) (some bool, err error) {
	for of := t; of != nil; of = of.First {
		if of.Used || len(of.Taken.Takes) == 0 {
			continue
		}
		released, err := verbs.Release(ctx, of.Taken)
		if err == nil && released {
			some, of.Attempt = true, ticket.GivenBack
			err = fairline.Correct(ctx, s, exec, id, of.Seat, -of.Seat.Charged())
		}
		if err != nil {
			return false, err
		}
	}
	return some, nil
}

// watch is what is remembered of the jobs that have gone.
type watch struct {
	last  time.Time           // when it was looked for them, by this process' clock
	rest  bool                // and if it has left some for the next round
	from  time.Time           // jobs that were cancelled before are known,
	id    int64               // and at that time those up to this one,
	known map[int64]time.Time // and these, by when they were cancelled
	seen  []*riverjob.Waiter  // that waited when it was last looked
	gaps  ticket.Gaps         // in the order in which they were left
}

const (
	watchEvery = 2 * time.Second
	overlap    = 10 * time.Minute // a transaction that cancels may take that long
	lookBack   = 24 * time.Hour   // at first,
	lookAgain  = time.Hour        // and once all that there were are known
	mostFound  = 1000             // by one look: see cancelledSQL
	mostGone   = 10_000
	freeIn     = 500 * time.Millisecond // a held balance keeps the round waiting,
	freeNext   = 20 * time.Millisecond  // and others after two of them
	freeFor    = 500 * time.Millisecond // then the jobs that wait are looked after again
)

// cancelledSQL finds jobs with tickets that were cancelled, in this order. In place of their state
// it reads how often they were fetched.
//
// $1 after this time $2 and id, except $3
const cancelledSQL = `SELECT id, attempt, coalesce(pg_catalog.cardinality(attempted_by), 0)::text, finalized_at, metadata->'weir'::text
FROM {river}river_job WHERE state OPERATOR(pg_catalog.=) 'cancelled' AND (finalized_at, id) > ($1::timestamptz, $2::bigint) AND metadata->'weir'::text IS NOT NULL
	AND id <> ALL ($3::bigint[])
ORDER BY finalized_at, id LIMIT 1000`

// wasPutOff reports whether a job was cancelled as it was put off. Then it does not get its attempt
// back, but has not used it: a later one would have fetched the job again. River counts up to 100.
func wasPutOff(w *riverjob.Waiter) bool {
	t := &w.Ticket
	return t.IsFor(w.Attempt-1) && w.State == strconv.Itoa(t.Fetched) && t.Fetched > 0 && t.Fetched < 100
}

// isDue reports whether it is time to look for jobs that were cancelled.
func (w *watch) isDue(now time.Time) bool { return w.rest || now.Sub(w.last) >= watchEvery }

// isOld reports whether it is too long ago that they were looked for: it was another client's turn.
func (w *watch) isOld(now time.Time) bool { return now.Sub(w.last) > time.Minute }

// args are those of cancelledSQL.
func (w *watch) args() []any {
	// an array, if an empty one
	return []any{w.from, w.id, slices.AppendSeq([]int64{}, maps.Keys(w.known))}
}

// update has what is remembered of the jobs that wait say when they are due by now. One that has
// been moved up may start, and be deleted, before the next look.
func (w *watch) update(next []*riverjob.Waiter) {
	now := make(map[int64]*riverjob.Waiter, len(next))
	for _, n := range next {
		now[n.ID] = n
	}
	for i, s := range w.seen {
		w.seen[i] = cmp.Or(now[s.ID], s)
	}
}

// findGone gives back what jobs had taken that were cancelled or deleted by others before they
// started, and remembers the gaps that cancelled jobs have left. next are the next jobs that wait,
// found are those that were cancelled. What it has no time for is found again in the next round.
func (r *Rounds) findGone(
	ctx context.Context, next, found []*riverjob.Waiter, c riverjob.Clock,
) error {
	w := &r.watch
	if !w.isDue(c.Answered) {
		w.update(next)
		return nil
	}
	if w.last = c.Answered; w.known == nil || len(w.known) > mostGone && !w.rest {
		for id, at := range w.known { // or those behind would not be found for as long as overlap
			if d := at.Compare(w.from); d > 0 || d == 0 && id > w.id {
				w.from, w.id = at, id
			}
		}
		w.known, w.gaps = map[int64]time.Time{}, ticket.Gaps{} // then those behind the gaps stay
	}
	held := map[string]error{} // by what the jobs have taken from
	var failed []error
	var took time.Duration // without that for what is held: those behind it have their time, too
	free := func(f *riverjob.Waiter) error {
		began := time.Now()
		err := r.freed(ctx, f, held)
		if !riverjob.IsBlocked(err) {
			took += time.Since(began)
		}
		return err
	}
	givenBack := func(f *riverjob.Waiter) bool {
		return f.Ticket.Known() && f.Ticket.Attempt == ticket.GivenBack
	}
	for _, f := range found { // first: these take no time, and those behind their gaps move up
		if givenBack(f) {
			w.gaps.Left(&f.Ticket)
			w.known[f.ID] = f.At
		}
	}
	w.rest = false
	for _, f := range found {
		if !givenBack(f) {
			if w.rest = took > freeFor; w.rest {
				break
			}
			if err := free(f); riverjob.IsBlocked(err) {
				continue // it is found again
			} else if err != nil {
				failed = append(failed, err)
				continue
			}
			w.known[f.ID] = f.At
		}
		if len(held)+len(failed) == 0 && f.At.Before(c.At.Add(-overlap)) {
			w.from, w.id = f.At, f.ID
		}
	}
	// Or each look would pass over all jobs without tickets that were cancelled in the last day.
	from := c.At.Add(-lookAgain)
	if len(found) < mostFound && len(held)+len(failed) == 0 && !w.rest && w.from.Before(from) {
		w.from, w.id = from, 0
	}
	w.forget(c.At)

	missing := map[int64]*riverjob.Waiter{}
	for _, s := range w.seen {
		missing[s.ID] = s
	}
	for _, n := range next {
		delete(missing, n.ID)
	}
	if w.seen = slices.Clip(next); len(missing) == 0 {
		return errors.Join(failed...)
	}
	const sql = `SELECT id FROM {river}river_job WHERE id = ANY ($1::bigint[])`
	there, err := r.Which(ctx, r.Pool, sql, slices.Collect(maps.Keys(missing)))
	if err != nil {
		w.seen = slices.AppendSeq(w.seen, maps.Values(missing)) // they are missing again
		return errors.Join(append(failed, err)...)
	}
	for id, m := range missing {
		if there[id] || c.Until(m.Due) <= 0 { // it may have started
			continue
		}
		if w.rest = w.rest || took > freeFor; w.rest {
			w.seen = append(w.seen, m)
			continue
		}
		if err := free(m); err != nil {
			if w.seen = append(w.seen, m); !riverjob.IsBlocked(err) {
				failed = append(failed, err)
			}
		}
	}
	return errors.Join(failed...)
}

// forget drops cancelled jobs that the search no longer finds, and old gaps: the jobs behind them
// have moved up by now. It also bounds the gaps that deleted jobs leave.
func (w *watch) forget(now time.Time) {
	maps.DeleteFunc(w.known, func(_ int64, at time.Time) bool { return at.Before(w.from) })
	w.gaps.Forget(now.Add(-lookBack).UnixMicro(), mostGone)
}

// goneSQL locks jobs, and finds those of them that are cancelled or deleted.
//
// $1 ids
const goneSQL = `WITH job AS (
	SELECT id, state FROM {river}river_job WHERE id = ANY ($1::bigint[]) FOR UPDATE
)
SELECT g.id FROM pg_catalog.unnest($1::bigint[]) AS g (id) LEFT JOIN job j ON j.id = g.id
WHERE j.id IS NULL OR j.state OPERATOR(pg_catalog.=) 'cancelled'`

// freed frees a job that has gone, in a transaction of its own. If it has waited in vain for what
// somebody held, or a worker of Citus is down, it notes that in held, and other jobs of the same
// balances do not try.
func (r *Rounds) freed(
	ctx context.Context, w *riverjob.Waiter, held map[string]error,
) error {
	if !w.Valid && !wasPutOff(w) {
		return nil
	}
	t, released := &w.Ticket, false
	of := fmt.Sprintf("%q", t.Rows())
	if err := held[of]; err != nil {
		return err
	}
	in := freeIn
	if len(held) > 1 {
		in = freeNext
	}
	err := r.InTx(ctx, func(tx pgx.Tx) error {
		if err := r.Briefly(ctx, tx, in); err != nil {
			return err
		}
		// before the balances, as a cancellation locks it; it may have been retried by hand
		gone, err := r.Which(ctx, tx, goneSQL, []int64{w.ID})
		if err == nil && gone[w.ID] {
			released, err = Free(ctx, r.Store, tx, w.ID, t)
		}
		return err
	})
	if riverjob.IsBlocked(err) {
		held[of] = err
	}
	if released && err == nil {
		r.watch.gaps.Left(t)
	}
	if errors.Is(err, ratelimit.ErrInvalid) { // metadata is anybody's
		return nil
	}
	return err
}
