package slotline

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/hand"
	"github.com/weir-go/weir/internal/jobs/riverjob"
)

// putting is a job that is in line, and whose put-off may not be written.
type putting struct {
	job   *rivertype.JobRow
	want  hand.Want
	since time.Time // it got in line, or the database could not be asked
}

// follow looks after a job that gets in line until its put-off is written. A client of River that
// cannot reach the database tries again until it can.
func (g *Giver) follow(job *rivertype.JobRow, want hand.Want) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.put) == 0 {
		g.put = map[int64]putting{}
		time.AfterFunc(followFirst, g.followUp)
	}
	g.put[job.ID] = putting{job, want, time.Now()}
}

// followUp serves the places of those whose put-off is written by now. A job may have been rescued
// before, have lost its place, and run again when its put-off is written: it gets in line again.
func (g *Giver) followUp() {
	g.mu.Lock()
	ids := slices.Collect(maps.Keys(g.put))
	g.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), riverjob.Patience)
	defer cancel()
	type standing struct {
		running, waits bool
		errors         int
	}
	var id int64
	var is standing
	stand := map[int64]standing{}
	err := g.Query(ctx, g.Pool, StandingSQL, []any{ids}, func() { stand[id] = is },
		&id, &is.running, &is.waits, &is.errors)

	g.mu.Lock()
	wants := map[hand.Place]hand.Want{} // one for each place: its free slots are counted once
	var lost []putting
	gap := followEvery
	for _, id := range ids {
		p, is := g.put[id], stand[id]
		rescued := is.errors > len(p.job.Errors) // which River's completer does not know
		switch {
		case err != nil:
			p.since, gap = time.Now(), riverjob.RoundEvery
			g.put[id] = p
			continue
		case rescued && is.waits:
			lost = append(lost, p)
		case (rescued || is.running) && time.Since(p.since) < followFor:
			continue
		}
		wants[p.want.Place] = p.want
		delete(g.put, id)
	}
	if len(g.put) > 0 && (err == nil || !riverjob.PoolClosed(err)) {
		time.AfterFunc(gap, g.followUp)
	}
	g.mu.Unlock()
	for _, p := range lost {
		if err == nil {
			err = g.Connected(ctx, func(c *pgxpool.Conn) error {
				return g.lineUp(ctx, c, p.want, []*rivertype.JobRow{p.job})
			})
		}
	}
	if err == nil {
		err = g.serve(ctx, slices.Collect(maps.Values(wants)))
	}
	g.Warn(err, "jobs that wait for slots could not be looked after", "jobs", len(ids))
}
