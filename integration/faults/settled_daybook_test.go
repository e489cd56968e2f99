package faults

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// asked is a job that the application has inserted.
type asked struct {
	id  string
	job int64
}

// worked is a row of river_job.
type worked struct {
	job      int64
	id       string // in its arguments
	state    string
	attempts int
}

// intent is what a worker writes before it calls the upstream.
type intent struct {
	job         int64
	attempt     int
	reservation string
}

// report is what it writes after that, in the transaction that settles and completes.
type report struct {
	xact int64
	intent
	used float64
}

// charge is a take of a reservation that a job's metadata has had.
type charge struct {
	xact        int64 // that inserted the job with it; 0: the job has paid it later, in a transaction that nobody knows
	job         int64
	reservation string
	take
	// the time of the balance, which tells apart what was charged again under the same id; where
	// nothing flows
	since time.Time
}

// logged is a line of the log of tickets.
type logged struct {
	xact, job int64
	metadata  []byte
}

// log adds what was not known to be charged. The lines of a job come in their order.
func (d *daybook) log(l logged) {
	r, ok := scheduler.ReservationOf(&rivertype.JobRow{Metadata: l.metadata})
	if !ok {
		return
	}
	for _, k := range r.Takes {
		c := charge{xact: l.xact, job: l.job, reservation: r.ID.String(), take: take{account{k.Limit, k.Key}, k.Count}}
		if exact(c.Account) {
			c.since, _ = k.RunAt(ratelimit.State{})
		}
		first := c
		first.xact = 0
		if d.known == nil {
			d.known = map[charge]bool{}
		}
		if !d.known[first] {
			d.known[first] = true
			d.charges = append(d.charges, c)
		}
	}
}

type settlement struct {
	xact        int64
	reservation string
}

// movement is a change of a balance.
type movement struct {
	xact int64
	take
}

// daybook is what the database has.
type daybook struct {
	asks        []asked
	jobs        []worked
	intents     []intent
	reports     []report
	charges     []charge
	known       map[charge]bool // without their transactions
	settlements []settlement
	movements   []movement
	balances    map[account]float64
}

// daybook reads all there is, in one snapshot.
func (o *office) daybook(t *testing.T) *daybook {
	t.Helper()
	d := &daybook{balances: map[account]float64{}}
	o.admin(t, func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead,
			AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
			var a asked
			var j worked
			var in intent
			var r report
			var l logged
			var s settlement
			var m movement
			var of account
			var value float64
			for _, q := range []struct {
				sql     string
				columns []any
				add     func()
			}{
				{`SELECT id, job FROM ask`, []any{&a.id, &a.job}, func() { d.asks = append(d.asks, a) }},
				{`SELECT id, args->>'id', state, attempt FROM river_job`,
					[]any{&j.job, &j.id, &j.state, &j.attempts}, func() {
						d.jobs = append(d.jobs, j)
					}},
				{`SELECT job, attempt, reservation FROM intent`, []any{&in.job, &in.attempt, &in.reservation}, func() {
					d.intents = append(d.intents, in)
				}},
				{`SELECT xact, job, attempt, reservation, used FROM report`, []any{&r.xact, &r.job, &r.attempt, &r.reservation, &r.used},
					func() { d.reports = append(d.reports, r) }},
				{`SELECT CASE WHEN inserted THEN xact ELSE 0 END, job, jsonb_build_object('weir', ticket) FROM job_log WHERE ticket IS NOT NULL ORDER BY n`,
					[]any{&l.xact, &l.job, &l.metadata}, func() { d.log(l) }},
				{`SELECT 0, job, metadata FROM intent`, []any{&l.xact, &l.job, &l.metadata}, func() { d.log(l) }},
				{`SELECT xact, reservation FROM settled_log`, []any{&s.xact, &s.reservation}, func() {
					d.settlements = append(d.settlements, s)
				}},
				{`SELECT xact, limit_name, key, delta FROM balance_log`, []any{&m.xact, &m.Account.Limit, &m.Account.Key, &m.Tokens},
					func() { d.movements = append(d.movements, m) }},
				{`SELECT name, key, value FROM weir_balance`, []any{&of.Limit, &of.Key, &value}, func() { d.balances[of] = value }},
			} {
				if err := each(ctx, tx, q.sql, q.columns, q.add); err != nil {
					return err
				}
			}
			return nil
		})
	})
	return d
}
