// Package fairline grants the turns of fair lines, in which the jobs of tenants wait that share a
// limit, and lists who is next. It keeps weir_line, weir_line_tenant and weir_turn, and gives jobs
// of river_job their times. It does not know how a job is inserted, nor what becomes of it once it
// has its turn. A Granter may be used concurrently: one round of a client is under way at a time.
//
// One client grants the turns of a line at a time: the one that holds the line's row in weir_line,
// for three seconds at a time. It locks the row in the transaction of each grant, so that two that
// both believe to hold it do not grant at once. In that transaction the jobs get their tokens and
// their times, and what each tenant has had is read and written; whose turn it is,
// internal/jobs/turn decides. The holder remembers only what need not be exact: which of the jobs
// that it has granted still wait for a worker.
//
//	line.go     which lines there are, what a job is to take at its turn, who is next
//	row.go      rows of jobs in line: they enter, leave, and have used more or less than they cost
//	granter.go  which client grants, and when
//	grant.go    one grant: reads the line and what tenants are owed, asks what the limit has
//	take.go     chooses whose turn it is, takes the tokens, notes what tenants were charged
//	blocks.go   what a line does while somebody holds a balance
//	sql.go      the statements of a grant
package fairline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/weir-go/weir/internal/jobs/riverjob"
	"github.com/weir-go/weir/internal/jobs/ticket"
	"github.com/weir-go/weir/internal/jobs/turn"
	"github.com/weir-go/weir/ratelimit"
)

// Line is a limit that tenants share: package scheduler has the same, and documents it.
type Line struct {
	Limit    ratelimit.Limit
	OverAll  bool
	Patience time.Duration
	Others   float64
	Leave    float64
}

// Tenant is one of those who share it: package scheduler has the same.
type Tenant struct {
	Key    string
	Weight float64
}

const (
	// grantAhead is how far ahead of its tokens the work of a line is granted. workAhead is how
	// much of what is due may wait for a worker, in tokens that come in that time.
	grantAhead      = time.Second
	workAhead       = 500 * time.Millisecond
	defaultPatience = time.Hour
)

// line is a checked Line.
type line struct {
	Line
	rate     float64 // tokens a second
	capacity float64
	reserved float64 // MaxReserved
	windowed bool
	shards   float64
}

// Lines are those of a Scheduler, by the names of their limits.
type Lines map[string]*line

// Check checks lines.
func Check(all []Line) (Lines, error) {
	lines := Lines{}
	for _, l := range all {
		name := l.Limit.Name()
		checked, err := l.checked()
		if err == nil && lines[name] != nil {
			err = errors.New("two lines of one limit")
		}
		if err != nil {
			return nil, fmt.Errorf("scheduler: Config.Lines: limit %q: %w", name, err)
		}
		lines[name] = checked
	}
	return lines, nil
}

func (l Line) checked() (*line, error) {
	c := &line{Line: l}
	var reserved *float64
	var period time.Duration
	switch rule := l.Limit.Rule().(type) {
	case ratelimit.TokenBucket:
		c.rate, c.capacity = rule.Rate, *rule.Capacity
		period, reserved = rule.Period, rule.MaxReserved
	case ratelimit.FixedWindow:
		c.rate, c.capacity, c.windowed = rule.Rate, *rule.Capacity, true
		period, reserved = rule.Period, rule.MaxReserved
	default:
		return nil, fmt.Errorf("it is the zero Limit: want one made by ratelimit.Define")
	}
	c.rate /= period.Seconds()
	c.shards = float64(max(1, l.Limit.Shards()))
	if c.Patience == 0 {
		c.Patience = defaultPatience
	}
	c.Patience = min(c.Patience, mostPatience)
	if c.Others > 0 && c.Leave == 0 {
		c.Leave = c.capacity / 2
	}
	switch {
	case strings.HasSuffix(l.Limit.Name(), " (shadow)"):
		return nil, fmt.Errorf("it is a Shadow, which denies nobody: nobody would wait")
	case reserved == nil:
		return nil, fmt.Errorf("its rule has no MaxReserved: reservations could keep the line waiting for ever")
	case c.Patience < 0:
		return nil, fmt.Errorf("a Patience of %v: want 0 for an hour, or more", c.Patience)
	case !(c.Others >= 0) || math.IsInf(c.Others, 1):
		return nil, fmt.Errorf("a weight of %v for Others: want 0 or more", c.Others)
	case c.Others > 0 && c.windowed:
		return nil, fmt.Errorf("a weight for Others needs a TokenBucket: the tokens of a window come all at once")
	case !(c.Leave >= 0) || c.Leave > 0 && c.Others == 0:
		return nil, fmt.Errorf("a Leave of %v: want one above 0 together with Others, or none", c.Leave)
	case c.Others > 0 && c.Leave+2*grantAhead.Seconds()*c.rate > c.capacity:
		return nil, fmt.Errorf("a Leave of %v, and %v come within 2 s: more than the capacity of %v",
			c.Leave, 2*grantAhead.Seconds()*c.rate, c.capacity)
	}
	c.reserved = *reserved
	return c, nil
}

// mostPatience is as good as for ever, and three times as long is still a Duration.
const mostPatience = 90 * 366 * 24 * time.Hour

// level is the priority of a job for other tenants, given for how long it has been due.
func (l *line) level(priority int, waited time.Duration) int {
	if !l.OverAll {
		return 0
	}
	return max(1, priority-int(waited/l.Patience))
}

// place is where a job stands among those of its tenant, as an instant.
func (l *line) place(priority int, due time.Time) time.Time {
	return due.Add(time.Duration(priority-1) * l.Patience)
}

// NoPeriod refuses UniqueOpts.ByPeriod. River reckons by the time for which the job is scheduled: as
// that is the same for all that wait, those of later periods would be duplicates.
func NoPeriod(args river.JobArgs, opts *river.InsertOpts) error {
	var unique river.UniqueOpts
	if opts != nil {
		unique = opts.UniqueOpts
	}
	unset := !unique.ByArgs && unique.ByPeriod == 0 && !unique.ByQueue && unique.ByState == nil // as River has it
	if a, ok := args.(river.JobArgsWithInsertOpts); ok && unset {
		unique = a.InsertOpts().UniqueOpts
	}
	if unique.ByPeriod != 0 {
		return errors.New("scheduler: a queued job with UniqueOpts.ByPeriod: it has no time until its turn comes; " +
			"put the period into the job's arguments, and use ByArgs")
	}
	return nil
}

// Seat checks what a job is to take at its turn.
func (all Lines) Seat(tenant Tenant, requests []ratelimit.Request) (*ticket.Seat, error) {
	if tenant.Weight == 0 {
		tenant.Weight = 1
	}
	switch k := tenant.Key; {
	case k == "" || len(k) > ratelimit.MaxKeyBytes || !utf8.ValidString(k) ||
		strings.ContainsRune(k, 0):
		return nil, fmt.Errorf("scheduler: a Tenant with the Key %.64q: want 1 to 1024 bytes of UTF-8 without NUL", k)
	case !(tenant.Weight >= 1.0/(1<<20) && tenant.Weight <= 1<<20):
		return nil, fmt.Errorf("scheduler: a Tenant with a Weight of %v: want 2^-20 to 2^20, or 0 for 1", tenant.Weight)
	}
	seat := &ticket.Seat{Tenant: tenant.Key, Weight: tenant.Weight, Waits: true}
	var asks []ratelimit.Request
	for _, r := range requests {
		name := r.Limit().Name()
		if r.Reserves() {
			return nil, fmt.Errorf("scheduler: a queued job asks for %v: want it without OrReserve and Within, as it is taken when the job's turn comes", r)
		}
		asked := r
		if l := all[name]; l != nil {
			plain := l.Limit.Global()
			if r.Key() != "" {
				plain = l.Limit.For(r.Key())
			}
			switch plain = plain.Count(r.N()); {
			case seat.Limit != "":
				return nil, fmt.Errorf("scheduler: a queued job asks for %q and for %q: want one limit of Config.Lines", seat.Limit, name)
			case r.String() != plain.String():
				return nil, fmt.Errorf("scheduler: a queued job asks for %v: want no option but its count", r)
			case !(r.N() > 0):
				return nil, fmt.Errorf("scheduler: a queued job asks for %v: want a count above 0", r)
			}
			seat.Limit, seat.Key, seat.Cost = name, r.Key(), r.N()
			asked = plain.OrReserve()
		}
		asks = append(asks, asked)
		b, err := json.Marshal(asked)
		if err != nil {
			return nil, err
		}
		seat.Requests = append(seat.Requests, b)
	}
	if seat.Limit == "" {
		return nil, errors.New("scheduler: a queued job asks for no limit of Config.Lines: use InsertTx, or put the limit there")
	}
	if _, _, err := ratelimit.Foretell(time.Now(), fullState, asks...); err != nil {
		return nil, err
	}
	return seat, nil
}

func fullState(string, string) ratelimit.State { return ratelimit.State{} }

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
	if of := g.lacks(c, nil); of != (ticket.Row{}) {
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
