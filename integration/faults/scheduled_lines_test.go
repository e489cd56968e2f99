package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// Each job of the line takes a token of turns, which come more slowly than jobs do, and one of
// price, of which next to none comes back: so what is left of price says how many jobs have paid.
const (
	turnRate, turnBurst = 80, 50
	toPay               = 1_000_000
)

var (
	turns = ratelimit.MustDefine("turns", ratelimit.TokenBucket{Rate: turnRate, Period: time.Second,
		Capacity: ratelimit.Tokens(turnBurst), MaxReserved: ratelimit.Tokens(1000)})
	price = ratelimit.MustDefine("price",
		ratelimit.TokenBucket{Rate: 1, Period: time.Hour, Capacity: ratelimit.Tokens(toPay)})
	lined = scheduler.Config{Lines: []scheduler.Line{{Limit: turns}}}
)

// lining is a client that works and grants turns.
const lining kind = "lining"

// linedArgs are those of a job that pays once, however often it is tried.
type linedArgs struct {
	ID string `json:"id"`
}

func (linedArgs) Kind() string         { return "lined_work" }
func (linedArgs) Pays() scheduler.Pays { return scheduler.PerJob }

// linedWorker notes jobs that start without their tokens.
type linedWorker struct {
	river.WorkerDefaults[linedArgs]
	w *dueWorker
}

func (l *linedWorker) Work(ctx context.Context, job *river.Job[linedArgs]) error {
	if r, ok := scheduler.ReservationOf(job.JobRow); !ok || len(r.Takes) != 2 {
		if _, err := l.w.pool.Exec(ctx, `INSERT INTO unpaid VALUES ($1, $2)`, job.ID, job.Attempt); err != nil {
			return err
		}
	}
	return l.w.Work(ctx, &river.Job[dueArgs]{JobRow: job.JobRow, Args: dueArgs{ID: job.Args.ID}})
}

// queue queues a job of one of three tenants. It may start from now on.
func (s *shift) queue(ctx context.Context, tx pgx.Tx, id string) (*rivertype.JobRow, error) {
	tenant := scheduler.Tenant{Key: []string{"a", "b", "b", "c", "c", "c"}[rand.N(6)]}
	in, err := s.jobs.QueueTx(ctx, tx, linedArgs{id}, nil, tenant, turns.Global(), price.Global())
	if err != nil {
		return nil, err
	}
	job := *in.Job
	job.ScheduledAt = job.CreatedAt
	return &job, nil
}

func newLine(t *testing.T) *shift {
	t.Helper()
	s := newShift(t)
	s.kinds, s.put, s.more = []kind{lining, lining, plain}, s.queue, s.tokens
	s.exec(t, `CREATE TABLE unpaid (job bigint NOT NULL, attempt int NOT NULL)`)
	return s
}

// tokens compares what was taken with what was done, when all jobs are.
func (s *shift) tokens(t *testing.T) (violations []string) {
	t.Helper()
	say := func(n int, what string) {
		if n != 0 {
			violations = append(violations, fmt.Sprintf("%d %s", n, what))
		}
	}
	say(s.count(t, `SELECT count(*) FROM unpaid`), "attempts started without their tokens")
	say(s.count(t, `SELECT count(*) FROM weir_turn WHERE priority > 0`), "jobs are in line still")
	say(s.count(t, `SELECT (SELECT count(*) FROM plan) - coalesce((SELECT $1 - round(value) FROM weir_balance WHERE name = 'price'), 0)::bigint`,
		toPay), "jobs more than have paid")
	say(s.count(t, `SELECT count(*) FROM (
		SELECT at, row_number() OVER (ORDER BY at) AS n, (SELECT min(due) FROM plan) AS first
		FROM (SELECT min(at) AS at FROM start GROUP BY job) s
	) s WHERE at < first + (n - $1 - 1) / $2::float8 * interval '1 s'`, turnBurst, turnRate),
		"jobs started before their tokens had come")
	s.exec(t, `TRUNCATE unpaid`)
	return violations
}

// holders notes who grants turns.
func (s *shift) holders(t *testing.T, seen map[string]bool) {
	t.Helper()
	s.admin(t, func(ctx context.Context, conn *pgx.Conn) error {
		var holder string
		err := conn.QueryRow(ctx, `SELECT coalesce(max(holder::text), '') FROM weir_line WHERE until > now()`).
			Scan(&holder)
		if holder != "" {
			seen[holder] = true
		}
		return err
	})
}

// Clients that work and grant turns are killed, one after the other.
func TestALineWhenWorkersAreKilled(t *testing.T) {
	t.Parallel()
	rig.Large(t)
	s := newLine(t)
	seen := map[string]bool{}
	s.run(t, fault{rounds: 1}, func() bool { return s.kills > 0 && len(seen) > 1 }, func(t *testing.T) {
		for range 4 {
			s.holders(t, seen)
			h := s.any()
			if rand.N(2) > 0 {
				s.busy(t, h)
			}
			s.fire(h)
			s.hire(t, h.kind)
			s.callers.await(t, granted, 20+rand.N(30))
		}
		s.holders(t, seen)
	})
}

// Each client stands still for longer than it holds the line, and then goes on.
func TestALineWhenClientsAreFrozen(t *testing.T) {
	t.Parallel()
	rig.Large(t)
	s := newLine(t)
	seen := map[string]bool{}
	s.run(t, fault{rounds: 1}, func() bool { return len(seen) > 1 }, func(t *testing.T) {
		for _, h := range s.crew {
			if h.kind == plain {
				continue
			}
			s.holders(t, seen)
			signal(t, h, syscall.SIGSTOP)
			time.Sleep(4 * time.Second)
			s.holders(t, seen)
			signal(t, h, syscall.SIGCONT)
			s.callers.await(t, granted, 20)
		}
	})
}

func TestALineWhenTheServerIsKilledAndShutDown(t *testing.T) {
	t.Parallel()
	rig.Large(t)
	ours(t)
	s := newLine(t)
	s.server = true
	x := fault{rounds: 1, hits: []class{away}, allowed: []class{unknown}}
	s.run(t, x, func() bool { return s.outages > 0 }, s.restarts)
}

// The audit finds jobs that somebody starts before their turns, where no client knows of the line.
func TestTheAuditFindsWorkBeforeItsTurn(t *testing.T) {
	t.Parallel()
	rig.Large(t)
	s := newLine(t)
	s.hire(t, plain)
	stop := s.reserve(t)
	s.callers.await(t, granted, 50)
	stop()
	s.exec(t, `UPDATE river_job SET state = 'available', scheduled_at = now() WHERE state = 'scheduled'`)
	if f := s.examine(t); len(f.violations) > 0 {
		t.Errorf("violations: %q", f.violations)
	}
	s.exec(t, `UPDATE start SET at = (SELECT min(due) FROM plan)`)
	v := strings.Join(s.tokens(t), "\n")
	for _, want := range []string{"without their tokens", "in line still", "more than have paid"} {
		if !strings.Contains(v, want) {
			t.Errorf("the audit says %q, want that attempts %s", v, want)
		}
	}
}
