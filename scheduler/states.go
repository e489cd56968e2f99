package scheduler

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/ratelimit"
)

// querier is a pool, or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// db runs statements, whose tables it names.
type db struct {
	querier
	tables *strings.Replacer
}

// query scans each row of the answer into the columns.
func (d db) query(ctx context.Context, sql string, columns []any, each func(), args ...any) error {
	rows, err := d.Query(ctx, d.tables.Replace(sql), args...)
	if err != nil {
		return err
	}
	if columns == nil {
		rows.Close()
		return rows.Err()
	}
	_, err = pgx.ForEachRow(rows, columns, func() error {
		if each != nil {
			each()
		}
		return nil
	})
	return err
}

// statesSQL reads what has become of balances: one row for each that there is, its shards taken together, and one with the clock.
//
// $1 names $2 keys
const statesSQL = `SELECT p.name, p.key, max(b.ts), coalesce(max(b.delay), 0), coalesce(sum(b.moved), 0), max(b.paused_until), clock_timestamp()
FROM unnest($1::text[], $2::text[]) AS p (name, key)
JOIN {balance} b ON b.name = p.name AND b.key = p.key AND b.shard >= 0 AND b.value > '-Infinity'
GROUP BY p.name, p.key
UNION ALL SELECT '', '', NULL, 0, 0, NULL, clock_timestamp()`

// states tells how the limits of tickets stand, and the time. Values are left out.
func (d db) states(ctx context.Context, tickets []*ticket) (map[row]ratelimit.State, time.Time, error) {
	wanted := map[row]bool{}
	var names, keys []string
	for _, t := range tickets {
		for _, r := range t.rows() {
			if !wanted[r] {
				wanted[r] = true
				names, keys = append(names, r.limit), append(keys, r.key)
			}
		}
	}
	states := make(map[row]ratelimit.State, len(wanted))
	var r row
	var ts, paused *time.Time
	var delay int64
	var moved float64
	var now time.Time
	err := d.query(ctx, statesSQL, []any{&r.limit, &r.key, &ts, &delay, &moved, &paused, &now}, func() {
		if ts == nil {
			return
		}
		if now.Before(*ts) { // what was there at once was there by now, whatever a clock that was set back has left in the row
			*ts = now
		}
		s := ratelimit.State{TS: *ts, Delay: time.Duration(delay) * time.Microsecond, Moved: moved}
		if paused != nil {
			s.PausedUntil = *paused
		}
		states[r] = s
	}, names, keys)
	return states, now, err
}

// waiter is a job that waits in its queue.
type waiter struct {
	id      int64
	ticket  ticket
	changed bool // its ticket is to be written, though it keeps its time
}

// waiters are the jobs that a statement selects: id and ticket.
func (d db) waiters(ctx context.Context, sql string, args ...any) ([]*waiter, error) {
	var all []*waiter
	var id int64
	var raw []byte
	err := d.query(ctx, sql, []any{&id, &raw}, func() {
		if t, ok := parse(raw); ok {
			all = append(all, &waiter{id: id, ticket: t})
		}
	}, args...)
	return all, err
}

func tickets(waiters []*waiter) []*ticket {
	all := make([]*ticket, len(waiters))
	for i, w := range waiters {
		all[i] = &w.ticket
	}
	return all
}

// moveSQL gives waiting jobs other times. Those that were claimed or begun since keep theirs.
//
// $1 ids $2 times $3 tickets
const moveSQL = `UPDATE {river}river_job j SET scheduled_at = m.due, metadata = jsonb_set(j.metadata, '{weir}', m.ticket::jsonb)
FROM unnest($1::bigint[], $2::timestamptz[], $3::text[]) AS m (id, due, ticket)
WHERE j.id = m.id AND j.state IN ('available', 'scheduled') AND {ticket}
RETURNING j.id`

// move writes the tickets of waiting jobs, and moves them to the times that stand there; keep those of jobs at work.
func (d db) move(ctx context.Context, jobs []*waiter) error { return d.write(ctx, moveSQL, jobs) }
func (d db) keep(ctx context.Context, jobs []*waiter) error { return d.write(ctx, keepSQL, jobs) }

func (d db) write(ctx context.Context, sql string, jobs []*waiter) error {
	if len(jobs) == 0 {
		return nil
	}
	ids, dues, texts := make([]int64, len(jobs)), make([]time.Time, len(jobs)), make([]string, len(jobs))
	for i, w := range jobs {
		b, err := w.ticket.MarshalJSON()
		if err != nil {
			return err
		}
		ids[i], dues[i], texts[i] = w.id, w.ticket.due(), string(b)
	}
	return d.query(ctx, sql, nil, nil, ids, dues, texts)
}

// forward brings those forward that may start earlier than they are to, by enough to be worth a write. What waits for
// something else besides, a pause or another limit, keeps its time, but not its old place in the line.
func (d db) forward(ctx context.Context, waiters []*waiter, bunch bool, enough func(gain, wait time.Duration) bool) (moved []*waiter, err error) {
	if len(waiters) == 0 {
		return nil, nil
	}
	states, now, err := d.states(ctx, tickets(waiters))
	if err != nil {
		return nil, err
	}
	var written []*waiter
	for _, w := range waiters {
		due, by := w.ticket.reckon(states, now, bunch)
		due = latest(due, now)
		if gain := w.ticket.due().Sub(due); gain > 0 && enough(gain, due.Sub(now)) {
			w.ticket.Due, w.ticket.By = due.UnixMicro(), by
			moved = append(moved, w)
			w.changed = true
		}
		if w.changed {
			written = append(written, w)
		}
	}
	return moved, d.move(ctx, written)
}
