package slotline

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/hand"
	"github.com/weir-go/weir/internal/jobs/riverjob"
)

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
	if WasGiven(job) {
		hold, err := g.slots.Claim(ctx, want, holderOf(job.ID))
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
		hold, err := g.slots.Take(ctx, want)
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
			moved = append(moved, &riverjob.Waiter{ID: j.ID, At: j.ScheduledAt, Due: riverjob.FarOff})
		}
		return g.Move(ctx, tx, moved, time.Now())
	})
	if err == nil {
		err = g.serve(ctx, []hand.Want{want})
	}
	return err
}

// givenKey is the key of a job's metadata that says that it was given a slot once.
const givenKey = "weir_slot"

// WasGiven says that a job was given a slot once.
func WasGiven(job *rivertype.JobRow) bool {
	return strings.Contains(string(job.Metadata), `"`+givenKey+`"`)
}

// holderOf is the holder of a slot that was given to a job, until the job claims it.
func holderOf(job int64) string {
	return uuid.NewSHA1(uuid.NameSpaceOID, fmt.Append(nil, "weir job ", job)).String()
}

// tenantOf is a place as a row has it: the length of the name, name and key.
func tenantOf(p hand.Place) string { return fmt.Sprintf("%d %s %s", len(p.Name), p.Name, p.Key) }

func placeOf(tenant string) (hand.Place, bool) {
	length, rest, _ := strings.Cut(tenant, " ")
	n, err := strconv.Atoi(length)
	if err != nil || n < 1 || n >= len(rest) || rest[n] != ' ' {
		return hand.Place{}, false
	}
	return hand.Place{Name: rest[:n], Key: rest[n+1:]}, true
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
