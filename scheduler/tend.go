package scheduler

import (
	"context"
	"math/bits"
	"time"
)

// What has to be looked after while jobs wait, beside the claims: jobs that come earlier than they are scheduled, as those
// ahead of them have used less than they took; jobs that were cancelled or deleted, whose tokens are to be given back; and
// jobs that nobody has worked for a while.

const (
	tendEvery  = 250 * time.Millisecond
	watchEvery = 2 * time.Second
	mostTended = 1000   // at once
	mostSeen   = 10_000 // of the jobs that wait
	cancelled  = 24 * time.Hour
)

// tended is what a line remembers of it. Only one goroutine at a time uses it.
type tended struct {
	n       int
	last    time.Time
	watched time.Time
	cost    time.Duration     // of the last watch
	since   time.Duration     // how far back the next one looks
	seen    map[int64]*ticket // that waited when it was last looked
	freed   map[int64]time.Time
}

func (l *line) tend() {
	defer l.tending.Store(false)
	t := &l.tended
	gap := time.Since(t.last)
	if gap < tendEvery {
		return
	}
	t.last = time.Now()
	t.n++
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := error(nil)
	if gap > tooLate { // it has just been started, or was away
		p := pacing{queue: l.queue}
		l.plugin.paces.ask(&p)
		err = p.err
	}
	if err == nil {
		err = l.advance(ctx)
	}
	if err == nil && time.Since(t.watched) > max(watchEvery, 50*t.cost) {
		began := time.Now()
		err = l.watch(ctx)
		t.watched, t.cost = time.Now(), time.Since(began)
	}
	if err != nil {
		l.plugin.logger.Warn("scheduler: waiting jobs could not be looked after", "queue", l.queue, "error", err)
	}
}

// aheadSQL finds the jobs of a queue that are due within a while and not claimed.
//
// $1 queue $2 from $3 to $4 most
const aheadSQL = `SELECT id, metadata->'weir' FROM {river}river_job
WHERE queue = $1::text AND state IN ('available', 'scheduled') AND priority IN (1, 2, 3, 4)
	AND scheduled_at > now() + $2::interval AND scheduled_at <= now() + $3::interval AND {ticket}
ORDER BY scheduled_at LIMIT $4::integer`

// advance brings those forward that may start earlier. A job far ahead need not be right: it is written only when it gains a
// quarter of the time that it has to wait yet, so a few times in all. Every fourth round looks four times as far ahead, every
// fourth of these again, and so on.
func (l *line) advance(ctx context.Context) error {
	d := l.plugin.db()
	horizon := 4 * lead << min(2*(bits.TrailingZeros(uint(l.tended.n))/2), 18) //nolint:gosec // counts up
	waiting, err := d.waiters(ctx, aheadSQL, l.queue, lead, horizon, mostTended)
	if err != nil {
		return err
	}
	moved, err := d.forward(ctx, waiting, l.plugin.scheduler.bunch, func(gain, wait time.Duration) bool {
		return gain > max(pace, wait/4)
	})
	if len(moved) > 0 {
		l.poke(2 * tendEvery)
	}
	return err
}
