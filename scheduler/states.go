package scheduler

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/ratelimit"
)

// querier is a pool, a connection or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// readCommitted runs fn in a transaction on a pool or a connection.
func readCommitted(ctx context.Context, q querier, fn func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, q.(interface { //nolint:forcetypeassert // both can
		BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
	}), pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, fn)
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

// states are how limits stand.
type states map[row]ratelimit.State

// statesSQL reads what has become of balances: one row for each that there is, its shards taken together, and one with the clock.
//
// $1 names $2 keys
const statesSQL = `SELECT p.name, p.key, max(b.ts), coalesce(max(b.delay), 0), coalesce(sum(b.moved), 0), max(b.paused_until), clock_timestamp()
FROM unnest($1::text[], $2::text[]) AS p (name, key)
JOIN {balance} b ON b.name = p.name AND b.key = p.key AND b.shard >= 0 AND b.value > '-Infinity'
GROUP BY p.name, p.key
UNION ALL SELECT '', '', NULL, 0, 0, NULL, clock_timestamp()`

// states tells how the limits of tickets stand, and the time. Values are left out.
func (d db) states(ctx context.Context, tickets []*ticket) (states, time.Time, error) {
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
	all := make(states, len(wanted))
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
		all[r] = s
	}, names, keys)
	return all, now, err
}

// waiter is a job that waits in its queue, or at this client.
type waiter struct {
	id      int64
	attempt int
	state   string
	at      time.Time // its scheduled_at
	ticket  ticket

	due     time.Time // where it is to be moved
	near    bool      // it is to be available there
	changed bool      // its ticket is to be written
	again   bool      // it pays for another attempt
}

// waiters are the jobs that a statement selects, by id, attempt, state, scheduled_at and ticket:
// those with a ticket for their next attempt.
func (d db) waiters(ctx context.Context, sql string, args ...any) ([]*waiter, error) {
	var all []*waiter
	var w waiter
	var raw []byte
	err := d.query(ctx, sql, []any{&w.id, &w.attempt, &w.state, &w.at, &raw}, func() {
		if found, ok := w.read(raw); ok {
			all = append(all, found)
		}
	}, args...)
	return all, err
}

// read returns the waiter with its ticket.
func (w waiter) read(raw []byte) (*waiter, bool) {
	t, ok := parse(raw)
	w.ticket = t
	return &w, ok && t.known() && t.Attempt == w.attempt && !t.Used
}

func tickets(waiters []*waiter) []*ticket {
	all := make([]*ticket, len(waiters))
	for i, w := range waiters {
		all[i] = &w.ticket
	}
	return all
}

// mostMoved is how many jobs one statement moves.
const mostMoved = 1000

// moveSQL gives waiting jobs other times. One that a client has fetched since, or is about to, or
// that somebody has moved, keeps its own. A job whose time is near is available, others are
// scheduled, and River's leader promotes them.
//
// $1 ids $2 times that they have $3 new times $4 whether available $5 tickets, or null
const moveSQL = `WITH job AS (
	SELECT j.id, m.due, m.near, m.ticket
	FROM unnest($1::bigint[], $2::timestamptz[], $3::timestamptz[], $4::boolean[], $5::text[]) AS m (id, was, due, near, ticket)
	JOIN {river}river_job j ON j.id = m.id AND j.state IN ('available', 'scheduled') AND j.scheduled_at = m.was
	FOR UPDATE OF j SKIP LOCKED
)
UPDATE {river}river_job j SET scheduled_at = job.due,
	state = CASE WHEN job.near THEN 'available' ELSE 'scheduled' END::{river}river_job_state,
	metadata = CASE WHEN job.ticket IS NULL THEN j.metadata ELSE jsonb_set(j.metadata, '{weir}', job.ticket::jsonb) END
FROM job WHERE j.id = job.id
RETURNING j.id`

// move moves waiting jobs to the times that they are due, those that come first before the others.
// Outside a transaction each statement is one.
func (d db) move(ctx context.Context, jobs []*waiter, now time.Time) error {
	slices.SortStableFunc(jobs, func(a, b *waiter) int { return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.id, b.id)) })
	for i, w := range jobs {
		w.near = i < mostAvailable && w.due.Sub(now) < horizon
	}
	for part := range slices.Chunk(jobs, mostMoved) {
		n := len(part)
		ids, was, dues, near, texts := make([]int64, n), make([]time.Time, n), make([]time.Time, n), make([]bool, n), make([]*string, n)
		for i, w := range part {
			ids[i], was[i], dues[i], near[i] = w.id, w.at, w.due, w.near
			if w.changed {
				b, err := w.ticket.MarshalJSON()
				if err != nil {
					return err
				}
				s := string(b)
				texts[i] = &s
			}
		}
		if err := d.query(ctx, moveSQL, nil, nil, ids, was, dues, near, texts); err != nil {
			return err
		}
	}
	return nil
}
