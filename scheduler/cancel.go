package scheduler

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/ratelimit"
)

type canceller interface {
	JobCancelTx(ctx context.Context, tx pgx.Tx, jobID int64) (*rivertype.JobRow, error)
}

// CancelTx cancels a job, as River's JobCancelTx does, and gives back what it had taken if it has not started: at once, or,
// if a client holds it already as it is about to start, as if others had cancelled it. The jobs that wait behind it come
// earlier by that. What a job that has started took is its worker's to settle.
//
// A job that is cancelled behind the scheduler's back, by River's own client or its user interface, is found by the clients
// whose configuration comes from [Scheduler.Configure], after two seconds while few jobs wait and at a fiftieth of their time
// if there are many; they look back for a day. So is one that was deleted, if it had waited until then: the next to start,
// 10,000 of a queue, are watched. A job that is deleted within the first seconds keeps what it took.
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
		if err := j.scheduler.free(ctx, tx, db{tx, j.tables}, id, &t); err != nil {
			return nil, err
		}
	}
	return job, nil
}

// unstarted returns the ticket of a job that was cancelled before the attempt that it has paid for.
func unstarted(job *rivertype.JobRow) (ticket, bool) {
	t, _, _ := ticketOf(job)
	return t, job.State == rivertype.JobStateCancelled && t.unused() && t.Attempt == job.Attempt
}

// givenBack is the Attempt of a ticket that is for none: what the job took is given back. Whoever retries it by hand has it
// pay again.
const givenBack = -1

// freedSQL writes such a ticket.
//
// $1 id $2 ticket
const freedSQL = `UPDATE {river}river_job SET metadata = jsonb_set(metadata, '{weir}', $2::text::jsonb)
WHERE id = $1::bigint AND state = 'cancelled'`

// free gives back what a job took that will not be worked, and moves up those behind it.
func (s *Scheduler) free(ctx context.Context, tx pgx.Tx, d db, id int64, t *ticket) error {
	released, err := s.limiter.Release(ctx, tx, *t.Reservation)
	if err != nil || !released {
		return err
	}
	none := *t
	none.Attempt = givenBack
	b, err := none.MarshalJSON()
	if err != nil {
		return err
	}
	if err := d.query(ctx, freedSQL, nil, nil, id, string(b)); err != nil {
		return err
	}
	behind, err := d.behind(ctx, t.rows())
	if err != nil || len(behind) == 0 {
		return err
	}
	states, _, err := d.states(ctx, append(tickets(behind), t))
	if err != nil {
		return err
	}
	for _, k := range t.Takes {
		if !k.Ahead() {
			continue // it stood before all who wait: the line has moved
		}
		state := states[row{k.Limit, k.Key}]
		mine, _ := k.RunAt(state)
		for _, w := range behind {
			for i, other := range w.ticket.takes() {
				if other.Limit != k.Limit || other.Key != k.Key {
					continue
				}
				if run, _ := other.RunAt(state); run.After(mine) {
					w.ticket.Takes[i] = other.MoveUp(k.Count)
					w.changed = true
				}
			}
		}
	}
	_, err = d.forward(ctx, behind, s.bunch, always)
	if err == nil {
		s.expectAll()
	}
	return err
}

func (p *plugin) freeAll(ctx context.Context, all map[int64]*ticket) error {
	for id, t := range all {
		err := pgx.BeginTxFunc(ctx, p.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			return p.scheduler.free(ctx, tx, db{tx, p.tables}, id, t)
		})
		if err != nil && !errors.Is(err, ratelimit.ErrInvalid) { // metadata is anybody's
			return err
		}
	}
	return nil
}

// cancelledSQL finds jobs that were cancelled before they started.
//
// $1 queue $2 how long ago at the most $3 those that are known $4 queue beside
const cancelledSQL = `SELECT id, metadata->'weir' FROM {river}river_job
WHERE state = 'cancelled' AND finalized_at > now() - $2::interval AND queue IN ($1::text, $4::text)
	AND metadata->'weir'->'more' IS NOT NULL AND coalesce(metadata->'weir'->>'attempt', '0') = attempt::text AND id <> ALL ($3::bigint[])
LIMIT 1000`

// waitingSQL lists the jobs of a queue that will start next.
//
// $1 queue $2 how far ahead at the least $3 most
const waitingSQL = `SELECT id, metadata->'weir' FROM {river}river_job
WHERE queue = $1::text AND state IN ('available', 'scheduled') AND priority IN (1, 2, 3, 4)
	AND scheduled_at > now() + $2::interval AND {ticket}
ORDER BY scheduled_at LIMIT $3::integer`

// watch finds the jobs that have gone.
func (l *line) watch(ctx context.Context) error {
	p, t, d := l.plugin, &l.tended, l.plugin.db()
	if t.freed == nil {
		t.freed, t.since = map[int64]time.Time{}, cancelled
	}
	known := make([]int64, 0, len(t.freed))
	for id, at := range t.freed {
		if known = append(known, id); time.Since(at) > 2*t.since {
			delete(t.freed, id)
		}
	}
	found, err := d.waiters(ctx, cancelledSQL, l.queue, t.since, known, l.beside)
	if err != nil {
		return err
	}
	gone := map[int64]*ticket{}
	for _, w := range found {
		if w.ticket.unused() {
			gone[w.id] = &w.ticket
		}
	}
	if err := p.freeAll(ctx, gone); err != nil {
		return err
	}
	for _, w := range found {
		t.freed[w.id] = time.Now()
	}
	if len(found) == 0 {
		t.since = max(10*time.Minute, 4*t.cost)
	}

	// What waited when it was last looked, cannot have started since, and is not there any more.
	waiting, err := d.waiters(ctx, waitingSQL, l.queue, lead, mostSeen)
	if err != nil {
		return err
	}
	missing := t.seen
	t.seen = make(map[int64]*ticket, len(waiting))
	for _, w := range waiting {
		delete(missing, w.id)
		if w.ticket.unused() {
			t.seen[w.id] = &w.ticket
		}
	}
	if len(missing) == 0 {
		return nil
	}
	var id int64
	var now time.Time
	ids := make([]int64, 0, len(missing))
	for id := range missing {
		ids = append(ids, id)
	}
	err = d.query(ctx, `SELECT id, clock_timestamp() FROM {river}river_job WHERE id = ANY ($1::bigint[]) UNION ALL SELECT 0, clock_timestamp()`,
		[]any{&id, &now}, func() { delete(missing, id) }, ids)
	if err != nil {
		return err
	}
	maps.DeleteFunc(missing, func(_ int64, t *ticket) bool { return !t.due().After(now) })
	return p.freeAll(ctx, missing)
}
