package scheduler

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/riverqueue/river/rivertype"
)

// confirmAhead is how long before it is due a held job is confirmed: more than the database takes to answer.
const confirmAhead = 50 * time.Millisecond

// hold returns when the job is due, or with the error that puts it back.
func (v *visit) hold(ctx context.Context) error {
	due := v.due()
	// It was fetched at AttemptedAt by the database's clock: what that shows now is a little more.
	if v.job.AttemptedAt != nil && !sleep(ctx, due.Sub(*v.job.AttemptedAt)-confirmAhead) {
		return v.interrupted(ctx)
	}
	c := confirmation{job: v.job, ticket: &v.ticket, due: due}
	for {
		v.plugin.confirms.ask(&c)
		if c.err == nil {
			break
		}
		if !sleep(ctx, 100*time.Millisecond) {
			return v.interrupted(ctx)
		}
	}
	if !c.ours {
		return v.yield(ctx)
	}
	if later, t := c.putOff(); t != nil {
		return v.putBack(ctx, t, later)
	}
	if !sleep(ctx, due.Sub(c.at)-time.Since(c.answered)) {
		return v.interrupted(ctx)
	}
	return nil
}

// confirmation makes a held job this client's for good: from then on no sweep puts it back. It also reads the clock, and
// what has become of the job's limits.
type confirmation struct {
	job    *rivertype.JobRow
	ticket *ticket
	due    time.Time

	ours     bool
	at       time.Time // the database's clock
	answered time.Time
	delays   []int64    // of the places of the ticket
	paused   *time.Time // until when any of them is
	err      error
}

// putOff returns when the job may start instead, and its new ticket, if its limits were paused since it got its own.
func (c *confirmation) putOff() (time.Time, *ticket) {
	later, by := c.due, c.ticket.By
	on := slices.Clone(c.ticket.On)
	for i := range on {
		delay := time.Duration(c.delays[i]) * time.Microsecond
		if t := c.due.Add(delay - on[i].delay); t.After(later) {
			later, by = t, i
		}
		on[i].delay = delay
	}
	if c.paused != nil && c.paused.After(c.at) {
		later = latest(later, *c.paused)
	}
	if !later.After(c.due) || !later.After(c.at) {
		return c.due, nil
	}
	t := *c.ticket
	t.On, t.By, t.Due = on, by, later.UnixMicro()
	return later, &t
}

// confirmSQL answers for those of the held jobs that are this client's still: whom a sweep has given one to has fetched it at
// another time, though for an attempt of the same number.
//
// $1 ids $2 when they were fetched $3 due times $4 ids, once for each place $5 their numbers $6 names $7 keys
const confirmSQL = `WITH mine AS (
	UPDATE {river}river_job j SET scheduled_at = held.due
	FROM unnest($1::bigint[], $2::timestamptz[], $3::timestamptz[]) AS held (id, fetched, due)
	WHERE j.id = held.id AND j.state = 'running' AND j.attempted_at IS NOT DISTINCT FROM held.fetched
	RETURNING j.id
), place AS (
	SELECT p.id, array_agg(coalesce(b.delay, 0) ORDER BY p.n) AS delays, max(b.paused_until) AS paused
	FROM unnest($4::bigint[], $5::integer[], $6::text[], $7::text[]) AS p (id, n, name, key)
	LEFT JOIN {balance} b ON b.name = p.name AND b.key = p.key AND b.shard = 0
	GROUP BY p.id
)
SELECT mine.id, clock_timestamp(), place.delays, place.paused FROM mine LEFT JOIN place USING (id)`

func (p *plugin) confirm(items []*confirmation) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	byID := make(map[int64]*confirmation, len(items))
	ids, fetched, dues := make([]int64, len(items)), make([]*time.Time, len(items)), make([]time.Time, len(items))
	var of []int64
	var numbers []int
	var names, keys []string
	for i, c := range items {
		byID[c.job.ID] = c
		ids[i], fetched[i], dues[i] = c.job.ID, c.job.AttemptedAt, c.due
		for n, on := range c.ticket.On {
			of, numbers, names, keys = append(of, c.job.ID), append(numbers, n), append(names, on.limit), append(keys, on.key)
		}
	}
	var id int64
	var at time.Time
	var delays []int64
	var paused *time.Time
	err := p.query(ctx, confirmSQL, []any{&id, &at, &delays, &paused}, func() {
		c := byID[id]
		c.ours, c.at, c.delays, c.paused = true, at, slices.Clone(delays), paused
	}, ids, fetched, dues, of, numbers, names, keys)
	answered := time.Now()
	for _, c := range items {
		c.answered, c.err = answered, err
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
	if err := p.query(ctx, restoreSQL, nil, nil, ids, queues, besides); err != nil {
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
		err := v.plugin.query(ctx, `SELECT true FROM {river}river_job WHERE id = $1 AND state = 'running'`, []any{&running}, nil, v.job.ID)
		if err == nil && !running || !sleep(ctx, 250*time.Millisecond) {
			v.plugin.logger.Warn("scheduler: a held job was taken away", "job", v.job.ID)
			return errTakenAway
		}
	}
}
