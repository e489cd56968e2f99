// Package rounds looks after the jobs that wait, of all queues, from the next due on: once a
// second, in the client whose turn it is. It has those woken whose inserter may have died, makes
// those available that River's leader has not promoted yet, moves up jobs when tokens were given
// back before them, and puts off those of a paused limit before they are fetched for nothing. A job
// far ahead is left alone until its time comes near, so that it is moved once or twice, however
// often its line moves. It also gives back what jobs took that have gone, and starts those again
// that wait for a turn or a slot in no line.
//
// It knows nothing of jobs that run, nor of the others in fair lines or that wait for slots.
// Nothing depends on it but such moves: a job that no round has looked at starts at the time in its
// row, when its inserter wakes River or when River polls. Rounds may be used concurrently: one
// round of a client is under way at a time.
//
//	rounds.go  what a round does, for the jobs that wait for tokens
//	gone.go    gives back what jobs took that have gone
//	lost.go    jobs that wait in no line
package rounds

import (
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/jobs/riverjob"
	"github.com/weir-go/weir/internal/jobs/ticket"
)

const (
	hinted     = 250 * time.Millisecond  // between two rounds while jobs end, and may give back
	nearby     = 2500 * time.Millisecond // more than two rounds
	mostNext   = 1000                    // jobs that a round looks at, from the next due on,
	mostBehind = 2000                    // and of those behind them: all within some rounds
	enough     = 10 * time.Millisecond   // to move a job up
	later      = time.Second             // to put it off: by less, its start puts it off
)

// Rounds are those of one client. Only the round under way uses what follows on hinted.
type Rounds struct {
	*riverjob.Client
	pace   riverjob.Pace
	mine   atomic.Int64 // until when the turn is this client's, in nanoseconds
	hinted atomic.Bool  // there is a timer for the next one

	walked time.Time              // when the jobs behind the next ones were last looked at,
	after  *riverjob.Waiter       // and behind which one that goes on; nil for the last of the next
	lines  map[ticket.Row]placing // of the lines in which jobs have moved up lately
	watch  watch
	sought time.Time // when jobs that wait in no line were looked for
}

// New returns the Rounds of a client.
func New(c *riverjob.Client) *Rounds { return &Rounds{Client: c, lines: map[ticket.Row]placing{}} }

// placing is where the last job of a line that was near was put, and where it belonged.
type placing struct{ put, due time.Time }

// Begin begins a round, if the last one began long enough ago.
func (r *Rounds) Begin() { r.begin(riverjob.RoundEvery) }

func (r *Rounds) begin(gap time.Duration) {
	r.pace.Begin(gap, riverjob.Patience, func(ctx context.Context) {
		r.Warn(r.lookAfter(ctx), "waiting jobs could not be looked after")
	})
}

// Hint says that a line may have moved: if it is this client's turn, the next round comes sooner.
// One hint at a time has a timer, as jobs end in thousands.
func (r *Rounds) Hint() {
	if time.Now().UnixNano() < r.mine.Load() && r.hinted.CompareAndSwap(false, true) {
		time.AfterFunc(hinted, func() {
			r.hinted.Store(false)
			r.begin(hinted)
		})
	}
}

const (
	// waitingSQL reads the jobs that wait, with tickets and without, in the order of time. It walks
	// River's fetching index, queue by queue and priority by priority, and reads at most so many
	// rows of each. Those that wait for their turn in a line, until 2200, are left out.
	//
	// $1 after this time $2 and id $3 most
	waitingSQL = `SELECT j.id, j.attempt, s.state::text, j.scheduled_at, j.ticket
FROM {river}river_queue q
	CROSS JOIN pg_catalog.unnest('{available,scheduled}'::{river}river_job_state[]) AS s (state)
	CROSS JOIN generate_series(1, 4) AS p (priority)
	CROSS JOIN LATERAL (
		SELECT id, attempt, scheduled_at, metadata->'weir'::text AS ticket FROM {river}river_job
		WHERE state OPERATOR(pg_catalog.=) s.state AND queue = q.name AND priority = p.priority
			AND (scheduled_at, id) > ($1::timestamptz, $2::bigint)
			AND scheduled_at < '2199-12-31'
			AND scheduled_at > CASE WHEN s.state OPERATOR(pg_catalog.=) 'available' THEN now() ELSE '-infinity' END
		ORDER BY scheduled_at, id LIMIT $3::integer
	) j
ORDER BY j.scheduled_at, j.id LIMIT $3::integer`
)

// seen is what a round reads first.
type seen struct {
	next []*riverjob.Waiter // the jobs that wait, with tickets and without, from the next due on
	gone []*riverjob.Waiter // the jobs with tickets that were cancelled, where it is time to look
}

// lookAfter is one round. While it stays this client's turn, a round in which nothing waits is one
// round trip.
func (r *Rounds) lookAfter(ctx context.Context) error {
	began := time.Now()
	var s seen
	read := func(b *pgx.Batch) {
		r.QueueWaiters(b, &s.next, waitingSQL, time.Time{}, 0, mostNext)
		if r.watch.isDue(began) {
			r.QueueWaiters(b, &s.gone, cancelledSQL, r.watch.args()...)
		}
	}
	var before func(b *pgx.Batch)
	if r.mine.Load() > began.UnixNano() && !r.watch.isOld(began) {
		before = read
	}
	until, err := r.TakeTurn(ctx, riverjob.TurnOfRounds, before)
	if err != nil {
		return err
	}
	if until.IsZero() {
		r.mine.Store(0)
		r.sought = time.Time{}
		r.watch.seen = nil // the other client may move them up, and they be worked and deleted
		return nil
	}
	now := until.Add(-riverjob.TurnLasts)
	r.mine.Store(began.Add(riverjob.TurnLasts).UnixNano())
	if before == nil { // the turn was another client's
		if r.watch.isOld(began) {
			r.watch = watch{from: now.Add(-lookBack)}
		}
		b := &pgx.Batch{}
		read(b)
		if err := r.Pool.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
	}
	next := waiting(s.next)
	jobs := next
	if len(s.next) == mostNext && began.Sub(r.walked) >= riverjob.RoundEvery {
		r.walked = began
		behind, err := r.walkBehind(ctx, s.next[mostNext-1])
		if err != nil {
			return err
		}
		jobs = append(jobs, behind...)
	}
	err = r.arrange(ctx, jobs)
	// The clock is ahead, by the time that the answer took.
	clock := riverjob.Clock{At: now, Answered: began}
	return errors.Join(err, r.findGone(ctx, next, s.gone, clock), r.findLost(ctx, began))
}

// walkBehind returns, of the jobs with tickets behind the last of the next, those behind where it
// ended the last time.
func (r *Rounds) walkBehind(
	ctx context.Context, last *riverjob.Waiter,
) (_ []*riverjob.Waiter, err error) {
	if r.after == nil || r.after.At.Before(last.At) {
		r.after = last
	}
	all, err := r.Waiters(ctx, r.Pool, waitingSQL, r.after.At, r.after.ID, mostBehind)
	if r.after = nil; len(all) == mostBehind {
		r.after = all[mostBehind-1]
	}
	return waiting(all), err
}

// waiting are those of the jobs that wait for what their tickets say.
func waiting(all []*riverjob.Waiter) []*riverjob.Waiter {
	return slices.DeleteFunc(slices.Clone(all), func(w *riverjob.Waiter) bool {
		return !w.Ticket.Waits(w.Attempt)
	})
}

// arrange moves the jobs whose time has changed and is near, and has those woken that are due
// before the next round.
func (r *Rounds) arrange(ctx context.Context, jobs []*riverjob.Waiter) error {
	for _, w := range jobs {
		w.Differs = r.watch.gaps.CloseUp(&w.Ticket, math.MaxInt64)
	}
	now, err := r.ReckonEach(ctx, r.Pool, jobs)
	if err != nil {
		return err
	}
	answered := time.Now()
	maps.DeleteFunc(r.lines, func(_ ticket.Row, l placing) bool { return now.Sub(l.put) > nearby })
	var moved []*riverjob.Waiter
	for i, w := range jobs {
		t, due, of := &w.Ticket, w.Due, w.Ticket.WaitsFor()
		// Of jobs that should have started between two rounds, each comes as far from the one that
		// was put last as it belongs, or all would come at once. In the next round they keep their
		// places, unless their line has moved.
		put := ticket.Latest(due, now)
		if last, ok := r.lines[of]; ok && !due.After(now) {
			put = ticket.Latest(now, last.put.Add(due.Sub(last.due)))
		}
		// Nor all that a pause has put off, when it is over: they belong nowhere.
		if (t.On != nil || t.Used || !t.Ahead()) && !due.After(now) {
			put = now.Add(t.Delay())
		}
		gain := w.At.Sub(put)
		if w.Paused.After(now) {
			gain = min(gain, 0) // when the pause is over
		}
		late := w.Late(now)
		w.Due = w.At
		switch {
		case late: // it pays anew, when it starts
		case t.Due == 0 && !due.After(w.At): // its worker wants it later: it has snoozed it
		case w.Redefined,
			gain > max(enough, put.Sub(now)/4) && put.Sub(now) < nearby,
			due.Sub(ticket.Latest(w.At, now)) > later && w.At.Sub(now) < nearby:
			if w.Due = put; !t.Used { // else it has no place there
				r.lines[of] = placing{put, due}
			}
		}
		if !w.Due.Equal(w.At) || w.State == "scheduled" && i < riverjob.MostAvailable &&
			w.At.Sub(now) < riverjob.Horizon {
			moved = append(moved, w)
		}
	}
	if err := r.Move(ctx, r.Pool, moved, now); err != nil {
		return err
	}
	for _, w := range jobs {
		if wait := w.Due.Sub(now); wait < riverjob.RoundEvery+hinted {
			r.Waker.Add(w.ID, answered.Add(wait), false)
		}
	}
	return nil
}
