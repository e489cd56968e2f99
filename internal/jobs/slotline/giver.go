// Package slotline has jobs wait in line for slots, and gives slots from hand to hand. It keeps its
// rows of weir_turn, and makes jobs of river_job available. It knows nothing of tokens, nor of a
// job's attempt; the slots are those of internal/hand. A Giver may be used concurrently.
//
// A job that ends frees its slot and gives it to the first job that waits for the key, in one
// transaction: the slot's row names the job as its holder for claimIn, the job becomes available,
// and its row in line goes. When the job starts, it claims the slot.
//
// Three things are left to others: a job that gets in line just after the last slot was freed, or
// whose put-off is not written when a slot is freed, is looked after by its process until the
// put-off is written. Whatever else is free is found by the round of one client, once a second:
// what callers of slots.Do have released, what has expired, and what was not claimed.
//
//	giver.go   gives slots: when a job ends, when one gets in line, and once a second
//	follow.go  jobs in line whose put-off may not be written
//	number.go  how many slots there are
//	place.go   how rows and metadata name a place and a holder
//	sql.go     the statements
package slotline

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/hand"
	"github.com/weir-go/weir/internal/jobs/riverjob"
	"github.com/weir-go/weir/internal/pgerr"
)

const (
	claimIn     = 5 * time.Second
	handAgain   = 50 * time.Millisecond // after an error
	followFirst = 30 * time.Millisecond // after a put-off, to see whether it is written
	followEvery = 100 * time.Millisecond
	followFor   = 10 * time.Second
	passFor     = time.Minute // over a job that was refused
	mostPlaces  = 2000        // that a round looks at; the next one goes on behind them
	mostGiven   = 100         // slots of a place that are given in one go
	mostSwept   = 1000        // rows of jobs that have left, of a place and round
	mostLeft    = 10          // places in which a round deletes such rows
)

// Giver gives the slots of one client to the jobs that wait for them.
type Giver struct {
	*riverjob.Client
	slots hand.Slots // nil if there are none

	pace  riverjob.Pace
	after string // the last place of the round before; for the round under way only

	mu      sync.Mutex
	put     map[int64]putting     // jobs whose put-off may not be written; if there are any, followUp comes
	numbers map[hand.Place]number // how many slots there are, by the last job here that asked
	refused map[int64]time.Time   // when the database refused to make these jobs available
}

// NewGiver returns a Giver of these slots, if there are any.
func NewGiver(c *riverjob.Client, s hand.Slots) *Giver {
	return &Giver{Client: c, slots: s, numbers: map[hand.Place]number{},
		refused: map[int64]time.Time{}}
}

// None reports whether the scheduler has no slots.
func (g *Giver) None() bool { return g.slots == nil }

// putting is a job that is being put off.
type putting struct {
	want  hand.Want
	since time.Time
}

// HandOn frees the slot of a job that has ended, and gives it to the next job. If the database
// cannot be reached for a while, the slot expires.
func (g *Giver) HandOn(ctx context.Context, want hand.Want, hold hand.Hold) {
	slot, ok := hold.Drop()
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), riverjob.Patience)
	defer cancel()
	want.N = g.numberOf(want.Place, want.N) // it may have changed while the job ran
	_, err := g.hand(ctx, want, &slot)
	g.Warn(err, "a slot could not be handed on, and is free when it expires", "limit", want.Name,
		"key", want.Key)
}

// hand gives a slot to the first job that waits, after it has freed one if that is not nil. It
// reports whether there were both. It gives one slot in a transaction, so that two of them never
// wait for each other. A slot that is to be freed is tried again after an error that may pass,
// since it would stay held until it expires: if the first COMMIT has freed it after all, nothing is
// freed again, and another job gets a slot only if one is free. A job that the database refuses to
// make available is passed over.
func (g *Giver) hand(
	ctx context.Context, want hand.Want, free *hand.Slot,
) (given bool, err error) {
	for {
		var job int64
		err = g.Connected(ctx, func(c *pgxpool.Conn) (err error) {
			given, job, err = g.handBy(ctx, c, want, free)
			return err
		})
		if given && isRefused(err) && ctx.Err() == nil {
			g.passOver(job, err)
			continue
		}
		state := pgerr.State(err)
		conflict := state == "40001" || state == "40P01"
		if err != nil && (conflict || free != nil && mayPass(err)) && ctx.Err() == nil {
			if !conflict {
				time.Sleep(handAgain)
			}
			continue
		}
		if given = given && err == nil; given {
			g.Waker.Add(job, time.Now(), false)
		}
		return given, err
	}
}

// mayPass reports whether a later attempt may succeed: not if a right or a table is missing, nor on
// a pool that was closed.
func mayPass(err error) bool {
	return !strings.HasPrefix(pgerr.State(err), "42") && !riverjob.PoolClosed(err)
}

// isRefused reports whether an error is about a job's own row, which a constraint or a trigger of
// somebody else refuses, for example.
func isRefused(err error) bool {
	state := pgerr.State(err)
	return strings.HasPrefix(state, "22") || strings.HasPrefix(state, "23") ||
		strings.HasPrefix(state, "P0")
}

// passOver has a job that was refused not keep the slots from those behind it.
func (g *Giver) passOver(job int64, err error) {
	g.Warn(err, "a job could not be given a slot, and is passed over for a minute", "job", job)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.refused[job] = time.Now()
}

// passedOver are the jobs that were refused lately.
func (g *Giver) passedOver() []int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	maps.DeleteFunc(g.refused, func(_ int64, at time.Time) bool { return time.Since(at) > passFor })
	return slices.AppendSeq([]int64{}, maps.Keys(g.refused)) // an array, if an empty one
}

// handBy is the transaction of hand, in two round trips, or in three if a job waits. If it fails,
// the pool closes the connection. On Citus it does not ask for two-phase commit: a crash at COMMIT
// may give a slot to a job that is not woken for it, which costs claimIn.
func (g *Giver) handBy(
	ctx context.Context, c *pgxpool.Conn, want hand.Want, free *hand.Slot,
) (given bool, job int64, err error) {
	s, b, found := g.slots, &pgx.Batch{}, false
	tenant := tenantOf(want.Place)
	b.Queue("BEGIN ISOLATION LEVEL READ COMMITTED")
	b.Queue(riverjob.HangsSQL) // otherwise nobody could take the slot that it frees
	if free != nil {
		s.Free(b, *free)
	}
	var first row
	g.Queue(b, headSQL, []any{g.Schema, tenant, g.passedOver()}, func() { found = true },
		&first.Priority, &first.Due, &first.Job)
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
		b.Queue(g.SQL(givenSQL), g.Schema, tenant, first.Priority, first.Due, first.Job)
	}
	b.Queue("COMMIT")
	return given, first.Job, c.SendBatch(ctx, b).Close()
}

// serve gives the free slots of places to the jobs that wait for them, as many as there are by the
// last job here that asked: a want may be older. A place whose slots cannot be counted or given is
// not in the way of the others.
func (g *Giver) serve(ctx context.Context, wants []hand.Want) error {
	if len(wants) == 0 {
		return nil
	}
	places := make([]hand.Place, len(wants))
	for i, w := range wants {
		places[i] = w.Place
	}
	held, err := g.slots.Held(ctx, places)
	failed := []error{err}
	for _, w := range wants {
		w.N = g.numberOf(w.Place, w.N)
		n, given := held[w.Place]
		for most := min(w.N, n+mostGiven); given && n < most; n++ {
			given, err = g.hand(ctx, w, nil)
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// Fetched says that the client has fetched jobs, as a working client does: a round begins, if the
// last one began long enough ago.
func (g *Giver) Fetched() {
	if g.slots == nil {
		return
	}
	g.pace.Begin(riverjob.RoundEvery, riverjob.Patience, func(ctx context.Context) {
		g.Warn(g.handOutFree(ctx), "free slots could not be given to waiting jobs")
	})
}

// handOutFree is a round, if it is this client's turn. It gives free slots to waiting jobs, and
// deletes the rows of jobs that have left.
func (g *Giver) handOutFree(ctx context.Context) error {
	until, err := g.TakeTurn(ctx, riverjob.TurnOfHands, nil)
	if err != nil || until.IsZero() {
		return err
	}
	var wants []hand.Want
	var left []hand.Place
	var tenant string
	var n, read int
	var gone bool
	err = g.Query(ctx, g.Pool, placesSQL, []any{g.Schema, g.after, mostPlaces}, func() {
		g.after = tenant
		read++
		if of, ok := placeOf(tenant); ok {
			if wants = append(wants, hand.Want{Place: of, N: n}); gone && len(left) < mostLeft {
				left = append(left, of)
			}
		}
	}, &tenant, &n, &gone)
	if read < mostPlaces {
		g.after = ""
	}
	for _, of := range left {
		if err == nil {
			err = g.sweep(ctx, of)
		}
	}
	if err != nil {
		return err
	}
	return g.serve(ctx, wants)
}

// sweep deletes rows at the front of a line whose jobs have left.
func (g *Giver) sweep(ctx context.Context, of hand.Place) error {
	return g.InTx(ctx, func(tx pgx.Tx) error {
		var id int64
		var ids []int64
		err := g.Query(ctx, tx, firstSQL, []any{g.Schema, tenantOf(of), mostSwept}, func() {
			ids = append(ids, id)
		}, &id)
		if err != nil || len(ids) == 0 {
			return err
		}
		return g.Query(ctx, tx, goneSQL, []any{g.Schema, tenantOf(of), ids}, nil)
	})
}

// row is one of weir_turn.
type row struct {
	Priority int       `json:"priority"`
	Due      time.Time `json:"due"`
	Job      int64     `json:"job"`
}

// Take takes a slot for the job, or has it wait in line and returns nil.
func (g *Giver) Take(
	ctx context.Context, job *rivertype.JobRow, want hand.Want,
) (hand.Hold, error) {
	g.asked(want)
	if WasGiven(job) {
		hold, err := g.slots.Claim(ctx, g.Connected, want, holderOf(job.ID))
		if hold != nil || err != nil {
			return hold, err
		}
	}
	waits := false
	err := g.Connected(ctx, func(c *pgxpool.Conn) error {
		args := []any{g.Schema, tenantOf(want.Place)}
		return g.Query(ctx, c, othersSQL, args, func() {}, &waits)
	})
	if err != nil {
		return nil, err
	}
	if !waits {
		hold, err := g.slots.Take(ctx, g.Connected, want)
		if hold != nil || err != nil {
			return hold, err
		}
	}
	err = g.Connected(ctx, func(c *pgxpool.Conn) error {
		return g.lineUp(ctx, c, want, []*rivertype.JobRow{job})
	})
	if err == nil {
		g.follow(job.ID, want)
	}
	return nil, err
}

// HaveWait puts due jobs in line.
func (g *Giver) HaveWait(ctx context.Context, want hand.Want, jobs []*rivertype.JobRow) error {
	if len(jobs) == 0 {
		return nil
	}
	g.asked(want)
	err := g.InTx(ctx, func(tx pgx.Tx) error {
		locked, err := g.Lock(ctx, tx, jobs)
		jobs = slices.DeleteFunc(jobs, func(j *rivertype.JobRow) bool { return !locked[j.ID] })
		if err == nil {
			err = g.lineUp(ctx, tx, want, jobs)
		}
		if err != nil {
			return err
		}
		var moved []*riverjob.Waiter
		for _, j := range jobs {
			w := riverjob.Waiter{ID: j.ID, At: j.ScheduledAt, Due: riverjob.FarOff}
			moved = append(moved, &w)
		}
		return g.Move(ctx, tx, moved, time.Now())
	})
	if err == nil {
		err = g.serve(ctx, []hand.Want{want})
	}
	return err
}

// lineUp puts jobs in line, each where its scheduled_at has it.
func (g *Giver) lineUp(
	ctx context.Context, q riverjob.Querier, want hand.Want, jobs []*rivertype.JobRow,
) error {
	var turns []row
	for _, j := range jobs {
		turns = append(turns, row{Priority: j.Priority, Due: j.ScheduledAt, Job: j.ID})
	}
	return riverjob.Send(ctx, g.Store, q, lineUpSQL, turns, g.Schema, tenantOf(want.Place), want.N)
}

// List calls each with the first jobs that wait for a place, in their order, and says whether their
// queues are paused.
func List(
	ctx context.Context, s riverjob.Store, tx pgx.Tx, of hand.Place, most int,
	each func(id int64, paused bool),
) error {
	var id int64
	var paused bool
	args := []any{s.Schema, tenantOf(of), most}
	return s.Query(ctx, tx, forSlotSQL, args, func() { each(id, paused) }, &id, &paused)
}

// PlaceOf finds the place that a job waits for.
func PlaceOf(
	ctx context.Context, s riverjob.Store, tx pgx.Tx, job *rivertype.JobRow,
) (of hand.Place, found bool, err error) {
	if job.State != rivertype.JobStateScheduled ||
		job.ScheduledAt.UTC().Year() < riverjob.FarOff.Year()-1 {
		return of, false, nil
	}
	var tenant string
	args := []any{s.Schema, job.ID}
	err = s.Query(ctx, tx, placeOfJobSQL, args, func() { of, found = placeOf(tenant) }, &tenant)
	return of, found, err
}
