package scheduler

import (
	"context"

	"github.com/weir-go/weir/internal/wake"
)

// On time. River fetches when it is notified, and else once a second. So a process that knows when
// a job will be due, as it has reserved the job or as it is its turn to look (round.go), sends
// River's own insert notification at that moment.

const mostWakes = 5000 // that are remembered; River's poll finds the others

// wakeSQL notifies River of the queues in which jobs are due, and says how the jobs stand. Its
// commit is not waited for: a notification that is lost in a crash costs a second.
//
// $1 ids $2 River's schema, ” for the current
const wakeSQL = `WITH job AS (
	SELECT id, queue, state::text AS state,
		round(extract(epoch FROM scheduled_at - now()) * 1e9)::bigint AS wait
	FROM {river}river_job WHERE id = ANY ($1::bigint[])
)
SELECT id, state, wait, (SELECT set_config('synchronous_commit', 'off', true)),
	(SELECT pg_catalog.count(pg_notify(pg_catalog.concat(coalesce(nullif($2::text, ''), current_schema()), '.river_insert'),
		pg_catalog.json_build_object('queue', q.queue)::text))
	FROM (SELECT DISTINCT queue FROM job WHERE state = 'available' AND wait <= 0) q)
FROM job`

func (p *plugin) wake(ids []int64) (map[int64]wake.Seen, error) {
	ctx, cancel := context.WithTimeout(context.Background(), wake.For)
	defer cancel()
	rows := make(map[int64]wake.Seen, len(ids))
	var id int64
	var row wake.Seen
	err := p.query(ctx, p.pool, wakeSQL, []any{ids, p.schema}, func() {
		rows[id] = row
	}, &id, &row.State, &row.Wait, nil, nil)
	p.warn(err, "reserved jobs start up to a second late: River could not be woken", "jobs",
		len(ids))
	return rows, err
}
