package riverjob

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/weir-go/weir/internal/jobs/ticket"
	"github.com/weir-go/weir/ratelimit"
)

// Waiter is a job that waits in its queue, or at this client.
type Waiter struct {
	ID    int64          `json:"id"`
	At    time.Time      `json:"was"`    // its scheduled_at
	Due   time.Time      `json:"due"`    // when it may start by now, and where it is to be moved
	Near  bool           `json:"near"`   // it is to be available there
	Write *ticket.Ticket `json:"ticket"` // to be written, if not nil

	Ticket    ticket.Ticket `json:"-"`
	Attempt   int           `json:"-"`
	State     string        `json:"-"`
	Valid     bool          `json:"-"` // there is a ticket for the next attempt
	Paused    time.Time     `json:"-"` // until when what it waits for is paused, or before now
	Redefined bool          `json:"-"` // by the rules of this process
	Differs   bool          `json:"-"` // from the ticket in the row
	Again     bool          `json:"-"` // it pays for another attempt
}

// Waiters are the jobs that a statement selects, by their id, attempt, state, scheduled_at and
// ticket.
func (s Store) Waiters(ctx context.Context, q Querier, sql string, args ...any) ([]*Waiter, error) {
	var all []*Waiter
	var w Waiter
	var raw []byte
	err := s.Query(ctx, q, sql, args, func() {
		read := w
		err := json.Unmarshal(raw, &read.Ticket)
		read.Valid = err == nil && read.Ticket.IsFor(w.Attempt)
		all = append(all, &read)
	}, &w.ID, &w.Attempt, &w.State, &w.At, &raw)
	return all, err
}

// Valid are those of the jobs with tickets for their next attempt.
func Valid(all []*Waiter) []*Waiter {
	return slices.DeleteFunc(slices.Clone(all), func(w *Waiter) bool { return !w.Valid })
}

// TooLate is when a job pays anew: more than a client without notifications is late, and less than
// makes a burst.
const TooLate = 3 * time.Second

// Late reports whether a job is too late by the time that its ticket and its row say. By how its
// lines stand now it need not be: others that were late have paid ahead of it. If it then only
// waited for these, it would start in their time, on top of them. A pause is no reason to pay.
func (w *Waiter) Late(now time.Time) bool {
	t := &w.Ticket
	if t.Due == 0 || t.Late || w.Paused.After(now) {
		return false
	}
	due := time.UnixMicro(t.Due)
	if w.Due.Before(due) {
		due = w.Due
	}
	return now.Sub(ticket.Latest(due, w.At)) > TooLate
}

// DueSQL reads the jobs of queues that have been due for some time, in River's order.
//
// $1 queues $2 for how long $3 most
const DueSQL = `SELECT id, attempt, state::text, scheduled_at, metadata->'weir'::text FROM {river}river_job
WHERE queue = ANY ($1::text[]) AND state OPERATOR(pg_catalog.=) ANY ('{available,scheduled}') AND priority IN (1, 2, 3, 4)
	AND scheduled_at <= now() - $2::interval AND metadata->'weir'::text IS NOT NULL
ORDER BY priority, scheduled_at, id LIMIT $3::integer`

// DueAndLockSQL also locks them, except those that somebody else has locked.
const DueAndLockSQL = DueSQL + ` FOR UPDATE SKIP LOCKED`

// Reckon tells of jobs when they may start by now. With no jobs it asks nothing.
func (s Store) Reckon(ctx context.Context, q Querier, jobs []*Waiter) (now time.Time, err error) {
	if len(jobs) == 0 {
		return time.Time{}, nil
	}
	var lines []ratelimit.Take
	for _, w := range jobs {
		lines = append(lines, w.Ticket.Lines()...)
	}
	states, now, err := s.Limiter.Lines(ctx, q, lines...)
	if err != nil {
		return now, err
	}
	for _, w := range jobs {
		n := len(w.Ticket.Lines())
		w.Due, w.Paused, w.Redefined = w.Ticket.Reckon(states[:n], now, s.Pacing.Bunch)
		w.Differs = w.Differs || w.Redefined
		states = states[n:]
	}
	return now, nil
}

// MostMoved is how many jobs one statement moves.
const MostMoved = 1000

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

// Move moves waiting jobs to where they are due, the first ones before the others. Outside a
// transaction each statement is one.
func (s Store) Move(ctx context.Context, q Querier, jobs []*Waiter, now time.Time) error {
	jobs = slices.DeleteFunc(jobs, func(w *Waiter) bool { // JSON has no such times
		return max(w.At.Year(), w.Due.Year()) > 9999
	})
	slices.SortStableFunc(jobs, func(a, b *Waiter) int {
		return cmp.Or(a.Due.Compare(b.Due), cmp.Compare(a.ID, b.ID))
	})
	for i, w := range jobs {
		w.Near = i < MostAvailable && w.Due.Sub(now) < Horizon
		if w.Differs {
			w.Write = &w.Ticket
		}
	}
	for part := range slices.Chunk(jobs, MostMoved) {
		if err := Send(ctx, s, q, moveSQL, part); err != nil {
			return err
		}
	}
	return nil
}
