package fairline

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

// grant is one transaction in which jobs of a line have their turns.
type grant struct {
	riverjob.Store
	granter *Granter // nil for a list
	of      ticket.Row
	line    *line
	held    *held

	mine    bool
	turn    turn.Line
	others  float64   // the virtual time of those who take without waiting in line
	value   float64   // what the limit had
	seen    time.Time // when the last grant looked, or zero
	tenants []*queue
	left    []Row // that leave the line
	gone    []Row // whose jobs have gone, as they were read

	now   time.Time // by the database's clock
	limit ratelimit.Outcome
	reach float64                // what may be granted before the last job that is
	has   map[ticket.Row]float64 // the other limits of the jobs
	out   map[ticket.Row]bool    // those of them that had no tokens when they were asked
	skip  map[int64]bool         // jobs that cannot have their turns now
	busy  map[string]load

	chosen []*contender
	more   bool // there may be more to grant at once
	scarce bool // are workers
	each   []ratelimit.Result
	moved  []*riverjob.Waiter
}

// queue are the jobs of a tenant.
type queue struct {
	turn.Tenant
	jobs    []*contender
	partly  bool      // there may be more
	until   time.Time // the place from which on some may be missing; zero: none
	changed bool
}

// contender is a job that waits for its turn.
type contender struct {
	Row
	state, queue string
	attempt      int
	ticket       ticket.Ticket
	from         float64 // the line's virtual time when it has its turn
	nr           int     // its place in the line, if that is known
	requests     []ratelimit.Request
	kinds        []string // what must be the same for all requests for a limit and key
}

// load is granted work of a queue that waits for a worker.
type load struct {
	n        int
	due, all float64 // tokens: of jobs that are due, and of all
	late     bool    // some should have started a while ago
}

// grant grants what can be granted now. It reports whether the line is this client's, and whether
// there may be more to grant at once.
func (r *Granter) grant(ctx context.Context, of ticket.Row, h *held) (mine, more bool, err error) {
	g := &grant{Store: r.Store, granter: r, of: of, line: r.all[of[0]], held: h}
	err = r.InTx(ctx, func(tx pgx.Tx) error { return g.run(ctx, tx) })
	r.scarce = r.scarce || g.scarce
	if riverjob.IsBlocked(err) && h.narrow(g) {
		return true, true, nil
	}
	h.few = 0
	if err != nil {
		return false, false, fmt.Errorf("line %q of limit %q: %w", of[1], of[0], err)
	}
	answered := time.Now()
	for i, w := range g.moved {
		c := g.chosen[i]
		h.waiting[w.ID] = granted{c.queue, c.Cost, w.Due}
		r.Waker.Add(w.ID, answered.Add(w.Due.Sub(g.now)), false)
	}
	h.tenants = len(g.tenants)
	return g.mine, g.mine && g.more && len(g.moved)+len(g.left)+len(g.gone) > 0, nil
}

func (g *grant) run(ctx context.Context, tx pgx.Tx) error {
	if err := g.hold(ctx, tx); err != nil || !g.mine {
		return err
	}
	for _, step := range []func(context.Context, pgx.Tx) error{g.read, g.look, g.take, g.write} {
		if err := step(ctx, tx); err != nil {
			return err
		}
	}
	return nil
}

// hold locks the line. What follows in the transaction waits only briefly for a held balance.
func (g *grant) hold(ctx context.Context, tx pgx.Tx) error {
	var known bool
	var seen time.Time
	b := &pgx.Batch{}
	g.Queue(b, HoldSQL, []any{g.of[0], g.of[1], g.granter.Holder, lineLasts},
		func() { g.mine = true }, &g.turn.Virtual, &g.others, &g.value, &known, &seen, nil)
	riverjob.BrieflyFrom(b, g.held.patience())
	err := tx.SendBatch(ctx, b).Close()
	if known {
		g.seen = seen
	}
	return err
}

// read reads who waits, and applies the corrections.
func (g *grant) read(ctx context.Context, tx pgx.Tx) error {
	most := min(max(400/max(g.held.tenants, 1), 4), 100)
	var c contender
	var t turn.Tenant
	var raw []byte
	queues := map[string]*queue{} // the rows come in any order
	if time.Since(g.held.pruned) > pruneEvery {
		clear(g.held.passed) // some may be fit by now, or gone
	}
	passed := slices.AppendSeq([]int64{}, maps.Keys(g.held.passed)) // an array, if an empty one
	err := g.Query(ctx, tx, turnsSQL, []any{g.of[0], g.of[1], most, passed}, func() {
		q := queues[t.Name]
		if q == nil {
			q = &queue{Tenant: t}
			queues[t.Name], g.tenants = q, append(g.tenants, q)
		}
		read := c
		read.Name, read.Key, read.Tenant = g.of[0], g.of[1], t.Name
		if json.Unmarshal(raw, &read.ticket) != nil {
			read.ticket = ticket.Ticket{}
		}
		q.jobs = append(q.jobs, &read)
	}, &t.Name, &t.At, &t.Credit, &c.Priority, &c.Due, &c.Job, &c.Cost, &c.Weight,
		&c.state, &c.attempt, &c.queue, &raw)
	if err != nil {
		return err
	}
	slices.SortFunc(g.tenants, func(a, b *queue) int { return cmp.Compare(a.Name, b.Name) })
	for _, q := range g.tenants {
		g.complete(q, most)
		g.settle(q)
	}
	return nil
}

// complete notes whether a tenant may have more rows than the most that were read of each priority,
// and up to which place all of its jobs were read.
func (g *grant) complete(q *queue, most int) {
	for priority := range 5 {
		n, last := 0, time.Time{}
		for _, c := range q.jobs {
			if c.Priority == priority {
				n, last = n+1, ticket.Latest(last, g.line.place(priority, c.Due))
			}
		}
		if n < most {
			continue
		}
		if q.partly = true; priority != 0 && (q.until.IsZero() || last.Before(q.until)) {
			q.until = last
		}
	}
}

// unfinished are the states of jobs that may still be granted.
var unfinished = []string{"available", "scheduled", "running", "retryable", "pending"}

// settle applies a tenant's corrections, has the jobs leave that are gone, and sorts the others.
func (g *grant) settle(q *queue) {
	var corrections []*contender
	q.jobs = slices.DeleteFunc(q.jobs, func(c *contender) bool {
		switch {
		case c.Priority == 0:
			corrections, g.left = append(corrections, c), append(g.left, c.Row)
		case slices.Contains(unfinished, c.state):
			return false
		default:
			g.gone = append(g.gone, c.Row)
		}
		return true
	})
	for _, c := range corrections {
		g.turn.Correct(&q.Tenant, c.Cost, c.Weight, len(q.jobs) > 0)
		g.value -= c.Cost // the settlement has changed the balance by that
		q.changed = true
	}
	slices.SortFunc(q.jobs, func(a, b *contender) int {
		first, second := g.line.place(a.Priority, a.Due), g.line.place(b.Priority, b.Due)
		return cmp.Or(first.Compare(second), cmp.Compare(a.Priority, b.Priority),
			cmp.Compare(a.Job, b.Job))
	})
}

// look finds out what the limits have, and which of the jobs granted before wait for a worker.
func (g *grant) look(ctx context.Context, tx pgx.Tx) error {
	g.has, g.out = map[ticket.Row]float64{}, map[ticket.Row]bool{}
	g.skip, g.busy = map[int64]bool{}, map[string]load{}
	own := g.line.Limit.Global()
	if g.of[1] != "" {
		own = g.line.Limit.For(g.of[1])
	}
	var fit []*contender
	for _, q := range g.tenants {
		some := map[int]bool{} // jobs of a priority are fit
		for _, c := range q.jobs {
			if g.unfit(c) {
				g.skip[c.Job] = true
			} else {
				fit, some[c.Priority] = append(fit, c), true
			}
		}
		for _, c := range q.jobs {
			if q.partly && !some[c.Priority] { // those behind are to be read
				g.held.passed[c.Job] = true
			}
		}
	}
	res, err := g.ask(ctx, tx, fit, own.Count(0).OrReserve())
	if err != nil {
		return err
	}
	g.now, g.limit = res.At, res.Outcomes[0]
	g.held.passOver(g.out)
	g.reckon()
	return g.unfetched(ctx, tx)
}

// ask asks about the first requests, and finds out what the other limits of jobs have.
func (g *grant) ask(
	ctx context.Context, tx pgx.Tx, jobs []*contender, first ...ratelimit.Request,
) (ratelimit.Result, error) {
	ask, known := first, map[ticket.Row]bool{}
	for _, c := range jobs {
		for _, r := range c.requests {
			if of := ticket.RowOf(r); of != g.of && !known[of] {
				known[of] = true
				ask = append(ask, r.Count(0).Leave(0))
			}
		}
	}
	if len(ask) == 0 {
		return ratelimit.Result{}, nil
	}
	res, err := g.Limiter.CheckRateLimit(ctx, tx, ask...)
	if err != nil {
		return res, err
	}
	for i, o := range res.Outcomes[len(first):] {
		of := ticket.Row{o.Limit, o.Key}
		if r := ask[len(first)+i]; o.Shadow {
			of, g.has[ticket.RowOf(r)] = ticket.Row{}, math.Inf(1)
		}
		if g.has[of] = o.Value; !o.OK {
			g.out[of] = true
		}
	}
	return res, nil
}

// reckon tells how much may be granted.
func (g *grant) reckon() {
	o := &g.limit
	g.account()
	switch ahead := o.RunAt.Sub(g.now); {
	case !o.OK, !o.RunAt.IsZero() && ahead > grantAhead:
		g.reach = math.Inf(-1) // paused, or reserved by others
	case !g.line.windowed:
		g.reach = o.Value + g.line.rate*grantAhead.Seconds()
	case o.WindowEnds.Sub(g.now) < grantAhead:
		g.reach = o.Value + o.Rate
	default:
		g.reach = o.Value
	}
}

// within reports whether one more job may be granted after as much as used. Callers that do not
// wait in line keep what Leave says, unless they have had more than their share.
func (g *grant) within(used float64) bool {
	left := g.reach
	if g.line.Others > 0 && g.others <= g.turn.Virtual {
		left = min(left, g.limit.Value-g.line.Leave)
	}
	return used < left
}

// account charges those who take without waiting in line for what they have taken since the last
// grant: what the limit has less than it would have had without them.
func (g *grant) account() {
	if g.line.Others == 0 || g.seen.IsZero() {
		return
	}
	would := min(g.line.capacity, g.value+g.line.rate*max(0, g.now.Sub(g.seen).Seconds()))
	if took := would - g.limit.Value; took > g.line.capacity*1e-9 { // less is rounding
		g.others = max(g.others, g.turn.Virtual) + took/g.line.Others
	}
}

// unfit reads what a job asks for, and reports whether it can have its turn at all. One that runs,
// or is about to be retried, keeps its place.
func (g *grant) unfit(c *contender) bool {
	if !c.fetchable() {
		return true
	}
	var err error
	switch {
	case c.ticket.Seat == nil || !c.ticket.Seat.Waits:
		err = errors.New("its metadata does not say that it waits")
	case !c.ticket.Known():
		err = errors.New("its metadata is of a newer version of Weir")
	default:
		c.requests, c.kinds, err = requestsOf(c.ticket.Seat)
	}
	if err == nil {
		_, _, err = ratelimit.Foretell(time.Now(), fullState, c.requests...)
	}
	if err != nil && !g.held.warned[c.Job] {
		g.held.warned[c.Job] = true
		g.granter.Warn(err, "a job cannot have its turn", "job", c.Job)
	}
	return err != nil
}

// fetchable says that River would start the job at its time.
func (c *contender) fetchable() bool { return c.state == "available" || c.state == "scheduled" }

// requestsOf are what a job takes at its turn, and what must be the same in all of a batch.
func requestsOf(s *ticket.Seat) ([]ratelimit.Request, []string, error) {
	requests, kinds := make([]ratelimit.Request, len(s.Requests)), make([]string, len(s.Requests))
	for i, raw := range s.Requests {
		if err := json.Unmarshal(raw, &requests[i]); err != nil {
			return nil, nil, err
		}
		kind, err := json.Marshal(requests[i].Count(0))
		if err != nil {
			return nil, nil, err
		}
		kinds[i] = string(kind)
	}
	return requests, kinds, nil
}

// unfetched finds out how much work was granted that waits for a worker.
func (g *grant) unfetched(ctx context.Context, tx pgx.Tx) error {
	waiting := g.held.waiting
	if len(waiting) == 0 {
		return nil
	}
	ids := slices.Collect(maps.Keys(waiting))
	still := map[int64]bool{}
	var id int64
	var at time.Time
	if err := g.Query(ctx, tx, UnfetchedSQL, []any{ids}, func() {
		// A job that starts later than it was granted for was put off: it waits for something else.
		still[id] = at.Sub(waiting[id].due) < time.Second
	}, &id, &at); err != nil {
		return err
	}
	maps.DeleteFunc(waiting, func(id int64, _ granted) bool { return !still[id] })
	for _, w := range waiting {
		b := g.busy[w.queue]
		b.n, b.all = b.n+1, b.all+w.cost
		if !w.due.After(g.now) {
			b.due += w.cost
			b.late = b.late || g.now.Sub(w.due) > lateForWorker
		}
		g.busy[w.queue] = b
	}
	return nil
}

// lateForWorker is for how long a job has waited for a worker when workers are what is scarce.
const lateForWorker = 200 * time.Millisecond
