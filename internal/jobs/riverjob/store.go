// Package riverjob reads, moves and locks the jobs of river_job that wait, and writes to no row
// that is running. It has what the parts of a client share: connections, wakes, and the turns to do
// what one client does at a time. It does not know why a job is looked at or moved. A Store, a
// Client and a Pace may be used concurrently, a Waiter by one goroutine at a time.
//
//	store.go   reads, moves and locks jobs; Waiter, and whether it is late
//	client.go  what the parts of a client share
//	nodes.go   reads what is there while a worker of Citus is down
//	whole.go   transactions that commit on Citus in two phases
package riverjob

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/jobs/ticket"
	"github.com/weir-go/weir/ratelimit"
)

// FarOff is when a job is due whose turn has not come: later than any ScheduledAt, and within what
// a time.Duration holds.
var FarOff = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)

// Store runs statements on the tables that one River client uses.
type Store struct {
	Limiter *ratelimit.Limiter
	Pacing  ticket.Pacing
	Schema  string            // River's; "" for the current one
	tables  *strings.Replacer // names them
}

// NewStore returns the Store in one of River's schemas.
func NewStore(limiter *ratelimit.Limiter, pacing ticket.Pacing, schema string) Store {
	prefix, weir := "", ""
	if schema != "" {
		prefix = pgx.Identifier{schema}.Sanitize() + "."
	}
	if limiter != nil { // else each verb says so
		weir = strings.TrimSuffix(limiter.Table(), "weir_balance")
	}
	return Store{limiter, pacing, schema, strings.NewReplacer("{river}", prefix, "{ours}", weir)}
}

// SQL names the tables of a statement.
func (s Store) SQL(sql string) string { return s.tables.Replace(sql) }

// Querier is a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Query runs a statement, whose tables it names, and calls each after it has scanned a row into the
// columns.
func (s Store) Query(
	ctx context.Context, q Querier, sql string, args []any, each func(), columns ...any,
) error {
	rows, _ := q.Query(ctx, s.SQL(sql), args...) // they tell the error, too
	_, err := pgx.ForEachRow(rows, columns, func() error { each(); return nil })
	return err
}

// Queue is Query with a statement of a batch, which runs when the batch is sent.
func (s Store) Queue(b *pgx.Batch, sql string, args []any, each func(), columns ...any) {
	b.Queue(s.SQL(sql), args...).Query(func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, columns, func() error { each(); return nil })
		return err
	})
}

// Send runs a statement whose last parameter is an array of rows, as JSON. Without rows it does
// nothing.
func Send[T any](ctx context.Context, s Store, q Querier, sql string, rows []T, args ...any) error {
	if len(rows) == 0 {
		return nil
	}
	b, err := json.Marshal(rows)
	if err != nil {
		return err
	}
	return s.Query(ctx, q, sql, append(args, string(b)), nil)
}

// Which are those of the jobs that a statement selects, by their ids.
func (s Store) Which(
	ctx context.Context, q Querier, sql string, ids []int64,
) (map[int64]bool, error) {
	var id int64
	found := map[int64]bool{}
	err := s.Query(ctx, q, sql, []any{ids}, func() { found[id] = true }, &id)
	return found, err
}

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
	Unread    error         `json:"-"` // why ReckonEach could not read its balances
}

// Waiters are the jobs that a statement selects, by their id, attempt, state, scheduled_at and
// ticket.
func (s Store) Waiters(ctx context.Context, q Querier, sql string, args ...any) ([]*Waiter, error) {
	var all []*Waiter
	each, columns := waiters(&all)
	err := s.Query(ctx, q, sql, args, each, columns...)
	return all, err
}

// QueueWaiters is Waiters with a statement of a batch. It empties all, which is filled when the
// batch is sent.
func (s Store) QueueWaiters(b *pgx.Batch, all *[]*Waiter, sql string, args ...any) {
	*all = nil
	each, columns := waiters(all)
	s.Queue(b, sql, args, each, columns...)
}

// waiters reads rows into all.
func waiters(all *[]*Waiter) (each func(), columns []any) {
	var w Waiter
	var raw []byte
	return func() {
		read := w
		if json.Unmarshal(raw, &read.Ticket) != nil || !read.Ticket.IsOf(w.ID) {
			read.Ticket = ticket.Ticket{}
		}
		read.Valid = read.Ticket.IsFor(w.Attempt)
		*all = append(*all, &read)
	}, []any{&w.ID, &w.Attempt, &w.State, &w.At, &raw}
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
// waited for these, it would start in their time, on top of them. A pause is no reason to pay. If
// it was put off as nobody answered, the time in its row does not count.
func (w *Waiter) Late(now time.Time) bool {
	t := &w.Ticket
	if t.Due == 0 || t.Late || w.Paused.After(now) {
		return false
	}
	due := time.UnixMicro(t.Due)
	if w.Due.Before(due) {
		due = w.Due
	}
	if !t.Missed {
		due = ticket.Latest(due, w.At)
	}
	return now.Sub(due) > TooLate
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
		if w.Due.Equal(w.Paused) && w.Paused.After(now) && s.Pacing.Jitter > 0 {
			// It would start together with all that waits for nothing but the end of the pause.
			w.Ticket.Jitter = ticket.Random(s.Pacing.Jitter).Microseconds()
			w.Due, w.Differs = w.Due.Add(w.Ticket.Delay()), true
		}
		states = states[n:]
	}
	return now, nil
}

// MostMoved is how many jobs one statement moves.
const MostMoved = 1000

// moveSQL gives waiting jobs other times. One that a client has fetched since, or is about to, or
// that somebody has moved, keeps its own. A job whose time is near is available, others are
// scheduled, and River's leader promotes them. If it has done so since, nothing is written. To
// metadata that is no object the ticket is appended, as River appends its own notes.
//
// $1 an array of waiters
const moveSQL = `WITH job AS (
	SELECT j.id, m.due, m.near, m.ticket
	FROM jsonb_to_recordset($1::text::jsonb)
		AS m (id bigint, was timestamptz, due timestamptz, near boolean, ticket jsonb)
	JOIN {river}river_job j ON j.id = m.id AND j.state OPERATOR(pg_catalog.=) ANY ('{available,scheduled}')
		AND j.scheduled_at = m.was
		AND NOT (j.state OPERATOR(pg_catalog.=) 'available' AND m.near AND m.due = m.was AND m.ticket IS NULL)
	FOR UPDATE OF j SKIP LOCKED
)
UPDATE {river}river_job j SET scheduled_at = job.due,
	state = CASE WHEN job.near THEN 'available' ELSE 'scheduled' END::{river}river_job_state,
	metadata = CASE WHEN job.ticket IS NULL THEN j.metadata
		ELSE j.metadata || pg_catalog.jsonb_build_object('weir', job.ticket) END
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
	jobs = slices.DeleteFunc(jobs, func(w *Waiter) bool { // those that would stay as they are
		return w.State == "scheduled" && !w.Near && !w.Differs && w.Due.Equal(w.At)
	})
	for part := range slices.Chunk(jobs, MostMoved) {
		if err := Send(ctx, s, q, moveSQL, part); err != nil {
			return err
		}
	}
	return nil
}

// kindSQL reads the due jobs of a kind in a queue, in River's order, behind a place in it.
//
// $1 queue $2 kind $3 $4 $5 priority, time and id of the place $6 most
const kindSQL = `SELECT id, priority, scheduled_at, attempt, max_attempts, created_at, args, metadata,
	tags FROM {river}river_job
WHERE queue = $1::text AND state OPERATOR(pg_catalog.=) 'available' AND kind = $2::text AND scheduled_at <= now()
	AND (priority, scheduled_at, id) > ($3::smallint, $4::timestamptz, $5::bigint)
ORDER BY priority, scheduled_at, id LIMIT $6::integer`

// EachDue calls do with the due jobs of a kind in a queue, in River's order, some at a time.
func (c *Client) EachDue(
	ctx context.Context, queue, kind string, do func(jobs []*rivertype.JobRow) error,
) error {
	for last := (&rivertype.JobRow{}); ; {
		var jobs []*rivertype.JobRow
		var j rivertype.JobRow
		args := []any{queue, kind, last.Priority, last.ScheduledAt, last.ID, MostMoved}
		err := c.Query(ctx, c.Pool, kindSQL, args, func() {
			job := j
			job.Queue, job.Kind, job.State = queue, kind, rivertype.JobStateAvailable
			jobs, j = append(jobs, &job), rivertype.JobRow{} // whose slices are the job's
		}, &j.ID, &j.Priority, &j.ScheduledAt, &j.Attempt, &j.MaxAttempts, &j.CreatedAt,
			&j.EncodedArgs, &j.Metadata, &j.Tags)
		if err == nil {
			err = do(jobs)
		}
		if err != nil || len(jobs) < MostMoved {
			return err
		}
		last = jobs[len(jobs)-1]
	}
}

// Lock locks those of the due jobs that are as they were read, and that nobody is fetching. Others
// have been paid for, given a slot or put off since: by another client that clears the same
// backlog, or by a worker.
func (s Store) Lock(
	ctx context.Context, tx pgx.Tx, jobs []*rivertype.JobRow,
) (map[int64]bool, error) {
	var ids []int64
	read := map[int64]*rivertype.JobRow{}
	for _, job := range jobs {
		ids, read[job.ID] = append(ids, job.ID), job
	}
	var now rivertype.JobRow
	locked := map[int64]bool{}
	err := s.Query(ctx, tx, LockSQL, []any{ids}, func() {
		was := read[now.ID]
		locked[now.ID] = now.ScheduledAt.Equal(was.ScheduledAt) && now.Attempt == was.Attempt &&
			bytes.Equal(now.Metadata, was.Metadata)
	}, &now.ID, &now.ScheduledAt, &now.Attempt, &now.Metadata)
	return locked, err
}

// LockSQL locks those of the jobs that are available.
//
// The state is compared as text, for which there is no index: by the index of the states, Postgres
// would look for each due job through the whole list of ids.
//
// $1 ids
const LockSQL = `SELECT id, scheduled_at, attempt, metadata FROM {river}river_job
WHERE id = ANY ($1::bigint[]) AND state::text = 'available'
ORDER BY id FOR UPDATE SKIP LOCKED`
