package fairline

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/jobs/riverjob"
	"github.com/weir-go/weir/internal/jobs/ticket"
	"github.com/weir-go/weir/internal/jobs/turn"
	"github.com/weir-go/weir/ratelimit"
)

const (
	mostAtOnce = 500 // jobs that are granted in one transaction
	mostTries  = 8   // to choose jobs, until all can be granted
	pruneEvery = 10 * time.Second
	balanceIn  = time.Second // a held balance keeps the other lines waiting
)

// take chooses the jobs whose turn it is, locks them and takes their tokens. If one of them cannot
// be granted after all, it chooses anew.
func (g *grant) take(ctx context.Context, tx pgx.Tx) error {
	before, line, locked := g.tenants, g.turn, map[int64]bool{}
	for range mostTries {
		g.choose(before, line)
		if len(g.chosen) == 0 {
			return nil
		}
		fine, err := g.lock(ctx, tx, locked)
		if err == nil && fine {
			fine, err = g.pay(ctx, tx)
		}
		if err != nil || fine {
			return err
		}
	}
	g.tenants, g.turn, g.chosen, g.more = before, line, nil, false
	return nil
}

// choose chooses the jobs of tenants whose turn it is. It changes copies of the tenants and of the
// line.
func (g *grant) choose(tenants []*queue, line turn.Line) {
	g.chosen, g.more = nil, false
	g.tenants, g.turn = nil, line
	for _, q := range tenants {
		copied := *q
		g.tenants = append(g.tenants, &copied)
	}
	used, busy := 0.0, maps.Clone(g.busy)
	asked, kinds := map[ticket.Row]float64{}, map[ticket.Row]string{}
	for _, q := range g.tenants {
		g.head(q)
	}
	for g.within(used) {
		if len(g.chosen) == cmp.Or(g.held.few, mostAtOnce) {
			g.more = true
			return
		}
		q, all := g.next()
		if q == nil {
			return
		}
		if len(q.jobs) == 0 { // of those that were read
			g.more = true
			return
		}
		c := q.jobs[0]
		b := busy[c.queue]
		enough := g.line.rate * workAhead.Seconds()
		switch {
		case used+c.Cost > g.limit.Value+g.line.reserved:
			return // until there are as many
		case b.n > 1 && (b.due >= enough || b.late && b.all >= enough):
			g.scarce = true
			for len(q.jobs) > 0 && q.jobs[0].queue == c.queue {
				q.jobs = q.jobs[1:]
			}
			if q.Out = len(q.jobs) == 0; !q.Out { // those of other queues may have workers
				g.head(q)
			}
			continue
		case g.lacks(c, asked) != (ticket.Row{}):
			q.Out = true
			continue
		case !c.agrees(kinds):
			g.more = true
			return
		}
		for i, r := range c.requests {
			of := ticket.RowOf(r)
			kinds[of] = c.kinds[i]
			asked[of] += r.N()
		}
		used += c.Cost
		b.n, b.all = b.n+1, b.all+c.Cost
		if used <= g.limit.Value {
			b.due += c.Cost
		}
		busy[c.queue] = b
		c.from = max(q.At, g.turn.Virtual)
		g.turn.Grant(all, &q.Tenant, c.Cost, c.Weight)
		q.changed = true
		g.chosen = append(g.chosen, c)
		q.jobs = q.jobs[1:]
		g.head(q)
	}
}

// head finds a tenant's next job that can have its turn. Without one the tenant is out. If there
// may be jobs that were not read, it is not: then nobody else can have the next turn before they
// are.
func (g *grant) head(q *queue) {
	waits := len(q.jobs) > 0 // even if all of them are skipped in this grant
	for len(q.jobs) > 0 && g.skip[q.jobs[0].Job] {
		q.jobs = q.jobs[1:]
	}
	if len(q.jobs) > 0 && len(g.chosen) > 0 && !q.until.IsZero() &&
		g.line.place(q.jobs[0].Priority, q.jobs[0].Due).After(q.until) {
		q.jobs = nil // one that was not read goes before it
	}
	if len(q.jobs) == 0 {
		q.Out = !q.partly || len(g.chosen) == 0
		if !waits && !q.partly {
			q.Credit = 0 // nothing is kept for a tenant that does not wait: see forfeitSQL
		}
		return
	}
	q.Level = g.line.level(q.jobs[0].Priority, g.now.Sub(q.jobs[0].Due))
}

// next is the tenant whose turn it is, and all of them.
func (g *grant) next() (*queue, []*turn.Tenant) {
	all := make([]*turn.Tenant, len(g.tenants))
	for i, q := range g.tenants {
		all[i] = &q.Tenant
	}
	if i := slices.Index(all, g.turn.Next(all)); i >= 0 {
		return g.tenants[i], all
	}
	return nil, all
}

// lacks is another limit of a job that has too few tokens for it, if there is one. asked is what
// the jobs chosen before it ask of each limit: all of them take together.
func (g *grant) lacks(c *contender, asked map[ticket.Row]float64) ticket.Row {
	for _, r := range c.requests {
		of := ticket.RowOf(r)
		if of != g.of && (g.out[of] || !g.covers(r.Count(asked[of]+r.N()))) {
			return of
		}
	}
	return ticket.Row{}
}

// covers reports whether a limit has enough for a request, and leaves its Leave. For a request that
// the limit can never grant, the take would return an error, and the line would grant nothing.
func (g *grant) covers(r ratelimit.Request) bool {
	has := g.has[ticket.RowOf(r)]
	if math.IsInf(has, 1) {
		return true // a shadow
	}
	res, _, err := ratelimit.Foretell(g.now, func(string, string) ratelimit.State {
		return ratelimit.State{Value: has, TS: g.now}
	}, r)
	return err == nil && res.OK
}

// agrees says that what a job asks for can be asked for together with what others do.
func (c *contender) agrees(kinds map[ticket.Row]string) bool {
	for i, r := range c.requests {
		if kind, ok := kinds[ticket.RowOf(r)]; ok && kind != c.kinds[i] {
			return false
		}
	}
	return true
}

// lock locks the chosen jobs, and reports whether all are locked.
func (g *grant) lock(ctx context.Context, tx pgx.Tx, locked map[int64]bool) (bool, error) {
	var ids []int64
	for _, c := range g.chosen {
		if !locked[c.Job] {
			ids = append(ids, c.Job)
		}
	}
	more, err := g.Which(ctx, tx, ChosenSQL, ids)
	if err != nil {
		return false, err
	}
	maps.Copy(locked, more)
	fine := true
	for _, id := range ids {
		if !locked[id] {
			g.skip[id], fine = true, false
		}
	}
	return fine, nil
}

// pay takes the tokens of the chosen jobs, and reports whether it did.
func (g *grant) pay(ctx context.Context, tx pgx.Tx) (bool, error) {
	g.each = nil
	for _, some := range g.inShards() {
		calls := make([][]ratelimit.Request, len(some))
		for i, c := range some {
			calls[i] = c.requests
		}
		all, each, err := g.Limiter.RateLimitMany(ctx, tx, calls)
		if err != nil {
			return false, err
		}
		if !all.OK {
			g.denied(all.Outcomes)
			if len(g.each) > 0 {
				err = g.Limiter.GiveBackMany(ctx, tx, g.each)
			}
			return false, err
		}
		g.each = append(g.each, each...)
	}
	return true, nil
}

// inShards divides the chosen jobs, in their order, into as many parts as the limit has shards, of
// about the same cost: each part is taken from the shard that has most, and not all of them from
// one.
func (g *grant) inShards() (parts [][]*contender) {
	total, used := 0.0, 0.0
	for _, c := range g.chosen {
		total += c.Cost
	}
	from := 0
	for i, c := range g.chosen {
		used += c.Cost
		if used > 0 && used*g.line.shards >= total*float64(len(parts)+1) || i == len(g.chosen)-1 {
			parts, from = append(parts, g.chosen[from:i+1]), i+1
		}
	}
	return parts
}

// denied notes why the chosen jobs were not granted.
func (g *grant) denied(outcomes []ratelimit.Outcome) {
	for _, o := range outcomes {
		if of := (ticket.Row{o.Limit, o.Key}); !o.OK && of == g.of {
			g.reach /= 2 // somebody has taken meanwhile
			if len(g.chosen) == 1 {
				g.reach = 0
			}
		} else if !o.OK {
			g.out[of] = true
		}
	}
}

// write gives the chosen jobs their times, and notes what the tenants have had.
func (g *grant) write(ctx context.Context, tx pgx.Tx) error {
	used := 0.0
	for i, c := range g.chosen {
		res := &g.each[i]
		t := g.Pacing.Ticket(res, c.attempt, false)
		s := *c.ticket.Seat
		s.Waits, s.Requests = false, nil
		// It is not spaced anew when workers are late: what is granted ahead is bounded.
		t.Seat, t.Pays, t.Late = &s, c.ticket.Pays, true
		// River fetches jobs by their times. So each job that starts at once gets a microsecond of its
		// own, in the order of the turns.
		ahead := time.Duration(len(g.chosen)-i) * time.Microsecond
		w := &riverjob.Waiter{ID: c.Job, Due: res.At.Add(-ahead), Write: &t}
		if t.Due != 0 {
			w.Due = t.DueAt()
		}
		w.Near = w.Due.Sub(g.now) < riverjob.Horizon
		g.moved, g.left = append(g.moved, w), append(g.left, c.Row)
		used += c.Cost
	}
	b := &pgx.Batch{}
	send := func(sql string, args ...any) {
		b.Queue(g.SQL(sql), append([]any{g.of[0], g.of[1]}, args...)...)
	}
	if len(g.moved) > 0 {
		jobs, err := json.Marshal(g.moved)
		if err != nil {
			return err
		}
		b.Queue(g.SQL(grantSQL), string(jobs))
	}
	for _, r := range g.left {
		b.Queue(g.SQL(leaveSQL), r.key()...)
		delete(g.held.warned, r.Job)
	}
	for _, r := range g.gone {
		b.Queue(g.SQL(goneSQL), r.key()...)
		delete(g.held.warned, r.Job)
	}
	var names []string
	var times, credits []float64
	for _, q := range g.tenants {
		if q.changed {
			names, times, credits = append(names, q.Name), append(times, max(q.At, g.turn.Virtual)),
				append(credits, q.Credit)
		}
	}
	if len(names) > 0 {
		send(chargeSQL, names, times, credits)
	}
	if time.Since(g.held.pruned) > pruneEvery {
		g.held.pruned = time.Now()
		send(forfeitSQL)
		send(forgetSQL, g.turn.Virtual)
	}
	send(passSQL, g.turn.Virtual, g.others, g.limit.Value-used, g.now)
	return tx.SendBatch(ctx, b).Close()
}
