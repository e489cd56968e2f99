package scheduler_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/riverqueue/river"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// stepped is a line whose turns a test grants, round by round. No client works: the test has jobs
// end as soon as they are granted. So nothing depends on how fast the machine is.
type stepped struct {
	*fixture
	t      testing.TB
	sched  *scheduler.Scheduler
	cfg    *river.Config
	number int
	failed int // rounds
}

func steppedLines(t testing.TB, lines ...scheduler.Line) *stepped {
	t.Helper()
	f, sched, _ := queuing(t, lines...)
	return &stepped{fixture: f, t: t, sched: sched, cfg: sched.Configure(f.pool, &river.Config{Logger: quiet()})}
}

// store is a limit that gains nothing during a test, with a bucket of n tokens.
func store(t testing.TB, n float64, opts ...ratelimit.Option) ratelimit.Limit {
	t.Helper()
	return ratelimit.MustDefine(t.Name(), ratelimit.TokenBucket{Rate: 1e-3, Period: time.Hour,
		Capacity: &n, MaxReserved: ratelimit.Tokens(100)}, opts...)
}

// granted is a job that has been granted.
type granted struct {
	id       int64
	n        int
	tenant   string
	cost     float64
	priority int
	state    string
	at       time.Time
}

const grantedSQL = `SELECT id, (args->>'n')::int, metadata->'weir'->>'more', state::text, priority, scheduled_at FROM river_job
WHERE state IN ('available', 'scheduled') AND scheduled_at < '2199-01-01' ORDER BY scheduled_at, id`

// granted are the jobs that have had their turns and wait for a worker.
func (s *stepped) granted() (all []granted) {
	s.t.Helper()
	rows, err := s.pool.Query(s.t.Context(), grantedSQL)
	if err != nil {
		s.t.Fatal(err)
	}
	var g granted
	var more string
	_, err = pgx.ForEachRow(rows, []any{&g.id, &g.n, &more, &g.state, &g.priority, &g.at}, func() error {
		var seat struct {
			Seat struct {
				Tenant string
				N      float64
			}
		}
		if err := json.Unmarshal([]byte(more), &seat); err != nil {
			return err
		}
		g.tenant, g.cost = seat.Seat.Tenant, seat.Seat.N
		all = append(all, g)
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return all
}

// round grants once.
func (s *stepped) round() {
	s.t.Helper()
	s.grant(s.cfg)
}

// grant grants once, by a client with this configuration, and reports whether that holds a line.
// Where this process stops for two seconds, the server ends its transaction (25P03: idle in
// transaction), and where another one stops for a second that has locked a balance, it ends the
// statement (55P03: no lock): the next one grants.
func (s *stepped) grant(cfg *river.Config) (held bool) {
	s.t.Helper()
	for {
		held, err := scheduler.GrantTurns(s.t.Context(), cfg)
		if err == nil {
			return held
		}
		if !stalled(err) {
			s.t.Fatal(err)
		}
		s.failed++
	}
}

// stalled reports whether the server has ended a grant because a process stood still: see grant.
func stalled(err error) bool {
	e := (*pgconn.PgError)(nil)
	return errors.As(err, &e) && (e.Code == "25P03" || e.Code == "55P03")
}

// step grants, and has the jobs that are granted end. It returns them.
func (s *stepped) step() []granted {
	s.t.Helper()
	s.round()
	all := s.granted()
	for _, g := range all {
		s.end(g.id)
	}
	return all
}

func (s *stepped) end(id int64) {
	s.t.Helper()
	s.exec(s.t, fmt.Sprintf(`UPDATE river_job SET state = 'completed', finalized_at = now(), attempt = 1 WHERE id = %d`,
		id))
}

// wait queues n jobs of a tenant.
func (s *stepped) wait(
	tenant scheduler.Tenant, n int, opts *river.InsertOpts, requests ...ratelimit.Request,
) (ids []int64) {
	s.t.Helper()
	var params []scheduler.QueueManyParams
	for range n {
		s.number++
		params = append(params, scheduler.QueueManyParams{Args: sendArgs{s.number},
			InsertOpts: opts, Tenant: tenant, Requests: requests})
	}
	for _, job := range s.queue(s.t, params...) {
		ids = append(ids, job.Job.ID)
	}
	return ids
}

// numbers are those of the jobs.
func numbers(all []granted) (n []int) {
	for _, g := range all {
		n = append(n, g.n)
	}
	return n
}

// had is what each tenant was granted.
type had map[string]float64

func (h had) add(all []granted) {
	for _, g := range all {
		h[g.tenant] += g.cost
	}
}
