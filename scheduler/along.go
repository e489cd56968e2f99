package scheduler

import (
	"context"
	"slices"
	"time"

	"github.com/riverqueue/river/rivertype"
)

// When the first job of a key is put off, the key's other jobs that are due have to wait as well.
// Each of them would be fetched by a worker and put off in its turn, in front of the jobs of other
// keys. So they are moved along, a thousand in a statement.

// beside runs do in the background, unless it is under way for the same already: the next job that is
// put off asks again.
func (p *plugin) beside(what string, do func(ctx context.Context) error) {
	if _, going := p.going.LoadOrStore(what, true); going {
		return
	}
	go func() {
		defer p.going.Delete(what)
		ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
		defer cancel()
		p.warn(do(ctx), "jobs that have to wait could not be moved", "queue", what)
	}()
}

const mostDue = 20_000 // jobs that are read in one go

// dueSQL reads the jobs of a queue that are due, in River's order.
//
// $1 queue $2 most
const dueSQL = `SELECT id, attempt, state::text, scheduled_at, metadata->'weir' FROM {river}river_job
WHERE queue = $1::text AND state = 'available' AND priority IN (1, 2, 3, 4) AND scheduled_at <= now() AND metadata->'weir' IS NOT NULL
ORDER BY priority, scheduled_at, id LIMIT $2::integer`

// along moves the due jobs of a queue that wait for the same as one that is put off.
func (p *plugin) along(job *rivertype.JobRow, t *ticket) {
	rows := t.rows()
	if len(rows) == 0 {
		return
	}
	by := rows[min(t.By, len(rows)-1)]
	p.beside(job.Queue, func(ctx context.Context) error { return p.moveDue(ctx, job.Queue, by) })
}

func (p *plugin) moveDue(ctx context.Context, queue string, by row) error {
	d := p.db()
	due, err := d.waiters(ctx, dueSQL, queue, mostDue)
	if err != nil {
		return err
	}
	due = slices.DeleteFunc(due, func(w *waiter) bool { return !slices.Contains(w.ticket.rows(), by) })
	if len(due) == 0 {
		return nil
	}
	states, now, err := d.states(ctx, tickets(due))
	if err != nil {
		return err
	}
	due = slices.DeleteFunc(due, func(w *waiter) bool {
		w.changed = w.ticket.redefine(states, now)
		w.due, w.ticket.By = w.ticket.reckon(states, now, p.scheduler.bunch)
		return w.due.Sub(now) < time.Millisecond
	})
	for i, w := range due { // a pause that is extended does not meet all of them again; rounds move up those that it has not
		w.due = w.due.Add(time.Duration(i/mostMoved) * roundEvery)
	}
	return d.move(ctx, due, now)
}
