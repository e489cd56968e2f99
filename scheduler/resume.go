package scheduler

import (
	"context"
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/ratelimit"
)

// resumeSQL moves jobs that a pause has put off. Those that were claimed since keep their time: it is near.
//
// $1 ids $2 times $3 tickets
const resumeSQL = `UPDATE {river}river_job j SET scheduled_at = m.due, metadata = jsonb_set(j.metadata, '{weir}', m.ticket::jsonb)
FROM unnest($1::bigint[], $2::timestamptz[], $3::text[]) AS m (id, due, ticket)
WHERE j.id = m.id AND j.state IN ('available', 'scheduled') AND j.scheduled_at > m.due`

// Resume ends a pause early, see [ratelimit.Limiter.Resume], and brings the jobs forward that it has put off: as far as they
// were, or as the limit has room. What the pause has not reached yet keeps its time.
func (j *Jobs) Resume(ctx context.Context, tx pgx.Tx, requests ...ratelimit.Request) error {
	if err := j.scheduler.limiter.Resume(ctx, tx, requests...); err != nil {
		return err
	}
	const most = 10_000 // that River lists at once; what is beyond has its turn later anyway
	var ids []int64
	var dues []time.Time
	var tickets []string
	for _, r := range requests {
		found, delay, _, err := j.list(ctx, tx, r, most)
		if err != nil {
			return err
		}
		for _, w := range found {
			t := w.ticket
			on := &t.On[t.By]
			if back := delay - on.delay; w.Limit == on.limit && back < 0 {
				on.delay = delay
				t.Due += back.Microseconds()
				b, err := json.Marshal(t)
				if err != nil {
					return err
				}
				ids, dues, tickets = append(ids, w.Job.ID), append(dues, t.due()), append(tickets, string(b))
				j.scheduler.expect(w.Job.Queue)
			}
		}
	}
	if len(ids) == 0 {
		return nil
	}
	_, err := tx.Exec(ctx, j.tables.Replace(resumeSQL), ids, dues, tickets)
	return err
}
