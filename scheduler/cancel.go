package scheduler

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/ratelimit"
)

type canceller interface {
	JobCancelTx(ctx context.Context, tx pgx.Tx, jobID int64) (*rivertype.JobRow, error)
}

// CancelTx cancels a job, as River's JobCancelTx does, and gives back what it had taken if it has
// not started. It writes the job and the balances of its limits, however many wait. The jobs that
// wait behind it come earlier by that: they are moved when their new time comes near, by a client
// whose configuration comes from [Scheduler.Configure]. What a job that has started took is its
// worker's to settle.
//
// Such a client finds a job that was cancelled by River's own client or its user interface, too,
// within some seconds of when it was; it looks back for a day. A job that was deleted is found if it
// was among the next 1,000 to start, and had waited for a second; else it keeps what it took.
//
// It reads and writes river_job: at SERIALIZABLE it will conflict with River, so use READ COMMITTED.
func (j *Jobs) CancelTx(ctx context.Context, tx pgx.Tx, id int64) (*rivertype.JobRow, error) {
	client, ok := j.client.(canceller)
	if !ok {
		return nil, errors.New("scheduler: the River client has no JobCancelTx")
	}
	job, err := client.JobCancelTx(ctx, tx, id)
	if err != nil {
		return nil, err
	}
	if t, ok := unstarted(job); ok {
		if _, err := j.scheduler.free(ctx, tx, db{tx, j.tables}, id, &t); err != nil {
			return nil, err
		}
	}
	return job, nil
}

// unstarted returns the ticket of a job that was cancelled before the attempt that it has paid for.
func unstarted(job *rivertype.JobRow) (ticket, bool) {
	t, _, _ := ticketOf(job)
	return t, job.State == rivertype.JobStateCancelled && t.known() && t.unused() && t.Attempt == job.Attempt
}

// givenBack is the Attempt of a ticket that is for none: what the job took is given back. If it is
// retried by hand, it pays again.
const givenBack = -1

// freedSQL writes such a ticket.
//
// $1 id $2 ticket
const freedSQL = `UPDATE {river}river_job SET metadata = jsonb_set(metadata, '{weir}', $2::text::jsonb)
WHERE id = $1::bigint AND state = 'cancelled'`

// free gives back what a job took that will not be worked, and reports whether it did.
func (s *Scheduler) free(ctx context.Context, tx pgx.Tx, d db, id int64, t *ticket) (bool, error) {
	var now time.Time // before the balances are locked: who takes after that stands behind no gap
	if err := d.query(ctx, `SELECT clock_timestamp()`, []any{&now}, nil); err != nil {
		return false, err
	}
	released, err := s.limiter.Release(ctx, tx, *t.Reservation)
	if err != nil || !released {
		return false, err
	}
	t.Attempt, t.Gone = givenBack, now.UnixMicro()
	b, err := t.MarshalJSON()
	if err != nil {
		return false, err
	}
	return true, d.query(ctx, freedSQL, nil, nil, id, string(b))
}

// watch is what is remembered of the jobs that have gone.
type watch struct {
	last  time.Time
	from  time.Time // jobs that were cancelled before are known
	known map[int64]bool
	seen  map[int64]*waiter // that waited when it was last looked
	gaps  map[row][]gap
	kept  int // gaps
}

// gap is the place that a job has left in the line of its limit: those behind it move up.
type gap struct {
	id   uuid.UUID // of the reservation
	at   int64     // when it left, in microseconds
	take ratelimit.Take
}

const (
	watchEvery = 2 * time.Second
	overlap    = 10 * time.Minute // a transaction that cancels may take that long
	lookBack   = 24 * time.Hour
	mostGaps   = 10_000
)

// cancelledSQL finds jobs with tickets that were cancelled from $1 on.
const cancelledSQL = `SELECT id, attempt, finalized_at, metadata->'weir', now() FROM {river}river_job
WHERE state = 'cancelled' AND finalized_at > $1::timestamptz AND metadata->'weir' IS NOT NULL AND id <> ALL ($2::bigint[])
ORDER BY finalized_at LIMIT 1000`

// findGone gives back what jobs had taken that were cancelled or deleted by others before they
// started, and remembers the gaps that they have left. next are the next jobs that wait.
func (p *plugin) findGone(ctx context.Context, next []*waiter) error {
	w := &p.round.watch
	if time.Since(w.last) < watchEvery {
		return nil
	}
	if time.Since(w.last) > time.Minute { // it was another client's turn
		*w = watch{known: map[int64]bool{}, gaps: map[row][]gap{}}
	}
	w.last = time.Now()
	if err := p.findCancelled(ctx, w); err != nil {
		return err
	}
	return p.findDeleted(ctx, w, next)
}

func (p *plugin) findCancelled(ctx context.Context, w *watch) error {
	from := w.from
	if from.IsZero() {
		from = time.Now().Add(-lookBack)
	}
	type cancelled struct {
		id      int64
		attempt int
		at      time.Time
		t       ticket
	}
	var found []cancelled
	var c cancelled
	var raw []byte
	var now time.Time
	err := p.db().query(ctx, cancelledSQL, []any{&c.id, &c.attempt, &c.at, &raw, &now}, func() {
		c.t, _ = parse(raw)
		found = append(found, c)
	}, from, slices.AppendSeq([]int64{}, maps.Keys(w.known))) // an array, if an empty one
	if err != nil {
		return err
	}
	for _, c := range found {
		switch {
		case !c.t.known():
		case c.t.Attempt == givenBack:
			w.left(&c.t)
		case c.t.unused() && c.t.Attempt == c.attempt:
			if err := p.freed(ctx, c.id, &c.t); err != nil {
				return err
			}
		}
		if w.known[c.id] = true; c.at.Before(now.Add(-overlap)) {
			w.from = c.at
		}
	}
	if len(w.known) > mostGaps {
		clear(w.known)
	}
	return nil
}

// freed frees in a transaction of its own.
func (p *plugin) freed(ctx context.Context, id int64, t *ticket) error {
	released := false
	err := readCommitted(ctx, p.pool, func(tx pgx.Tx) (err error) {
		released, err = p.scheduler.free(ctx, tx, db{tx, p.tables}, id, t)
		return err
	})
	if released && err == nil {
		p.round.watch.left(t)
	}
	if errors.Is(err, ratelimit.ErrInvalid) { // metadata is anybody's
		return nil
	}
	return err
}

// findDeleted frees what waited when it was last looked, cannot have started since, and is not
// there any more.
func (p *plugin) findDeleted(ctx context.Context, w *watch, next []*waiter) error {
	missing := w.seen
	w.seen = make(map[int64]*waiter, len(next))
	for _, n := range next {
		delete(missing, n.id)
		if n.ticket.unused() {
			w.seen[n.id] = n
		}
	}
	if len(missing) == 0 {
		return nil
	}
	var id int64
	var now time.Time
	ids := slices.Collect(maps.Keys(missing))
	err := p.db().query(ctx, `SELECT id, clock_timestamp() FROM {river}river_job WHERE id = ANY ($1::bigint[]) UNION ALL SELECT 0, clock_timestamp()`,
		[]any{&id, &now}, func() { delete(missing, id) }, ids)
	if err != nil {
		return err
	}
	for id, n := range missing {
		if n.due.After(now) {
			if err := p.freed(ctx, id, &n.ticket); err != nil {
				return err
			}
		}
	}
	return nil
}

// left remembers the gaps of a job that has been freed.
func (w *watch) left(t *ticket) {
	for _, k := range t.takes() {
		of := row{k.Limit, k.Key}
		all := w.gaps[of]
		if !k.Ahead() || slices.ContainsFunc(all, func(g gap) bool { return g.id == t.ID }) {
			continue // of tokens that were there at once the line has moved for all
		}
		g := gap{t.ID, t.Gone, k}
		i, _ := slices.BinarySearchFunc(all, g, func(a, b gap) int { return cmp.Compare(a.at, b.at) })
		for _, before := range all[:i] {
			if t.At < before.at && g.take.Behind(before.take) {
				g.take = g.take.MoveUp(before.take.Count)
			}
		}
		w.gaps[of] = slices.Insert(all, i, g)
		w.kept++
	}
	if w.kept > mostGaps { // those behind keep their times
		clear(w.gaps)
		w.kept = 0
	}
}

// closeUp moves a ticket up by the gaps before it that it does not know of yet, and reports whether
// there were any.
func (w *watch) closeUp(t *ticket, now time.Time) bool {
	moved := false
	for i, k := range t.takes() {
		for _, g := range w.gaps[row{k.Limit, k.Key}] {
			if t.At < g.at && t.Takes[i].Behind(g.take) {
				t.Takes[i], moved = t.Takes[i].MoveUp(g.take.Count), true
			}
		}
	}
	if moved {
		t.At = now.UnixMicro()
	}
	return moved
}
