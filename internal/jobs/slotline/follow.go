package slotline

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/weir-go/weir/internal/hand"
	"github.com/weir-go/weir/internal/jobs/riverjob"
)

// follow looks after a job that gets in line until its put-off is written.
func (g *Giver) follow(id int64, want hand.Want) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.put) == 0 {
		g.put = map[int64]putting{}
		time.AfterFunc(followFirst, g.followUp)
	}
	g.put[id] = putting{want, time.Now()}
}

// followUp serves the places of those whose put-off is written by now.
func (g *Giver) followUp() {
	g.mu.Lock()
	ids := slices.Collect(maps.Keys(g.put))
	g.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), riverjob.Patience)
	defer cancel()
	running, err := g.Which(ctx, g.Pool, RunningSQL, ids)

	g.mu.Lock()
	wants := map[hand.Place]hand.Want{} // one for each place: its free slots are counted once
	for _, id := range ids {
		if w := g.put[id]; err == nil && !running[id] {
			wants[w.want.Place] = w.want
			delete(g.put, id)
		} else if time.Since(w.since) > followFor {
			delete(g.put, id) // the round finds it
		}
	}
	if len(g.put) > 0 {
		time.AfterFunc(followEvery, g.followUp)
	}
	g.mu.Unlock()
	if err == nil {
		err = g.serve(ctx, slices.Collect(maps.Values(wants)))
	}
	g.Warn(err, "jobs that wait for slots could not be looked after", "jobs", len(ids))
}
