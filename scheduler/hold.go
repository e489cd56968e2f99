package scheduler

import (
	"context"
	"errors"
	"time"

	"github.com/riverqueue/river/rivertype"
)

const (
	// confirmAhead is how long before it is due a held job is confirmed: more than the database takes to answer.
	confirmAhead = 50 * time.Millisecond

	// lookEvery is how often the limits of held jobs are looked at meanwhile: those ahead may have used less than they took.
	lookEvery = 50 * time.Millisecond
)

// clock is a reading of the database's clock, and when it came.
type clock struct{ at, answered time.Time }

// until is how long it takes until t.
func (c clock) until(t time.Time) time.Duration { return t.Sub(c.at.Add(time.Since(c.answered))) }

// hold returns when the job is due, or with the error that puts it back.
func (v *visit) hold(ctx context.Context) error {
	if v.job.AttemptedAt != nil {
		// It was fetched at AttemptedAt by the database's clock: what that shows now is a little more.
		v.clock = clock{*v.job.AttemptedAt, time.Now()}
		for v.clock.until(v.due()) > lookEvery+confirmAhead {
			if !sleep(ctx, time.Until(time.Now().Truncate(lookEvery).Add(lookEvery))) { // all of them at once
				return v.interrupted(ctx)
			}
			l := look{ticket: &v.ticket}
			if v.plugin.looks.ask(&l); l.err == nil {
				v.clock = l.clock
				v.ticket.Due, v.ticket.By = min(v.ticket.Due, l.due.UnixMicro()), l.by
			}
		}
		if !sleep(ctx, v.clock.until(v.due())-confirmAhead) {
			return v.interrupted(ctx)
		}
	}
	for {
		c := confirmation{job: v.job, look: look{ticket: &v.ticket}}
		if v.plugin.confirms.ask(&c); c.err != nil {
			if !sleep(ctx, 100*time.Millisecond) {
				return v.interrupted(ctx)
			}
			continue
		}
		if !c.ours {
			return v.yield(ctx)
		}
		v.clock = c.clock
		if v.ticket.Due == 0 { // wanted now, unless it is paused
			if c.until(c.pausedUntil) <= 0 {
				return nil
			}
			c.due = c.pausedUntil
		}
		v.ticket.Due, v.ticket.By = c.due.UnixMicro(), c.by
		switch wait := c.until(c.due); {
		case wait > lead:
			return v.putBack(ctx, &v.ticket, c.due)
		case wait <= confirmAhead && sleep(ctx, wait):
			return nil
		case !sleep(ctx, wait-confirmAhead):
			return v.interrupted(ctx)
		}
	}
}

// look asks how the limits of a ticket stand.
type look struct {
	ticket *ticket

	clock
	due         time.Time // by now
	by          int
	pausedUntil time.Time
	err         error
}

func (p *plugin) look(items []*look) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	asked := make([]*ticket, len(items))
	for i, l := range items {
		asked[i] = l.ticket
	}
	states, now, err := p.db().states(ctx, asked)
	answered := time.Now()
	for _, l := range items {
		if l.clock, l.err = (clock{now, answered}), err; err != nil {
			continue
		}
		l.due, l.by = l.ticket.reckon(states, now, p.scheduler.bunch)
		for _, r := range l.ticket.rows() {
			l.pausedUntil = latest(l.pausedUntil, states[r].PausedUntil)
		}
	}
}

// confirmation makes a held job this client's for good: from then on no sweep puts it back.
type confirmation struct {
	job *rivertype.JobRow
	look

	ours bool
}

// confirmSQL answers for those of the held jobs that are this client's still: whom a sweep has given one to has fetched it at
// another time, though for an attempt of the same number.
//
// The sweep tells one that has begun from one that is held by scheduled_at and the time in its ticket: what has come forward
// since it was fetched keeps that.
//
// $1 ids $2 when they were fetched $3 due times
const confirmSQL = `UPDATE {river}river_job j SET scheduled_at = greatest(held.due, {due})
FROM unnest($1::bigint[], $2::timestamptz[], $3::timestamptz[]) AS held (id, fetched, due)
WHERE j.id = held.id AND j.state = 'running' AND j.attempted_at IS NOT DISTINCT FROM held.fetched
RETURNING j.id`

func (p *plugin) confirm(items []*confirmation) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	byID := make(map[int64]*confirmation, len(items))
	ids, fetched, dues := make([]int64, len(items)), make([]*time.Time, len(items)), make([]time.Time, len(items))
	looks := make([]*look, len(items))
	for i, c := range items {
		byID[c.job.ID], looks[i] = c, &c.look
		ids[i], fetched[i], dues[i] = c.job.ID, c.job.AttemptedAt, c.job.ScheduledAt
		if c.ticket.Due != 0 {
			dues[i] = c.ticket.due()
		}
	}
	var id int64
	err := p.db().query(ctx, confirmSQL, []any{&id}, func() { byID[id].ours = true }, ids, fetched, dues)
	if err == nil {
		p.look(looks)
		err = looks[0].err
	}
	for _, c := range items {
		c.err = err
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		p.logger.Warn("scheduler: held jobs start late", "jobs", len(items), "error", err)
	}
}

// restoreSQL puts jobs back into the queue that they were inserted into.
//
// $1 ids $2 queues $3 the queues beside them
const restoreSQL = `UPDATE {river}river_job j SET queue = done.queue
FROM unnest($1::bigint[], $2::text[]) AS done (id, queue)
WHERE j.id = done.id AND j.queue = ANY ($3::text[])
RETURNING j.id`

// restore gives up soon: what it leaves has ended, or a sweep finds it.
func (p *plugin) restore(jobs []*rivertype.JobRow) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ids, queues, besides := make([]int64, len(jobs)), make([]string, len(jobs)), make([]string, len(jobs))
	for i, j := range jobs {
		ids[i], queues[i], besides[i] = j.ID, j.Queue, beside(j.Queue)
	}
	if err := p.db().query(ctx, restoreSQL, nil, nil, ids, queues, besides); err != nil {
		p.logger.Warn("scheduler: jobs that ran on time could not be put back into their queues", "jobs", len(jobs), "error", err)
	}
}

// errTakenAway says that a held job is not this client's any more.
var errTakenAway = errors.New("scheduler: a held job was put back by a sweep, or by hand")

// yield waits until such a job does not run elsewhere: to return is to let River's client write to its row, which would take
// that for the end of an attempt that others have begun.
func (v *visit) yield(ctx context.Context) error {
	for {
		running := false
		err := v.plugin.db().query(ctx, `SELECT true FROM {river}river_job WHERE id = $1 AND state = 'running'`, []any{&running}, nil, v.job.ID)
		if err == nil && !running || !sleep(ctx, 250*time.Millisecond) {
			v.plugin.logger.Warn("scheduler: a held job was taken away", "job", v.job.ID)
			return errTakenAway
		}
	}
}
