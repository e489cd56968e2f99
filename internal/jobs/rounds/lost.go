package rounds

import (
	"context"
	"errors"
	"time"

	"github.com/weir-go/weir/internal/jobs/riverjob"
)

const (
	lostEvery = time.Minute // and by a client that gets the turn
	mostLost  = 1000        // that start again in one round
)

// lostSQL starts jobs again that wait until 2200, for their turn or for a slot, and have no row in
// a line. Such a row is there before a job is put off, and goes with the statement that gives it
// its time. But a client of River that gets no answer puts the job off once more, seconds later,
// and River does not ask whether the job runs then. Nobody would look at it again. Jobs that a
// caller has inserted for 2200 were never put off. Jobs that others lock are found the next time.
//
// It reads all jobs in lines, and compares them by EXCEPT, for which no estimate of their number
// leads to a loop over all pairs.
//
// $1 River's schema $2 from $3 to $4 most
const lostSQL = `WITH lost AS (
	SELECT j.id FROM {river}river_queue q
		CROSS JOIN generate_series(1, 4) AS p (priority)
		CROSS JOIN LATERAL (
			SELECT id, metadata FROM {river}river_job
			WHERE state OPERATOR(pg_catalog.=) 'scheduled' AND queue = q.name AND priority = p.priority
				AND scheduled_at > $2::timestamptz AND scheduled_at < $3::timestamptz
		) j
	WHERE j.metadata ? 'snoozes'::text
	EXCEPT SELECT job FROM {ours}weir_turn
	WHERE name <> ''::text OR key = coalesce(nullif($1::text, ''), current_schema()::text)
	LIMIT $4::integer
), free AS (
	SELECT j.id FROM lost JOIN {river}river_job j ON j.id = lost.id
	WHERE j.state::text = 'scheduled' AND j.scheduled_at > $2::timestamptz FOR UPDATE OF j SKIP LOCKED
)
UPDATE {river}river_job j SET state = 'available', scheduled_at = now() FROM free WHERE j.id = free.id
RETURNING j.id`

// findLost starts such jobs again, if it is time to look.
func (r *Rounds) findLost(ctx context.Context, now time.Time) error {
	if now.Sub(r.sought) < lostEvery {
		return nil
	}
	r.sought = now
	const day = 24 * time.Hour // more than clocks differ
	var id int64
	var found []int64
	args := []any{r.Schema, riverjob.FarOff.Add(-day), riverjob.FarOff.Add(day), mostLost}
	err := r.Query(ctx, r.Pool, lostSQL, args, func() { found = append(found, id) }, &id)
	if err == nil && len(found) > 0 {
		r.Warn(errLost, "jobs start again that waited in no line", "jobs", found)
	}
	return err
}

var errLost = errors.New("they were put off while they ran: that was written late, or twice")
