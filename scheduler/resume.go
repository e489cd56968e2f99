package scheduler

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/ratelimit"
)

// Resume ends a pause early, see [ratelimit.Limiter.Resume], and brings the jobs forward that it has put off: as far as they
// were, or as the limit has room. What the pause has not reached yet keeps its time.
func (j *Jobs) Resume(ctx context.Context, tx pgx.Tx, requests ...ratelimit.Request) error {
	if err := j.scheduler.limiter.Resume(ctx, tx, requests...); err != nil {
		return err
	}
	var rows []row
	for _, r := range requests {
		of, err := j.row(ctx, tx, r)
		if err != nil {
			return err
		}
		rows = append(rows, of)
	}
	d := db{tx, j.tables}
	waiting, err := d.behind(ctx, rows)
	if err != nil {
		return err
	}
	moved, err := d.forward(ctx, waiting, j.scheduler.bunch, always)
	if len(moved) > 0 {
		j.scheduler.expectAll()
	}
	return err
}

func always(_, _ time.Duration) bool { return true }

// row is that of a request.
func (j *Jobs) row(ctx context.Context, tx pgx.Tx, r ratelimit.Request) (row, error) {
	res, err := j.scheduler.limiter.CheckRateLimit(ctx, tx, r.Count(0))
	if err != nil {
		return row{}, err
	}
	return row{res.Outcomes[0].Limit, res.Outcomes[0].Key}, nil
}

// behindSQL finds the jobs that wait for a limit.
//
// $1 what their metadata contains
const behindSQL = `SELECT id, metadata->'weir' FROM {river}river_job
WHERE state IN ('available', 'scheduled') AND metadata @> $1::jsonb AND {ticket}`

// fragment is the part of metadata by which the jobs of a limit are found, and maybe some of others: containment knows neither
// order nor number.
func (r row) fragment() (string, error) {
	b, err := json.Marshal(map[string]any{metadataKey: map[string]any{"on": [][]string{{r.limit, r.key}}}})
	return string(b), err
}

// behind finds the jobs that wait for limits.
func (d db) behind(ctx context.Context, rows []row) ([]*waiter, error) {
	var all []*waiter
	seen := map[int64]bool{}
	for _, r := range rows {
		fragment, err := r.fragment()
		if err != nil {
			return nil, err
		}
		found, err := d.waiters(ctx, behindSQL, fragment)
		if err != nil {
			return nil, err
		}
		for _, w := range found {
			if !seen[w.id] && slices.Contains(w.ticket.rows(), r) {
				seen[w.id] = true
				all = append(all, w)
			}
		}
	}
	return all, nil
}
