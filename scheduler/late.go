package scheduler

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/ratelimit"
)

// Late. The tokens of a job that does not start when it is due flow into the bucket, and on to
// the next caller. After an outage the jobs that are late would all start at once, and those
// reserved after them on time besides. So a job that is too late pays anew, once: ahead of all who
// wait, in its own order. A further attempt pays in the same way.

// tooLate is when a job pays anew: more than a client without notifications is late, and less than
// makes a burst.
const tooLate = 3 * time.Second

// overdueSQL locks the jobs of a queue that are too late, the first in River's order.
//
// $1 queue $2 too late $3 most
const overdueSQL = `SELECT id, attempt, state::text, scheduled_at, metadata->'weir' FROM {river}river_job
WHERE queue = $1::text AND state IN ('available', 'scheduled') AND priority IN (1, 2, 3, 4)
	AND scheduled_at < now() - $2::interval AND metadata->'weir' IS NOT NULL
ORDER BY priority, scheduled_at, id LIMIT $3::integer FOR UPDATE SKIP LOCKED`

// renewal is a job at this client that pays anew.
type renewal struct {
	job   *rivertype.JobRow
	t     ticket
	again bool // for another attempt, and not because it is late

	clock
	err error
}

// anew has the job pay anew, and returns nil if it may start now, or the error that puts it off.
func (v *visit) anew(ctx context.Context, again bool) error {
	r := renewal{job: v.job, t: v.ticket, again: again}
	for deadline := time.Now().Add(patience); ; {
		if v.plugin.renewals.ask(&r); r.err == nil {
			break
		}
		if time.Now().After(deadline) || !sleep(ctx, 100*time.Millisecond) {
			return &putOffError{&rivertype.JobSnoozeError{Duration: time.Second}}
		}
	}
	v.ticket, v.clock, v.used = r.t, r.clock, false
	if due := v.ticket.due(); v.ticket.Due != 0 && v.clock.until(due) > 0 {
		return v.putOff(ctx, due)
	}
	return nil
}

// renew has jobs pay anew, in the order in which they were due: those at this client, and those
// that wait in their queues and are as late, a thousand at a time. Should the answer to a COMMIT
// be lost, the jobs at this client pay once more.
func (p *plugin) renew(items []*renewal) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	all := make([]*waiter, len(items))
	for i, r := range items {
		all[i] = &waiter{id: r.job.ID, ticket: r.t.clone(), again: r.again}
	}
	var at clock
	err := p.connected(ctx, func(q querier) error {
		return readCommitted(ctx, q, func(tx pgx.Tx) error {
			d := db{tx, p.tables}
			overdue, err := p.overdue(ctx, d, items)
			if err == nil {
				at, err = p.pay(ctx, d, tx, slices.Concat(all, overdue))
			}
			if err == nil {
				err = d.move(ctx, overdue, at.at)
			}
			return err
		})
	})
	for i, r := range items {
		if r.err = err; err == nil {
			r.t, r.clock = all[i].ticket, at
		}
	}
	p.warn(err, "jobs start late: they could not pay anew", "jobs", len(items))
}

// overdue are the jobs in the queues of late ones that are late as well, and have not paid anew.
func (p *plugin) overdue(ctx context.Context, d db, items []*renewal) ([]*waiter, error) {
	var all, late []*waiter
	var queues []string
	for _, r := range items {
		if r.again || slices.Contains(queues, r.job.Queue) {
			continue
		}
		queues = append(queues, r.job.Queue)
		found, err := d.waiters(ctx, overdueSQL, r.job.Queue, tooLate, mostMoved)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	if len(all) == 0 {
		return nil, nil
	}
	states, now, err := d.states(ctx, tickets(all))
	if err != nil {
		return nil, err
	}
	for _, w := range all {
		if t := &w.ticket; t.Due != 0 && !t.Late {
			if due, _ := t.reckon(states, now, p.scheduler.bunch); now.Sub(latest(due, w.at)) > tooLate {
				late = append(late, w)
			}
		}
	}
	return late, nil
}

// pay charges jobs for new times, and writes these into their tickets.
func (p *plugin) pay(ctx context.Context, d db, tx pgx.Tx, all []*waiter) (clock, error) {
	inOrder := slices.Clone(all)
	slices.SortStableFunc(inOrder, func(a, b *waiter) int {
		return cmp.Or(cmp.Compare(a.ticket.Due, b.ticket.Due), cmp.Compare(a.id, b.id))
	})
	var charged []*ratelimit.Reservation
	parts := map[*waiter]*ratelimit.Reservation{}
	for _, w := range inOrder {
		switch r := w.ticket.Reservation; {
		case r == nil:
		case w.again:
			charged = append(charged, r)
		default:
			if part := flownBy(r); len(part.Takes) > 0 {
				charged, parts[w] = append(charged, part), part
			}
		}
	}
	if len(charged) > 0 {
		if err := p.scheduler.limiter.Renew(ctx, tx, charged...); err != nil {
			return clock{}, err
		}
	}
	for w, part := range parts {
		rejoin(w.ticket.Reservation, part)
	}
	states, now, err := d.states(ctx, tickets(all))
	if err != nil {
		return clock{}, err
	}
	for _, w := range all {
		t := &w.ticket
		t.Jitter, t.From, t.On, t.Late, t.At = 0, 0, nil, !w.again, now.UnixMicro() // it comes in its order
		due, by := t.reckon(states, now, p.scheduler.bunch)
		w.due, w.changed = w.at, true // where it need not wait, it keeps its place before those that are less late
		if due.After(now) {
			w.due = due
		}
		t.Due, t.By = latest(due, now).UnixMicro(), by
	}
	return clock{now, time.Now()}, nil
}

// flownBy is the part of a reservation whose tokens came for its job, at their time: those that
// were there at once, perhaps of a limit into which little or nothing flows, were taken for good.
func flownBy(r *ratelimit.Reservation) *ratelimit.Reservation {
	part := &ratelimit.Reservation{ID: r.ID}
	for _, k := range r.Takes {
		if k.Ahead() {
			part.Takes = append(part.Takes, k)
		}
	}
	return part
}

// rejoin puts such a part back into its whole.
func rejoin(r, part *ratelimit.Reservation) {
	for _, k := range part.Takes {
		for i := range r.Takes {
			if k.Limit == r.Takes[i].Limit && k.Key == r.Takes[i].Key {
				r.Takes[i] = k
			}
		}
	}
}
