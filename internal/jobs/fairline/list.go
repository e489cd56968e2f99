package fairline

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

// Row is a row of weir_turn.
type Row struct {
	Name     string    `json:"name"`
	Key      string    `json:"key"`
	Tenant   string    `json:"tenant"`
	Priority int       `json:"priority"` // 0: a correction
	Due      time.Time `json:"due"`
	Job      int64     `json:"job"`
	Cost     float64   `json:"cost"`
	Weight   float64   `json:"weight"`
}

// RowOf is the row of a job that waits. It is always the same for the same job.
func RowOf(s *ticket.Seat, job *rivertype.JobRow) *Row {
	due := job.CreatedAt
	if s.From != 0 {
		due = time.UnixMicro(s.From)
	}
	return &Row{s.Limit, s.Key, s.Tenant, job.Priority, due, job.ID, s.Cost, s.Weight}
}

// enterSQL puts jobs into line that are not there yet.
//
// $1 an array of Rows
const enterSQL = `INSERT INTO {ours}weir_turn (name, key, tenant, priority, due, job, cost, weight)
SELECT name, key, tenant, priority, due, job, cost, weight
FROM jsonb_to_recordset($1::text::jsonb) AS t (name text, key text, tenant text, priority smallint,
	due timestamptz, job bigint, cost double precision, weight double precision)
ON CONFLICT (name, key, tenant, priority, due, job) DO NOTHING`

// Enter puts jobs into line that are not there yet.
func Enter(ctx context.Context, s riverjob.Store, q riverjob.Querier, rows ...*Row) error {
	return riverjob.Send(ctx, s, q, enterSQL, rows)
}

// Leave has a job leave its line.
func Leave(ctx context.Context, s riverjob.Store, q riverjob.Querier, row *Row) error {
	return s.Query(ctx, q, leaveSQL, row.key(), nil)
}

// key is the row's primary key.
func (t *Row) key() []any { return []any{t.Name, t.Key, t.Tenant, t.Priority, t.Due, t.Job} }

// correctSQL notes what a job has used beyond what its tenant was charged.
//
// $1 name $2 key $3 tenant $4 job $5 beyond $6 weight
const correctSQL = `INSERT INTO {ours}weir_turn (name, key, tenant, priority, due, job, cost, weight)
VALUES ($1::text, $2::text, $3::text, 0, clock_timestamp(), $4::bigint, $5::double precision, $6::double precision)`

// Correct notes that, if it is anything. exec is the transaction's Exec, or its ExecContext if it is
// one of database/sql.
func Correct[T any](
	ctx context.Context, s riverjob.Store, exec func(context.Context, string, ...any) (T, error),
	job int64, seat *ticket.Seat, beyond float64,
) error {
	if seat == nil || seat.Waits || beyond == 0 || math.IsNaN(beyond) {
		return nil
	}
	_, err := exec(ctx, s.SQL(correctSQL),
		seat.Limit, seat.Key, seat.Tenant, job, beyond, seat.Weight)
	return err
}
