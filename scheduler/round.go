package scheduler

import (
	"context"
	"maps"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// The round. Once a second one of the clients looks at the jobs that wait, of all queues, from the
// next due on. It has those woken whose inserter may have died, makes those available that River's
// leader has not promoted yet, moves up jobs when tokens were given back before them, and puts off
// those of a paused limit before they are fetched for nothing. A job far ahead is left alone until
// its time comes near, so that it is moved once or twice, however often its line moves.
//
// Whose turn it is stands in a row of weir_slot, for three seconds at a time. Nothing depends on it
// but such moves: a job that no round has looked at starts at the time in its row, when its
// inserter wakes River or when River polls.

const (
	roundEvery = time.Second
	turnLasts  = 3 * time.Second
	hinted     = 250 * time.Millisecond  // between two rounds while jobs end that may give tokens back
	nearby     = 2500 * time.Millisecond // more than two rounds
	mostNext   = 1000                    // jobs that a round looks at, from the next due on,
	mostBehind = 2000                    // and of those behind them: all within some rounds
	enough     = 10 * time.Millisecond   // to move a job up
	later      = time.Second             // to put it off: by less, it is put off when it starts, if at all
)

// round is what a client remembers from one round to the next. Only the round under way uses it,
// but for mine.
type round struct {
	once
	holder string
	mine   atomic.Int64 // until when the turn is this client's, in nanoseconds

	walked time.Time       // when the jobs behind the next ones were last looked at,
	after  cursor          // and where that ended
	lines  map[row]placing // of the lines in which jobs have moved up lately
	watch  watch
}

// placing is where the last job of a line that was near was put, and where it belonged.
type placing struct{ put, due time.Time }

// cursor is a place among the jobs that wait.
type cursor struct {
	at *time.Time // nil: before all
	id int64
}

func (r *round) init() { r.holder, r.lines = uuid.NewString(), map[row]placing{} }

// beat begins a round, if the last one was long enough ago.
func (p *plugin) beat(gap time.Duration) {
	if !p.round.start(gap) {
		return
	}
	go func() {
		defer p.round.end()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		p.warn(p.lookAfter(ctx), "waiting jobs could not be looked after")
	}()
}

// hint says that a line may have moved: if it is this client's turn, the next round comes sooner.
func (p *plugin) hint() {
	if time.Now().UnixNano() < p.round.mine.Load() {
		time.AfterFunc(hinted, func() { p.beat(hinted) })
	}
}

const (
	// turnSQL takes the turn, or keeps it, and reads the jobs that wait: none if it is another client's turn.
	//
	// $4 River's schema $5 holder $6 for how long
	turnSQL = `WITH turn AS (
	INSERT INTO {slot} AS s (name, key, slot, holder, until)
	VALUES ('weir scheduler', coalesce($4::text, current_schema()), 0, $5::uuid, now() + $6::interval)
	ON CONFLICT (name, key, slot) DO UPDATE SET holder = excluded.holder, until = excluded.until
	WHERE s.holder = excluded.holder OR s.until <= now()
	RETURNING 1
)
SELECT * FROM (` + waitingSQL + `) j
UNION ALL SELECT 0, 0, '', now(), NULL FROM turn`

	// waitingSQL reads the jobs that wait, with tickets and without, in the order of time. It walks River's fetching index,
	// queue by queue and priority by priority, and reads at most so many rows of each.
	//
	// {turn} a table of one row, or of none $1 after this time, null for all $2 and id $3 most
	waitingSQL = `SELECT j.id, j.attempt, s.state::text, j.scheduled_at, j.ticket
FROM {turn} CROSS JOIN {river}river_queue q
	CROSS JOIN unnest('{available,scheduled}'::{river}river_job_state[]) AS s (state) CROSS JOIN generate_series(1, 4) AS p (priority)
	CROSS JOIN LATERAL (
		SELECT id, attempt, scheduled_at, metadata->'weir' AS ticket FROM {river}river_job
		WHERE state = s.state AND queue = q.name AND priority = p.priority
			AND (scheduled_at, id) > (coalesce($1::timestamptz, '-infinity'), $2::bigint)
			AND scheduled_at > CASE s.state WHEN 'available' THEN now() ELSE '-infinity' END
		ORDER BY scheduled_at, id LIMIT $3::integer
	) j
ORDER BY j.scheduled_at, j.id LIMIT $3::integer`
)

// lookAfter is one round.
func (p *plugin) lookAfter(ctx context.Context) error {
	r, d := &p.round, p.db()
	began := time.Now()
	next, last, err := d.walk(ctx, turnSQL, cursor{}, mostNext, p.schema, r.holder, turnLasts)
	if err != nil || last == nil { // another client's turn
		return err
	}
	r.mine.Store(began.Add(turnLasts).UnixNano())
	if err := p.arrange(ctx, next); err != nil {
		return err
	}
	if last.full && began.Sub(r.walked) >= roundEvery {
		r.walked = began
		if r.after.at == nil || r.after.at.Before(*last.at) {
			r.after = last.cursor
		}
		behind, end, err := d.walk(ctx, behindSQL, r.after, mostBehind)
		if err != nil {
			return err
		}
		r.after = cursor{}
		if end != nil && end.full {
			r.after = end.cursor
		}
		if err := p.arrange(ctx, behind); err != nil {
			return err
		}
	}
	return p.findGone(ctx, next)
}

// behindSQL reads the jobs behind those.
const behindSQL = `WITH turn AS (SELECT 1) ` + waitingSQL

// ending is where a walk has ended.
type ending struct {
	cursor
	full bool // there may be more
}

// walk returns the jobs with tickets among the next n that wait; no ending if there are none.
func (d db) walk(ctx context.Context, sql string, from cursor, n int, args ...any) ([]*waiter, *ending, error) {
	var all []*waiter
	var w waiter
	var raw []byte
	var end *ending
	rows := 0
	args = append([]any{from.at, from.id, n}, args...)
	err := d.query(ctx, sql, []any{&w.id, &w.attempt, &w.state, &w.at, &raw}, func() {
		if end == nil {
			end = &ending{}
		}
		if w.id == 0 { // says whose turn it is
			return
		}
		rows++
		at := w.at
		end.cursor = cursor{&at, w.id}
		if found, ok := w.read(raw); ok {
			all = append(all, found)
		}
	}, args...)
	if end != nil {
		end.full = rows == n
	}
	return all, end, err
}

// arrange moves the jobs whose time has changed and is near, and has those woken that are due
// before the next round.
func (p *plugin) arrange(ctx context.Context, jobs []*waiter) error {
	if len(jobs) == 0 {
		return nil
	}
	d := p.db()
	states, now, err := d.states(ctx, tickets(jobs))
	if err != nil {
		return err
	}
	answered := time.Now()
	maps.DeleteFunc(p.round.lines, func(_ row, l placing) bool { return now.Sub(l.put) > nearby })
	var moved []*waiter
	for _, w := range jobs {
		t := &w.ticket
		redefined := t.redefine(states, now)
		closed := p.round.watch.closeUp(t, now)
		due, by := t.reckon(states, now, p.scheduler.bunch)
		w.due = w.at
		put := p.spaced(t.rows(), by, due, now)
		if t.On != nil && !due.After(now) { // a pause is over: all that it has put off would start together
			put = latest(due, now.Add(time.Duration(t.Jitter)*time.Microsecond))
		}
		gain := w.at.Sub(put)
		if by < len(t.rows()) && states[t.rows()[by]].PausedUntil.After(now) {
			gain = min(gain, 0) // when the pause is over
		}
		switch {
		case t.Due == 0 && !due.After(w.at): // somebody wants it later than its tokens come: its worker, which has snoozed it
		case redefined,
			gain > max(enough, put.Sub(now)/4) && put.Sub(now) < nearby,
			due.Sub(latest(w.at, now)) > later && w.at.Sub(now) < nearby:
			w.due, w.changed = put, redefined || closed
			t.By = by
			if by < len(t.rows()) {
				p.round.lines[t.rows()[by]] = placing{put, due}
			}
		}
		promoted := w.state == "scheduled" && w.at.Sub(now) < horizon
		if !w.due.Equal(w.at) || promoted {
			moved = append(moved, w)
		}
	}
	if err := d.move(ctx, moved, now); err != nil {
		return err
	}
	for _, w := range jobs {
		if wait := w.due.Sub(now); wait < roundEvery+hinted {
			p.waker.add(w.id, answered.Add(wait), false)
		}
	}
	return nil
}

// spaced is when a job is due, and no earlier than now: of those that should have started between
// two rounds each comes as far from the one that was put last as it belongs, and not all come at
// once. In the next round they keep their places, unless their line has moved.
func (p *plugin) spaced(rows []row, by int, due, now time.Time) time.Time {
	if due.After(now) || by >= len(rows) {
		return latest(due, now)
	}
	if last, ok := p.round.lines[rows[by]]; ok {
		return latest(now, last.put.Add(due.Sub(last.due)))
	}
	return now
}
