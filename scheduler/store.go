package scheduler

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/jobs/ticket"
	"github.com/weir-go/weir/ratelimit"
)

// store runs statements for a Scheduler on the tables that one River client uses.
type store struct {
	scheduler *Scheduler
	schema    string            // River's; "" for the current one
	tables    *strings.Replacer // names them
}

// querier is a pool, a connection or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

var readCommitted = pgx.TxOptions{IsoLevel: pgx.ReadCommitted}

// query runs a statement, whose tables it names, and calls each after it has scanned a row into the
// columns.
func (s store) query(
	ctx context.Context, q querier, sql string, args []any, each func(), columns ...any,
) error {
	rows, _ := q.Query(ctx, s.tables.Replace(sql), args...) // they tell the error, too
	_, err := pgx.ForEachRow(rows, columns, func() error { each(); return nil })
	return err
}

// sendRows runs a statement whose last parameter is an array of rows, as JSON. Without rows it does
// nothing.
func sendRows[T any](
	ctx context.Context, s store, q querier, sql string, rows []T, args ...any,
) error {
	if len(rows) == 0 {
		return nil
	}
	b, err := json.Marshal(rows)
	if err != nil {
		return err
	}
	return s.query(ctx, q, sql, append(args, string(b)), nil)
}

// which are those of the jobs that a statement selects, by their ids.
func (s store) which(
	ctx context.Context, q querier, sql string, ids []int64,
) (map[int64]bool, error) {
	var id int64
	found := map[int64]bool{}
	err := s.query(ctx, q, sql, []any{ids}, func() { found[id] = true }, &id)
	return found, err
}

// waiter is a job that waits in its queue, or at this client.
type waiter struct {
	ID     int64          `json:"id"`
	At     time.Time      `json:"was"`    // its scheduled_at
	Due    time.Time      `json:"due"`    // when it may start by now, and where it is to be moved
	Near   bool           `json:"near"`   // it is to be available there
	Ticket *ticket.Ticket `json:"ticket"` // to be written, if not nil

	ticket    ticket.Ticket
	attempt   int
	state     string
	valid     bool      // there is a ticket for the next attempt
	paused    time.Time // until when what it waits for is paused, or before now
	redefined bool      // by the rules of this process
	differs   bool      // from the ticket in the row
	again     bool      // it pays for another attempt
}

// waiters are the jobs that a statement selects, by their id, attempt, state, scheduled_at and
// ticket.
func (s store) waiters(ctx context.Context, q querier, sql string, args ...any) ([]*waiter, error) {
	var all []*waiter
	var w waiter
	var raw []byte
	err := s.query(ctx, q, sql, args, func() {
		read := w
		err := json.Unmarshal(raw, &read.ticket)
		read.valid = err == nil && read.ticket.IsFor(w.attempt)
		all = append(all, &read)
	}, &w.ID, &w.attempt, &w.state, &w.At, &raw)
	return all, err
}

// valid are those of the jobs with tickets for their next attempt.
func valid(all []*waiter) []*waiter {
	return slices.DeleteFunc(slices.Clone(all), func(w *waiter) bool { return !w.valid })
}

// dueSQL reads the jobs of queues that have been due for some time, in River's order.
//
// $1 queues $2 for how long $3 most
const dueSQL = `SELECT id, attempt, state::text, scheduled_at, metadata->'weir'::text FROM {river}river_job
WHERE queue = ANY ($1::text[]) AND state OPERATOR(pg_catalog.=) ANY ('{available,scheduled}') AND priority IN (1, 2, 3, 4)
	AND scheduled_at <= now() - $2::interval AND metadata->'weir'::text IS NOT NULL
ORDER BY priority, scheduled_at, id LIMIT $3::integer`

// reckon tells of jobs when they may start by now. With no jobs it asks nothing.
func (s store) reckon(ctx context.Context, q querier, jobs []*waiter) (now time.Time, err error) {
	if len(jobs) == 0 {
		return time.Time{}, nil
	}
	var lines []ratelimit.Take
	for _, w := range jobs {
		lines = append(lines, w.ticket.Lines()...)
	}
	states, now, err := s.scheduler.limiter.Lines(ctx, q, lines...)
	if err != nil {
		return now, err
	}
	for _, w := range jobs {
		n := len(w.ticket.Lines())
		w.Due, w.paused, w.redefined = w.ticket.Reckon(states[:n], now, s.scheduler.pacing.Bunch)
		w.differs = w.differs || w.redefined
		states = states[n:]
	}
	return now, nil
}

// mostMoved is how many jobs one statement moves.
const mostMoved = 1000

// moveSQL gives waiting jobs other times. One that a client has fetched since, or is about to, or
// that somebody has moved, keeps its own. A job whose time is near is available, others are
// scheduled, and River's leader promotes them.
//
// $1 an array of waiters
const moveSQL = `WITH job AS (
	SELECT j.id, m.due, m.near, m.ticket
	FROM jsonb_to_recordset($1::text::jsonb)
		AS m (id bigint, was timestamptz, due timestamptz, near boolean, ticket jsonb)
	JOIN {river}river_job j ON j.id = m.id AND j.state OPERATOR(pg_catalog.=) ANY ('{available,scheduled}')
		AND j.scheduled_at = m.was
	FOR UPDATE OF j SKIP LOCKED
)
UPDATE {river}river_job j SET scheduled_at = job.due,
	state = CASE WHEN job.near THEN 'available' ELSE 'scheduled' END::{river}river_job_state,
	metadata = CASE WHEN job.ticket IS NULL THEN j.metadata
		ELSE jsonb_set(j.metadata, '{weir}'::text[], job.ticket) END
FROM job WHERE j.id = job.id`

// move moves waiting jobs to where they are due, the first ones before the others. Outside a
// transaction each statement is one.
func (s store) move(ctx context.Context, q querier, jobs []*waiter, now time.Time) error {
	jobs = slices.DeleteFunc(jobs, func(w *waiter) bool { // JSON has no such times
		return max(w.At.Year(), w.Due.Year()) > 9999
	})
	slices.SortStableFunc(jobs, func(a, b *waiter) int {
		return cmp.Or(a.Due.Compare(b.Due), cmp.Compare(a.ID, b.ID))
	})
	for i, w := range jobs {
		w.Near = i < mostAvailable && w.Due.Sub(now) < horizon
		if w.differs {
			w.Ticket = &w.ticket
		}
	}
	for part := range slices.Chunk(jobs, mostMoved) {
		if err := sendRows(ctx, s, q, moveSQL, part); err != nil {
			return err
		}
	}
	return nil
}
