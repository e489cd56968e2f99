package scheduler

import (
	"cmp"
	"context"
	"reflect"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/ratelimit"
)

// Paced when late. The tokens of a job that does not start when it is due flow by unused, and on into the bucket of whoever
// comes next. After an outage the jobs that are late would all start at once, and what was reserved after them would start
// on time besides. So what is too late is charged anew, ahead of all who wait, in its own order.

// tooLate is when a job is paced anew: more than a client without notifications is late (see Configure), and less than makes
// a burst.
const tooLate = 3 * time.Second

// overdueSQL locks the jobs of a queue that are too late.
//
// $1 queue $2 too late
const overdueSQL = `SELECT id, metadata->'weir' FROM {river}river_job
WHERE queue = $1::text AND state IN ('available', 'scheduled') AND priority IN (1, 2, 3, 4)
	AND scheduled_at < now() - $2::interval AND {ticket} AND {due} < now() - $2::interval
ORDER BY scheduled_at, id FOR UPDATE`

// pacing is a job at this client that is to be charged anew.
type pacing struct {
	queue string // where others are as late, if it is
	job   *rivertype.JobRow
	t     ticket

	clock
	err error
}

// paysAgain says that this attempt has to pay.
func (v *visit) paysAgain() bool {
	return v.found && !v.valid && !v.ticket.Paid && v.ticket.Reservation != nil && (v.ticket.Pays != PerJob || v.ticket.Attempt == givenBack)
}

// goesOn says that this attempt goes on with what one before has used: it need not wait for tokens, but for the pauses of their
// limits.
func (v *visit) goesOn() bool {
	return v.found && !v.valid && !v.ticket.Paid && v.ticket.Reservation != nil && !v.paysAgain()
}

// renew charges the job anew, and returns when it may start, or with the error that puts it back until then. An attempt that
// pays again has a reservation of its own: that of the one before keeps what it took.
func (v *visit) renew(ctx context.Context, again bool) error {
	p := pacing{job: v.job, t: v.ticket}
	p.t.Attempt = v.job.Attempt - 1
	if again {
		own := p.t.Again()
		p.t.Reservation = &own
	} else {
		p.queue = v.job.Queue
	}
	for {
		v.plugin.paces.ask(&p)
		if p.err == nil {
			break
		}
		if !sleep(ctx, 100*time.Millisecond) {
			return v.interrupted(ctx)
		}
	}
	v.ticket, v.valid, v.clock = p.t, true, p.clock
	return v.await(ctx)
}

// pace charges jobs anew, in the order in which they were due: those that this client has, and those that wait in their
// queues and are as late.
func (p *plugin) pace(items []*pacing) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var now time.Time
	var paced []*waiter
	err := pgx.BeginTxFunc(ctx, p.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		d := db{tx, p.tables}
		paced = paced[:0]
		again := map[*waiter]bool{} // pays for another attempt, and not because it is late
		var queues []string
		for _, i := range items {
			if i.job != nil {
				t := i.t
				if t.Reservation != nil {
					t.Reservation = &ratelimit.Reservation{ID: t.ID, Takes: slices.Clone(t.Takes)}
				}
				w := &waiter{id: i.job.ID, ticket: t}
				paced = append(paced, w)
				again[w] = i.queue == ""
			}
			if i.queue != "" && !slices.Contains(queues, i.queue) {
				queues = append(queues, i.queue)
			}
		}
		here := len(paced)
		paid, err := d.paid(ctx, paced)
		if err != nil {
			return err
		}
		for _, q := range queues {
			overdue, err := d.waiters(ctx, overdueSQL, q, tooLate)
			if err != nil {
				return err
			}
			paced = append(paced, overdue...)
		}
		if len(paced) == 0 {
			return nil
		}
		inOrder := slices.Clone(paced)
		slices.SortStableFunc(inOrder, func(a, b *waiter) int {
			return cmp.Or(cmp.Compare(a.ticket.Due, b.ticket.Due), cmp.Compare(a.id, b.id))
		})
		var taken []*ratelimit.Reservation
		parts := map[*waiter]*ratelimit.Reservation{}
		for _, w := range inOrder {
			switch r := w.ticket.Reservation; {
			case r == nil || paid[w] || w.ticket.Used:
			case again[w]:
				taken = append(taken, r)
			default:
				if f := flownBy(r); len(f.Takes) > 0 {
					taken, parts[w] = append(taken, f), f
				}
			}
		}
		if len(taken) > 0 {
			if err := p.scheduler.limiter.Renew(ctx, tx, taken...); err != nil {
				return err
			}
		}
		for w, part := range parts {
			rejoin(w.ticket.Reservation, part)
		}
		states, at, err := d.states(ctx, tickets(paced))
		if err != nil {
			return err
		}
		now = at
		for _, w := range paced {
			t := &w.ticket
			t.Jitter, t.From, t.On = 0, 0, nil // it comes in its order
			due, by := t.reckon(states, now, p.scheduler.bunch)
			t.Due, t.By = latest(due, now).UnixMicro(), by
		}
		if err := d.keep(ctx, paced[:here]); err != nil {
			return err
		}
		return d.move(ctx, paced[here:])
	})
	answered := time.Now()
	n := 0
	for _, i := range items {
		i.clock, i.err = clock{now, answered}, err
		if i.job != nil && err == nil {
			i.t = paced[n].ticket
			n++
		}
	}
	if err != nil {
		p.logger.Warn("scheduler: jobs that are late could not be paced", "error", err)
		return
	}
	for _, i := range items {
		if l := p.lines[i.queue]; l != nil && len(paced) > 0 {
			l.poke(lead) // some are due at once
		}
	}
}

// flownBy is the part of a reservation whose tokens came for its job, at their time: those that had been there at once, of a
// limit into which little or nothing flows perhaps, were taken for good.
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

// ticketsSQL locks jobs and reads their tickets.
//
// $1 ids
const ticketsSQL = `SELECT id, metadata->'weir' FROM {river}river_job WHERE id = ANY ($1::bigint[]) ORDER BY id FOR UPDATE`

// paid tells which of the jobs at this client have been charged anew already, by a transaction whose COMMIT was never
// answered: their rows have the reservation as that has left it. Their tickets become that.
func (d db) paid(ctx context.Context, here []*waiter) (map[*waiter]bool, error) {
	if len(here) == 0 {
		return nil, nil
	}
	ids := make([]int64, len(here))
	for i, w := range here {
		ids[i] = w.id
	}
	rows, err := d.waiters(ctx, ticketsSQL, ids)
	if err != nil {
		return nil, err
	}
	paid := map[*waiter]bool{}
	for _, r := range rows {
		for _, w := range here {
			if mine, there := w.ticket.Reservation, r.ticket.Reservation; r.id == w.id && mine != nil && there != nil &&
				mine.ID == there.ID && !reflect.DeepEqual(mine.Takes, there.Takes) {
				w.ticket.Reservation, paid[w] = there, true
			}
		}
	}
	return paid, nil
}

// keepSQL writes the tickets of jobs at work. They may begin at any moment: with scheduled_at no earlier than what stands in
// the ticket, none is taken for one that is only held.
//
// $1 ids $2 due times $3 tickets
const keepSQL = `UPDATE {river}river_job j SET scheduled_at = m.due, metadata = jsonb_set(j.metadata, '{weir}', m.ticket::jsonb)
FROM unnest($1::bigint[], $2::timestamptz[], $3::text[]) AS m (id, due, ticket)
WHERE j.id = m.id AND j.state = 'running'
RETURNING j.id`
