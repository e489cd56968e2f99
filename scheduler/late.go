package scheduler

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/jobs/ticket"
	"github.com/weir-go/weir/ratelimit"
)

// Late. The tokens of a job that does not start when it is due flow into the bucket, and on to the
// next caller. After an outage the jobs that are late would all start at once, and those reserved
// after them on time besides. So a job that is too late pays anew, once: ahead of all who wait, in
// its own order. A further attempt pays in the same way.

// tooLate is when a job pays anew: more than a client without notifications is late, and less than
// makes a burst.
const tooLate = 3 * time.Second

// late reports whether a job is too late by the time that its ticket and its row say. By how its
// lines stand now it need not be: others that were late have paid ahead of it. If it then only
// waited for these, it would start in their time, on top of them. A pause is no reason to pay.
func (w *waiter) late(now time.Time) bool {
	t := &w.ticket
	if t.Due == 0 || t.Late || w.paused.After(now) {
		return false
	}
	due := time.UnixMicro(t.Due)
	if w.Due.Before(due) {
		due = w.Due
	}
	return now.Sub(ticket.Latest(due, w.At)) > tooLate
}

// anew has the job pay anew, for another attempt or because it is late. It returns nil if the job
// may start now, or the error that puts it off.
func (v *visit) anew(ctx context.Context, again bool) error {
	v.again = again
	if err := v.ask(ctx, v.plugin.renewals); err != nil {
		return err
	}
	v.used = false
	if v.clock.until(v.ticket.DueAt()) > 0 {
		return v.putOff(ctx, v.ticket.DueAt())
	}
	return nil
}

// renew has jobs pay anew, in the order in which they were due: those at this client, and those
// that wait in their queues and are as late, a thousand at a time. Should the answer to a COMMIT be
// lost, the jobs at this client pay once more.
func (p *plugin) renew(items []*visit) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var all []*waiter
	var now time.Time
	err := p.connected(ctx, func(c *pgxpool.Conn) error {
		return pgx.BeginTxFunc(ctx, c, readCommitted, func(tx pgx.Tx) error {
			late, err := p.overdue(ctx, tx, items)
			if err != nil {
				return err
			}
			for _, v := range items {
				w := v.waiter // if the transaction rolls back, it has not changed
				w.ticket.Taken.Takes = slices.Clone(w.ticket.Taken.Takes)
				all = append(all, &w)
			}
			if now, err = p.pay(ctx, tx, slices.Concat(all, late)); err == nil {
				err = p.move(ctx, tx, late, now)
			}
			return err
		})
	})
	p.warn(err, "jobs start late: they could not pay anew", "jobs", len(items))
	for i, v := range items {
		if v.err = err; err == nil {
			v.ticket, v.clock = all[i].ticket, clock{now, time.Now()}
		}
	}
}

// overdue are the jobs in the queues of late ones that are late as well, and have not paid anew.
// They are locked.
func (p *plugin) overdue(ctx context.Context, tx pgx.Tx, items []*visit) ([]*waiter, error) {
	var queues []string
	for _, v := range items {
		if !v.again {
			queues = append(queues, v.job.Queue)
		}
	}
	if queues == nil { // they pay for further attempts
		return nil, nil
	}
	all, err := p.waiters(ctx, tx, dueSQL+` FOR UPDATE SKIP LOCKED`, queues, tooLate, mostMoved)
	if err != nil {
		return nil, err
	}
	all = valid(all)
	now, err := p.reckon(ctx, tx, all)
	return slices.DeleteFunc(all, func(w *waiter) bool { return !w.late(now) }), err
}

// pay charges jobs for new times, and writes these into their tickets.
func (p *plugin) pay(ctx context.Context, tx pgx.Tx, all []*waiter) (time.Time, error) {
	slices.SortStableFunc(all, func(a, b *waiter) int {
		return cmp.Or(cmp.Compare(a.ticket.Due, b.ticket.Due), cmp.Compare(a.ID, b.ID))
	})
	var charged []*ratelimit.Reservation
	for _, w := range all {
		r := w.ticket.Taken
		for i, k := range r.Takes {
			// Tokens that were there at once, perhaps of a limit into which little or nothing
			// flows, were taken for good. Those of others came for the job, and have flown by.
			if w.again || k.Ahead() {
				charged = append(charged, &ratelimit.Reservation{ID: r.ID, Takes: r.Takes[i : i+1]})
			}
		}
	}
	if len(charged) > 0 {
		if err := p.scheduler.limiter.Renew(ctx, tx, charged...); err != nil {
			return time.Time{}, err
		}
	}
	for _, w := range all {
		w.ticket.Jitter, w.ticket.From, w.ticket.On = 0, 0, nil // it comes in its order
		if w.again {
			err := correct(ctx, p.store, tx.Exec, w.ID, w.ticket.Seat, w.ticket.Seat.Charged())
			if err != nil {
				return time.Time{}, err
			}
		}
	}
	now, err := p.reckon(ctx, tx, all)
	for _, w := range all {
		t := &w.ticket
		t.Due, t.Late, t.At = ticket.Latest(w.Due, now).UnixMicro(), !w.again, now.UnixMicro()
		if w.differs = true; !w.Due.After(now) {
			// where it need not wait, it keeps its place before those that are less late
			w.Due = w.At
		}
	}
	return now, err
}
