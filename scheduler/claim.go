package scheduler

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// claimSQL takes what is due within the lead from a queue and puts it into the one beside, due at once for River, in the
// same order; it wakes those who work that. Without anything to claim it reads two ranges of River's fetching index and
// writes nothing.
//
// What is scheduled is River's leader's to promote, and may be late; what is too late is not to start, but to be paced anew.
// What is available and due by now is better left to the queue's own fetch, and a backlog of jobs that never were reserved
// must not be searched: only what is still ahead, or has been missed by a moment, is looked at.
//
// What was moved since it got its ticket, by a retry by hand say, is not for its due time any more and left alone.
//
// $1 queue $2 queue beside $3 lead $4 most $5 River's schema for notifications, null for the current $6 too late
const claimSQL = `WITH scheduled AS (
	SELECT id FROM {river}river_job
	WHERE state = 'scheduled' AND queue = $1::text AND priority IN (1, 2, 3, 4) AND scheduled_at <= now() + $3::interval
		AND scheduled_at > now() - $6::interval AND {ticket}
	ORDER BY scheduled_at LIMIT $4::integer FOR UPDATE SKIP LOCKED
), available AS (
	SELECT id FROM {river}river_job
	WHERE state = 'available' AND queue = $1::text AND priority IN (1, 2, 3, 4)
		AND scheduled_at > now() - interval '20 ms' AND scheduled_at <= now() + $3::interval
		AND {ticket}
	ORDER BY scheduled_at LIMIT $4::integer FOR UPDATE SKIP LOCKED
), claimed AS (
	UPDATE {river}river_job j SET state = 'available', queue = $2::text, scheduled_at = j.scheduled_at - $3::interval
	WHERE j.id IN (SELECT id FROM scheduled UNION ALL SELECT id FROM available)
		AND NOT EXISTS (SELECT 1 FROM {river}river_queue q WHERE q.name = $1::text AND q.paused_at IS NOT NULL)
	RETURNING j.id
)
SELECT count(*), CASE WHEN count(*) > 0 THEN
	pg_notify(concat(coalesce($5::text, current_schema()), '.river_insert'), json_build_object('queue', $2::text)::text) END
FROM claimed`

const (
	// dueSQL is when a job is due by its ticket, null if it has none: metadata is anybody's. Between two numbers of JSON are
	// only numbers, here those of the years up to 9999.
	dueSQL = `CASE WHEN metadata->'weir'->'due' BETWEEN '0' AND '253402300799999999' THEN to_timestamp((metadata->'weir'->>'due')::float8 / 1e6) END`

	// ticketSQL says that a job has a ticket for its next attempt, at its time.
	ticketSQL = dueSQL + ` - interval '1 s' < scheduled_at AND coalesce(metadata->'weir'->>'attempt', '0') = attempt::text`
)

// sweepSQL puts back into a queue what a killed client has held, what is to be tried again, and what nobody has fetched from
// the queue beside: of a kind, say, that no client there works.
//
// $1 queue $2 queue beside
const sweepSQL = `WITH left_over AS (
	SELECT id, state, {due} AS due
	FROM {river}river_job
	WHERE queue = $2::text AND state IN ('available', 'running', 'retryable', 'scheduled')
	FOR UPDATE SKIP LOCKED
)
UPDATE {river}river_job j SET queue = $1::text,
	state = CASE j.state WHEN 'running' THEN 'available' ELSE j.state END,
	attempt = CASE j.state WHEN 'running' THEN greatest(j.attempt - 1, 0) ELSE j.attempt END,
	scheduled_at = CASE WHEN j.state IN ('running', 'available') THEN coalesce(l.due, j.scheduled_at) ELSE j.scheduled_at END
FROM left_over l
WHERE j.id = l.id AND (l.state IN ('retryable', 'scheduled')
	OR l.state = 'available' AND coalesce(l.due, j.scheduled_at) < now() - interval '10 s'
	OR l.state = 'running' AND j.attempted_at < now() - interval '30 s' AND j.scheduled_at < l.due - interval '1 s')
RETURNING j.id`

const (
	pace       = 10 * time.Millisecond  // between two claims while jobs are expected
	linger     = 250 * time.Millisecond // after the last of them: its transaction may take that long to commit
	sweepEvery = 10 * time.Second
	patience   = 10 * time.Second // with the database
)

// line is one queue and the queue beside it.
type line struct {
	plugin        *plugin
	queue, beside string
	slots         chan struct{} // MaxWorkers of the queue: one for each job that runs
	busy          atomic.Int64  // jobs that came from the queue beside

	mu       sync.Mutex
	claiming bool
	again    bool
	until    time.Time // claims follow one another until then
	beat     time.Time // the last fetch of the client
	swept    time.Time

	recalls chan struct{} // closed when jobs without a slot are to be paced anew; nil while nobody waits

	tending atomic.Bool
	tended  tended
}

// poke claims, and goes on for so long.
func (l *line) poke(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if d == 0 {
		l.beat = now
		if l.tending.CompareAndSwap(false, true) {
			go l.tend()
		}
	}
	if until := now.Add(min(d, lead)); until.After(l.until) {
		l.until = until
	}
	l.again = true
	if !l.claiming {
		l.claiming = true
		go l.claims()
	}
}

// recalled is closed by the next recall.
func (l *line) recalled() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.recalls == nil {
		l.recalls = make(chan struct{})
	}
	return l.recalls
}

func (l *line) recall() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.recalls != nil {
		close(l.recalls)
		l.recalls = nil
	}
}

// rest claims nothing until the client fetches again: it is being stopped.
func (l *line) rest() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.beat, l.until, l.again = time.Time{}, time.Time{}, false
}

// alive says that the client works.
func (l *line) alive() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Since(l.beat) < 2*lead
}

func (l *line) claims() {
	for l.more() {
		began := time.Now()
		n, err := l.claim()
		if err != nil {
			l.plugin.logger.Warn("scheduler: reserved jobs of the queue will start late", "queue", l.queue, "error", err)
			l.mu.Lock()
			l.until = time.Time{} // the next beat tries again
			l.mu.Unlock()
		}
		if n > 0 { // where one comes others may
			l.mu.Lock()
			l.until = latest(l.until, began.Add(linger))
			l.mu.Unlock()
		}
		time.Sleep(time.Until(began.Add(pace)))
	}
}

// more tells whether to claim once more.
func (l *line) more() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.again && !time.Now().Before(l.until) {
		l.claiming = false
		return false
	}
	l.again = false
	return true
}

// claim returns how many jobs it claimed.
func (l *line) claim() (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	p := l.plugin
	if time.Since(l.swept) > sweepEvery { // by this goroutine only
		l.swept = time.Now()
		if err := p.db().query(ctx, sweepSQL, nil, nil, l.queue, l.beside); err != nil {
			return 0, err
		}
	}
	room := min(held-int(l.busy.Load()), held/2)
	if room <= 0 {
		return 0, nil
	}
	var n int
	err := p.db().query(ctx, claimSQL, []any{&n, nil}, nil, l.queue, l.beside, lead, room, p.schema, tooLate)
	return n, err
}

func (p *plugin) db() db { return db{p.pool, p.tables} }
