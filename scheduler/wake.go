package scheduler

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

// On time. River fetches when it is notified, and else once a second. So a process that knows when
// a job will be due, as it has reserved the job or as it is its turn to look (round.go), sends
// River's own insert notification at that moment.

const (
	wakeAfter = 500 * time.Microsecond // after the due time: a little late beats a fetch for nothing
	wakeRetry = 5 * time.Millisecond   // to look again for a job that cannot be seen yet; then twice that
	wakeFor   = 2 * time.Second        // how long it is looked for
	wakeGap   = 2 * time.Millisecond   // between two statements of a process
	mostSent  = 100                    // statements a second, and at once
	mostWakes = 5000                   // that are remembered; River's poll finds the others
	mostAsked = 1000                   // in one statement
)

// wake is a job that will be due.
type wake struct {
	at    time.Time // by the program's clock
	pause time.Duration
	back  bool // it is being put off: its row may still say that it runs
}

// seen is how the row of a job stood.
type seen struct {
	state string
	wait  time.Duration // until it is due
}

// waker wakes River when jobs are due. It has no goroutine of its own while it waits.
type waker struct {
	send func(ids []int64) (map[int64]seen, error)

	mu    sync.Mutex
	wakes map[int64]wake
	timer *time.Timer
	last  time.Time
	left  float64 // statements that may be sent now, as of last
	going bool
}

func (w *waker) len() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.wakes)
}

// add remembers a job that will be due at an instant of the program's clock. If it is remembered
// for an earlier one, its row will tell.
func (w *waker) add(id int64, due time.Time, back bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := due.Add(wakeAfter)
	known, ok := w.wakes[id]
	if ok && !at.Before(known.at) || !ok && len(w.wakes) >= mostWakes {
		return
	}
	if w.wakes == nil {
		w.wakes, w.timer = map[int64]wake{}, time.AfterFunc(time.Hour, w.run)
	}
	w.wakes[id] = wake{at, wakeRetry, back}
	w.set()
}

// set sets the timer to the next wake. The lock is held.
func (w *waker) set() {
	if w.going || len(w.wakes) == 0 {
		return
	}
	gap := wakeGap
	if w.left < 1 {
		gap = time.Second / mostSent
	}
	next := time.Now().Add(time.Hour)
	for _, k := range w.wakes {
		if k.at.Before(next) {
			next = k.at
		}
	}
	w.timer.Reset(max(time.Until(next), time.Until(w.last.Add(gap))))
}

// run sends for all whose time has come.
func (w *waker) run() {
	w.mu.Lock()
	defer w.mu.Unlock()
	now, due := time.Now(), map[int64]wake{}
	for id, k := range w.wakes {
		if !w.going && !k.at.After(now) && len(due) < mostAsked {
			due[id] = k
			delete(w.wakes, id)
		}
	}
	if len(due) > 0 {
		w.left = min(mostSent, w.left+mostSent*now.Sub(w.last).Seconds()) - 1
		w.going, w.last = true, now
		w.mu.Unlock()
		rows, err := w.send(slices.Collect(maps.Keys(due)))
		w.mu.Lock()
		w.going = false
		for id, k := range due {
			row, found := rows[id]
			if _, ok := w.wakes[id]; err == nil && !ok && k.again(row, found) {
				w.wakes[id] = k
			}
		}
	}
	w.set()
}

// again decides whether a job is to be looked for again, and when.
func (k *wake) again(row seen, found bool) bool {
	switch {
	case found && row.state == "available" && row.wait > 0 && row.wait < wakeFor:
		k.at = time.Now().Add(row.wait + wakeAfter)
	case !found, k.back && row.state == "running":
		// Its insert is not committed yet, or the put-off not written.
		k.at = time.Now().Add(k.pause)
		k.pause *= 2
	default:
		return false
	}
	return k.pause < wakeFor
}

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

func (p *plugin) wake(ids []int64) (map[int64]seen, error) {
	ctx, cancel := context.WithTimeout(context.Background(), wakeFor)
	defer cancel()
	rows := make(map[int64]seen, len(ids))
	var id int64
	var row seen
	err := p.query(ctx, p.pool, wakeSQL, []any{ids, p.schema}, func() {
		rows[id] = row
	}, &id, &row.state, &row.wait, nil, nil)
	p.warn(err, "reserved jobs start up to a second late: River could not be woken", "jobs", len(ids))
	return rows, err
}
