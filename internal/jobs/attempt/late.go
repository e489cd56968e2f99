package attempt

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/jobs/fairline"
	"github.com/weir-go/weir/internal/jobs/riverjob"
	"github.com/weir-go/weir/internal/jobs/ticket"
	"github.com/weir-go/weir/ratelimit"
)

const (
	// renewIn is how long the late jobs of all keys wait when somebody holds the balance of one.
	renewIn = time.Second

	// renewNext is how long they wait for each of them after that.
	renewNext = 100 * time.Millisecond
)

// If a job does not start when it is due, its tokens refill the bucket and go to the next
// caller. After an outage all late jobs would start at once, together with the jobs that are due on
// time. So a job that is too late pays anew, once. It goes ahead of all jobs that wait, and late
// jobs keep their order. A further attempt pays in the same way.

// anew has the job pay anew, for another attempt or because it is late. It returns nil if the job
// may start now, or the error that puts it off.
func (v *visit) anew(ctx context.Context, again bool) error {
	v.Again = again
	if err := v.ask(ctx, v.at.renewals); err != nil {
		return err
	}
	v.used = false
	if v.clock.Until(v.Ticket.DueAt()) > 0 {
		return v.putOff(ctx, v.Ticket.DueAt())
	}
	return nil
}

// renew has jobs pay anew, in the order in which they were due: those at this client, and those
// that wait in their queues and are as late, a thousand at a time. If somebody holds the balance of
// one of them, or its worker of Citus is down, each job at this client pays by itself: those that
// take from the same balances do not try once more. Should the answer to a COMMIT be lost, the jobs
// at this client pay once more.
func (a *Attempts) renew(items []*visit) {
	if !riverjob.IsBlocked(a.renewed(items, true, renewIn)) {
		return
	}
	slices.SortStableFunc(items, func(a, b *visit) int { return byDue(&a.Waiter, &b.Waiter) })
	held := map[string]error{} // by what they have taken from
	for _, v := range items {
		of := fmt.Sprintf("%q", v.Ticket.Rows())
		if v.err = held[of]; v.err != nil {
			continue
		}
		if err := a.renewed([]*visit{v}, false, renewNext); riverjob.IsBlocked(err) {
			held[of] = err
		}
	}
}

// renewed has jobs pay anew in one transaction: those at this client and, if queued, those in their
// queues. It waits for no balance for longer than in.
func (a *Attempts) renewed(items []*visit, queued bool, in time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), riverjob.Patience)
	defer cancel()
	var all []*riverjob.Waiter
	var now time.Time
	err := a.ConnectedInTx(ctx, func(tx pgx.Tx) error {
		var late []*riverjob.Waiter
		err := a.Briefly(ctx, tx, in)
		if err == nil && queued {
			late, err = a.overdue(ctx, tx, items)
		}
		if err != nil {
			return err
		}
		for _, v := range items {
			w := v.Waiter // if the transaction rolls back, it has not changed
			w.Ticket.Taken.Takes = slices.Clone(w.Ticket.Taken.Takes)
			all = append(all, &w)
		}
		if now, err = a.pay(ctx, riverjob.Whole(tx), slices.Concat(all, late)); err == nil {
			err = a.Move(ctx, tx, late, now)
		}
		return err
	})
	a.Warn(err, "jobs start late: they could not pay anew", "jobs", len(items))
	for i, v := range items {
		if v.err = err; err == nil {
			v.Ticket, v.clock = all[i].Ticket, riverjob.Clock{At: now, Answered: time.Now()}
		}
	}
	return err
}

// overdue are the jobs in the queues of late ones that are late as well, and have not paid anew.
// They are locked.
func (a *Attempts) overdue(
	ctx context.Context, tx pgx.Tx, items []*visit,
) ([]*riverjob.Waiter, error) {
	var queues []string
	for _, v := range items {
		if !v.Again {
			queues = append(queues, v.job.Queue)
		}
	}
	if queues == nil { // they pay for further attempts
		return nil, nil
	}
	all, err := a.Waiters(
		ctx, tx, riverjob.DueAndLockSQL, queues, riverjob.TooLate, riverjob.MostMoved)
	if err != nil {
		return nil, err
	}
	all = riverjob.Valid(all)
	now, err := a.Reckon(ctx, tx, all)
	return slices.DeleteFunc(all, func(w *riverjob.Waiter) bool { return !w.Late(now) }), err
}

func byDue(a, b *riverjob.Waiter) int {
	return cmp.Or(cmp.Compare(a.Ticket.Due, b.Ticket.Due), cmp.Compare(a.ID, b.ID))
}

// pay charges jobs for new times, and writes these into their tickets.
func (a *Attempts) pay(ctx context.Context, tx pgx.Tx, all []*riverjob.Waiter) (time.Time, error) {
	slices.SortStableFunc(all, byDue)
	var charged []*ratelimit.Reservation
	each := make([][]*ratelimit.Reservation, len(all)) // what each job took, take by take
	for n, w := range all {
		r := w.Ticket.Taken
		if r.ID == uuid.Nil { // metadata is anybody's
			each[n] = []*ratelimit.Reservation{&r}
			continue
		}
		for _, k := range r.Takes {
			one := &ratelimit.Reservation{ID: r.ID, Takes: []ratelimit.Take{k}}
			each[n] = append(each[n], one)
			// Tokens that were there at once, perhaps of a limit into which little or nothing
			// flows, were taken for good. Those of others came for the job, and have flown by.
			if w.Again || k.Ahead() {
				charged = append(charged, one)
			}
		}
	}
	if len(charged) > 0 {
		if err := a.Limiter.Renew(ctx, tx, charged...); err != nil {
			return time.Time{}, err
		}
	}
	for n, w := range all {
		w.Ticket.Taken.Takes = nil
		for _, one := range each[n] { // of several shards, if the limit has got other ones
			w.Ticket.Taken.Takes = append(w.Ticket.Taken.Takes, one.Takes...)
		}
		w.Ticket.Jitter, w.Ticket.From, w.Ticket.On = 0, 0, nil // it comes in its order
		if w.Again {
			seat := w.Ticket.Seat
			err := fairline.Correct(ctx, a.Store, tx.Exec, w.ID, seat, seat.Charged())
			if err != nil {
				return time.Time{}, err
			}
		}
	}
	now, err := a.Reckon(ctx, tx, all)
	for _, w := range all {
		t := &w.Ticket
		t.Due, t.Late, t.At = ticket.Latest(w.Due, now).UnixMicro(), !w.Again, now.UnixMicro()
		t.Missed = false
		if w.Differs = true; !w.Due.After(now) {
			// where it need not wait, it keeps its place before those that are less late
			w.Due = w.At
		}
	}
	return now, err
}
