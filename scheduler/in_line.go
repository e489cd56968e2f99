package scheduler

import (
	"context"
	"encoding/json"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/jobs/riverjob"
	"github.com/weir-go/weir/internal/jobs/ticket"
	"github.com/weir-go/weir/internal/turn"
	"github.com/weir-go/weir/ratelimit"
)

// InLine lists the jobs that wait in a fair [Line], in the order in which they will have their
// turns if nobody else comes, and there are tokens and workers for all of them. Jobs are left out
// before their ScheduledAt, and while they run or wait for a retry. It takes the limit's name and
// the key, which is "" for [ratelimit.Limit.Global].
//
// It lists at most n jobs, and at most 500. However many wait, it reads a few hundred, and at least
// four of each tenant. If more is true, others wait: behind the last that is listed, or behind the
// last of a tenant that has many. [Waiting.Charged], the priority of the job and
// [Waiting.PassedOver] say why a job goes before or after others.
//
// It takes nothing, writes nothing, and may be called in a read-only transaction. The role needs
// SELECT on weir_balance, weir_line, weir_line_tenant, weir_turn and river_job. A Scheduler that
// does not have the Line in its Config assumes a Patience of an hour, and no OverAll. PassedOver is
// only known of limits that this process has defined.
func (j *Jobs) InLine(
	ctx context.Context, tx pgx.Tx, limit, key string, n int,
) (next []Waiting, more bool, err error) {
	if err := j.check(); err != nil {
		return nil, false, err
	}
	g, more, err := j.foresee(ctx, tx, ticket.Row{limit, key})
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
	next, err = j.withJobs(ctx, tx, next)
	return next, more, err
}

// waiting says why a job that was chosen has its place.
func (g *grant) waiting(c *contender) Waiting {
	w := Waiting{Job: &rivertype.JobRow{ID: c.Job}, Limit: g.of[0], Key: g.of[1],
		Tenant: c.Tenant, Place: c.nr, Charged: c.from}
	if of := g.lacks(c, g.has); of != (ticket.Row{}) {
		w.Limit, w.Key, w.PassedOver = of[0], of[1], true
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
func (j *Jobs) foresee(ctx context.Context, tx pgx.Tx, of ticket.Row) (g *grant, more bool, err error) {
	all := math.Inf(1)
	l := &line{Line: Line{Patience: defaultPatience}, rate: all}
	if known := j.scheduler.lines[of[0]]; known != nil {
		l.Patience, l.OverAll = known.Patience, known.OverAll
	}
	var now time.Time
	var stands turn.Line
	err = j.store.Query(ctx, tx, standsSQL, []any{of[0], of[1]}, func() {}, &now, &stands.Virtual)
	if err != nil {
		return nil, false, err
	}
	// tenants, as if there were many: the fewest jobs of each tell how many there are
	waiting := leastRead
	for range 2 {
		g = &grant{plugin: &plugin{Client: &riverjob.Client{Store: j.store}}, of: of, line: l, held: &held{tenants: waiting},
			turn: stands, now: now, reach: all, limit: ratelimit.Outcome{Value: all},
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
