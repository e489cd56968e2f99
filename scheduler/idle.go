package scheduler

import (
	"context"
	"sync"
	"time"
)

// Idle workers. When a job ends, River fetches again if its last fetch has filled all workers that
// were free. But a job that ends while River fetches frees a worker that this fetch does not count,
// and nothing has River fetch for it until another job ends or River polls, once a second. Jobs
// that were fetched together and take as long end together: then one worker gets the next job, and
// the others are idle until that one ends.
//
// So where jobs of a line end, and no fetch that has begun since finds out, River is notified.

// idleAfter is how long a fetch that follows by itself is waited for.
const idleAfter = 10 * time.Millisecond

// idle knows of each queue when the client fetched, and when jobs of a line have ended.
type idle struct {
	notify func(queue string)

	mu     sync.Mutex
	queues map[string]*fetches
}

// fetches are those of one queue.
type fetches struct {
	began time.Time // the last one
	found bool      // it has found jobs, so there may be more
	ended time.Time // the last job of a line
	asked bool      // for a look at this, soon
}

func (i *idle) of(queue string) *fetches {
	if i.queues == nil {
		i.queues = map[string]*fetches{}
	}
	f := i.queues[queue]
	if f == nil {
		f = &fetches{}
		i.queues[queue] = f
	}
	return f
}

// fetched notes a fetch that took so long, up to now.
func (i *idle) fetched(queue string, took time.Duration) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.of(queue).began = time.Now().Add(-took)
}

// found notes how many jobs it has found.
func (i *idle) found(queue string, n int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	f := i.of(queue)
	f.found = n > 0
	i.watch(queue, f)
}

// freed notes that a job of a line has ended.
func (i *idle) freed(queue string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	f := i.of(queue)
	f.ended = time.Now()
	i.watch(queue, f)
}

// watch has a worker that may be idle looked after. The lock is held.
func (i *idle) watch(queue string, f *fetches) {
	if f.asked || !f.idles() {
		return
	}
	f.asked = true
	time.AfterFunc(idleAfter, func() {
		i.mu.Lock()
		f.asked = false
		idles := f.idles()
		f.found = f.found && !idles // until a fetch finds more
		i.mu.Unlock()
		if idles {
			i.notify(queue)
		}
	})
}

// idles says that a worker became free after the last fetch had begun, and that there may be jobs.
func (f *fetches) idles() bool { return f.found && f.ended.After(f.began) }

// nudgeSQL has River's clients fetch from a queue.
//
// $1 River's schema, "" for the current $2 queue
const nudgeSQL = `SELECT set_config('synchronous_commit', 'off', true),
	pg_notify(pg_catalog.concat(coalesce(nullif($1::text, ''), current_schema()), '.river_insert'),
		pg_catalog.json_build_object('queue', $2::text)::text)`

func (p *plugin) nudge(queue string) {
	ctx, cancel := context.WithTimeout(context.Background(), wakeFor)
	defer cancel()
	err := p.query(ctx, p.pool, nudgeSQL, []any{p.schema, queue}, func() {}, nil, nil)
	p.warn(err, "workers may be idle for a second: River could not be notified", "queue", queue)
}
