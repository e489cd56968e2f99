package riverjob

import (
	"bytes"
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river/rivertype"
)

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
// have been paid for, given a slot or put off since: by another client that clears the same backlog,
// or by a worker.
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
