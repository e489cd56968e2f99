package fairline

import (
	"context"
	"encoding/json"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/jobs/riverjob"
	"github.com/weir-go/weir/internal/jobs/ticket"
	"github.com/weir-go/weir/internal/turn"
	"github.com/weir-go/weir/ratelimit"
)

// Waiting is a job in a line, and why it has its place: scheduler.Waiting documents it.
type Waiting struct {
	ID         int64
	For        ticket.Row
	Tenant     string
	Place      int
	Charged    float64
	PassedOver bool
}

// List lists the next n jobs of a line in the order of their turns, and reports whether there are
// others.
func (all Lines) List(
	ctx context.Context, s riverjob.Store, tx pgx.Tx, of ticket.Row, n int,
) (next []Waiting, more bool, err error) {
	g, more, err := all.foresee(ctx, s, tx, of)
	if err != nil {
		return nil, false, err
	}
	if n = max(n, 0); len(g.chosen) > n {
		g.chosen, more = g.chosen[:n], true
	}
	if err := g.askOthers(ctx, tx); err != nil {
		return nil, false, err
	}
	for _, c := range g.chosen {
		next = append(next, g.waiting(c))
	}
	return next, more, nil
}

// waiting says why a job that was chosen has its place.
func (g *grant) waiting(c *contender) Waiting {
	w := Waiting{ID: c.Job, For: g.of, Tenant: c.Tenant, Place: c.nr, Charged: c.from}
	if of := g.lacks(c, g.has); of != (ticket.Row{}) {
		w.For, w.PassedOver = of, true
	}
	return w
}

// standsSQL tells how a line stands. A line in which nothing was granted lately has no row.
//
// $1 name $2 key
const standsSQL = `SELECT now(), coalesce((SELECT virtual FROM {ours}weir_line
	WHERE name = $1::text AND key = $2::text), '0')`

// foresee chooses jobs of a line as a grant does, but as if there were tokens and workers for all
// of them. It reports whether there are jobs that it has not read, or not chosen.
func (all Lines) foresee(
	ctx context.Context, s riverjob.Store, tx pgx.Tx, of ticket.Row,
) (g *grant, more bool, err error) {
	most := math.Inf(1)
	l := &line{Line: Line{Patience: defaultPatience}, rate: most}
	if known := all[of[0]]; known != nil {
		l.Patience, l.OverAll = known.Patience, known.OverAll
	}
	var now time.Time
	var stands turn.Line
	err = s.Query(ctx, tx, standsSQL, []any{of[0], of[1]}, func() {}, &now, &stands.Virtual)
	if err != nil {
		return nil, false, err
	}
	// tenants, as if there were many: the fewest jobs of each tell how many there are
	waiting := leastRead
	for range 2 {
		g = &grant{Store: s, of: of, line: l, held: &held{tenants: waiting},
			turn: stands, now: now, reach: most, limit: ratelimit.Outcome{Value: most},
			has: map[ticket.Row]float64{}, out: map[ticket.Row]bool{}, skip: map[int64]bool{},
			busy: map[string]load{}}
		if err := g.read(ctx, tx); err != nil {
			return nil, false, err
		}
		if waiting = len(g.tenants); waiting == 0 || waiting >= leastRead {
			break
		}
	}
	for _, q := range g.tenants {
		for _, c := range q.jobs {
			if !c.fetchable() || c.ticket.Seat == nil || !c.ticket.Seat.Waits {
				g.skip[c.Job] = true
			}
		}
	}
	tenants := g.tenants
	g.choose(tenants, stands)
	certain := len(g.chosen)
	for _, q := range tenants {
		more = more || q.partly
		q.partly = false // the others' jobs are listed although one that was not read goes before
	}
	g.choose(tenants, stands)
	for i, c := range g.chosen {
		c.from -= stands.Virtual
		if i < certain {
			c.nr = i + 1
		}
	}
	return g, more || g.more, nil
}

// leastRead is how many tenants have to wait for the fewest jobs of each to be read.
const leastRead = 100

// askOthers finds out what the other limits of the chosen jobs have, if this process has defined
// them.
func (g *grant) askOthers(ctx context.Context, tx pgx.Tx) error {
	for _, c := range g.chosen {
		for _, raw := range c.ticket.Seat.Requests {
			var r ratelimit.Request
			if json.Unmarshal(raw, &r) == nil {
				c.requests = append(c.requests, r)
			}
		}
	}
	_, err := g.ask(ctx, tx, g.chosen)
	return err
}
