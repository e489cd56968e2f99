package scheduler

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/hand"
	"github.com/weir-go/weir/internal/jobs/fairline"
	"github.com/weir-go/weir/internal/jobs/pace"
	"github.com/weir-go/weir/internal/jobs/riverjob"
)

// Slots go from hand to hand. A job that ends frees its slot and gives it to the first job that
// waits for the key, in one transaction: the slot's row names the job as its holder for claimIn,
// the job becomes available, and its row in line goes. When the job starts, it claims the slot.
//
// Three things are left to others: a job that gets in line just after the last slot was freed, or
// whose put-off is not written when a slot is freed, is looked after by its process until the
// put-off is written. Whatever else is free is found by the round of one client, once a second:
// what callers of slots.Do have released, what has expired, and what was not claimed.

const (
	claimIn     = 5 * time.Second
	followFirst = 30 * time.Millisecond // after a put-off, to see whether it is written
	followEvery = 100 * time.Millisecond
	followFor   = 10 * time.Second
	mostPlaces  = 2000 // that a round looks at; the next one goes on behind them
	mostGiven   = 100  // slots of a place that are given in one go
	mostSwept   = 1000 // rows of jobs that have left, of a place and round
	mostLeft    = 10   // places of which a round deletes them
)

// hands is what a client remembers of the slots that it gives.
type hands struct {
	pace.Pace
	after string // the last place of the round before; for the round under way only

	mu  sync.Mutex
	put map[int64]putting // jobs whose put-off may not be written; if there are any, followUp comes
}

// putting is a job that is being put off.
type putting struct {
	want  hand.Want
	since time.Time
}

// handOn frees the slot of a job that has ended, and gives it to the next job. If the database
// cannot be reached, the slot expires.
func (p *plugin) handOn(ctx context.Context, want hand.Want, hold hand.Hold) {
	slot, ok := hold.Drop()
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), riverjob.Patience)
	defer cancel()
	_, err := p.hand(ctx, want.Place, &slot)
	p.Warn(err, "a slot could not be handed on, and is free when it expires", "limit", want.Name,
		"key", want.Key)
}

// hand gives a slot to the first job that waits, after it has freed one if that is not nil. It
// reports whether there were both. It gives one slot in a transaction, so that two of them never
// wait for each other.
func (p *plugin) hand(ctx context.Context, of hand.Place, free *hand.Slot) (given bool, err error) {
	for {
		var job int64
		err = p.Connected(ctx, func(c *pgxpool.Conn) (err error) {
			given, job, err = p.handBy(ctx, c, of, free)
			return err
		})
		var e *pgconn.PgError
		if errors.As(err, &e) && (e.Code == "40001" || e.Code == "40P01") && ctx.Err() == nil {
			continue
		}
		if given = given && err == nil; given {
			p.Waker.Add(job, time.Now(), false)
		}
		return given, err
	}
}

// handBy is the transaction of hand, in two round trips, or in three if a job waits. If it fails,
// the pool closes the connection.
func (p *plugin) handBy(
	ctx context.Context, c *pgxpool.Conn, of hand.Place, free *hand.Slot,
) (given bool, job int64, err error) {
	s, b, found := p.scheduler.slots, &pgx.Batch{}, false
	b.Queue("BEGIN ISOLATION LEVEL READ COMMITTED")
	if free != nil {
		s.Free(b, *free)
	}
	var first fairline.Row
	want := hand.Want{Place: of}
	b.Queue(p.SQL(headSQL), p.Schema, tenantOf(of)).Query(func(rows pgx.Rows) error {
		columns := []any{&first.Priority, &first.Due, &first.Job, &want.N}
		_, err := pgx.ForEachRow(rows, columns, func() error { found = true; return nil })
		return err
	})
	if err := c.SendBatch(ctx, b).Close(); err != nil {
		return false, 0, err
	}
	if found {
		given, err = s.Give(ctx, c, want, holderOf(first.Job), claimIn)
		if err != nil {
			return false, 0, err
		}
	}
	b = &pgx.Batch{}
	if given {
		b.Queue(p.SQL(givenSQL), p.Schema, tenantOf(of),
			first.Priority, first.Due, first.Job)
	}
	b.Queue("COMMIT")
	return given, first.Job, c.SendBatch(ctx, b).Close()
}

// serve gives the free slots of places to the jobs that wait for them.
func (p *plugin) serve(ctx context.Context, wants []hand.Want) error {
	if len(wants) == 0 {
		return nil
	}
	places := make([]hand.Place, len(wants))
	for i, w := range wants {
		places[i] = w.Place
	}
	held, err := p.scheduler.slots.Held(ctx, p.Pool, places)
	if err != nil {
		return err
	}
	for _, w := range wants {
		given := true
		for n := held[w.Place]; given && n < w.N && n < held[w.Place]+mostGiven; n++ {
			if given, err = p.hand(ctx, w.Place, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// handOut begins a round, if the last one was long enough ago.
func (p *plugin) handOut() {
	if p.scheduler.slots == nil {
		return
	}
	p.hands.Begin(riverjob.RoundEvery, riverjob.Patience, func(ctx context.Context) {
		p.Warn(p.handOutFree(ctx), "free slots could not be given to waiting jobs")
	})
}

// handOutFree is a round, if it is this client's turn: it gives what is free, and deletes the rows
// of jobs that have left.
func (p *plugin) handOutFree(ctx context.Context) error {
	h := &p.hands
	until, err := pace.TakeTurn(ctx, p.Client, pace.Hands)
	if err != nil || until.IsZero() {
		return err
	}
	var wants []hand.Want
	var left []hand.Place
	var tenant string
	var n int
	var gone bool
	err = p.Query(ctx, p.Pool, placesSQL, []any{p.Schema, h.after, mostPlaces}, func() {
		h.after = tenant
		if of, ok := placeOf(tenant); ok {
			if wants = append(wants, hand.Want{Place: of, N: n}); gone && len(left) < mostLeft {
				left = append(left, of)
			}
		}
	}, &tenant, &n, &gone)
	if len(wants) < mostPlaces {
		h.after = ""
	}
	for _, of := range left {
		if err == nil {
			err = p.sweep(ctx, of)
		}
	}
	if err != nil {
		return err
	}
	return p.serve(ctx, wants)
}

// sweep deletes rows at the front of a line whose jobs have left.
func (p *plugin) sweep(ctx context.Context, of hand.Place) error {
	return p.InTx(ctx, func(tx pgx.Tx) error {
		var id int64
		var ids []int64
		err := p.Query(ctx, tx, firstSQL, []any{p.Schema, tenantOf(of), mostSwept}, func() {
			ids = append(ids, id)
		}, &id)
		if err != nil || len(ids) == 0 {
			return err
		}
		return p.Query(ctx, tx, goneSQL, []any{p.Schema, tenantOf(of), ids}, nil)
	})
}

// follow looks after a job that gets in line until its put-off is written.
func (p *plugin) follow(id int64, want hand.Want) {
	h := &p.hands
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.put) == 0 {
		h.put = map[int64]putting{}
		time.AfterFunc(followFirst, p.followUp)
	}
	h.put[id] = putting{want, time.Now()}
}

// followUp serves the places of those whose put-off is written by now.
func (p *plugin) followUp() {
	h := &p.hands
	h.mu.Lock()
	ids := slices.Collect(maps.Keys(h.put))
	h.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), riverjob.Patience)
	defer cancel()
	running, err := p.Which(ctx, p.Pool, runningSQL, ids)

	h.mu.Lock()
	wants := map[hand.Want]bool{}
	for _, id := range ids {
		if w := h.put[id]; err == nil && !running[id] {
			wants[w.want] = true
			delete(h.put, id)
		} else if time.Since(w.since) > followFor {
			delete(h.put, id) // the round finds it
		}
	}
	if len(h.put) > 0 {
		time.AfterFunc(followEvery, p.followUp)
	}
	h.mu.Unlock()
	if err == nil {
		err = p.serve(ctx, slices.Collect(maps.Keys(wants)))
	}
	p.Warn(err, "jobs that wait for slots could not be looked after", "jobs", len(ids))
}
