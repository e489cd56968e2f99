package main

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// withRiver makes River's tables, and returns what inserts jobs and their tokens.
func withRiver(t *testing.T, pool *pgxpool.Pool) (*ratelimit.Limiter, *river.Client[pgx.Tx]) {
	t.Helper()
	m, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := pgtest.Alone(t.Context(), pool, func() error {
		_, err := m.Migrate(t.Context(), rivermigrate.DirectionUp, nil)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	l, err := ratelimit.New(ratelimit.Config{Citus: pgtest.Citus()})
	if err != nil {
		t.Fatal(err)
	}
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return l, client
}

// queued has jobs of three tenants wait for the key eu: of greedy, which has had 30 tokens more
// than the others, of out, whose own limit has too few, and of "modest".
func queued(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.Pool(t)
	l, client := withRiver(t, pool)
	shared := ratelimit.MustDefine("sharedAPI",
		ratelimit.TokenBucket{Rate: 10, Period: never, MaxReserved: ratelimit.Tokens(10)})
	own := ratelimit.MustDefine("orgTokens", ratelimit.TokenBucket{Rate: 10, Period: never})
	jobs := scheduler.New(l, scheduler.Config{Lines: []scheduler.Line{{Limit: shared}}}).Jobs(client)
	queue := func(tenant string, n int, opts *river.InsertOpts, count float64, also ...ratelimit.Request) {
		if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			for range n {
				if _, err := jobs.QueueTx(t.Context(), tx, args{}, opts, scheduler.Tenant{Key: tenant},
					append(also, shared.For("eu").Count(count))...); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	queue("greedy", 3, nil, 2)                        // 1 to 3
	queue("out", 2, nil, 20, own.For("out").Count(4)) // 4 and 5
	queue("modest", 1, nil, 1)                        // 6
	queue("modest", 1, &river.InsertOpts{ScheduledAt: time.Now().Add(never)}, 1)
	if err := l.Autocommit(pool).Consume(t.Context(), own.For("out").Count(8)); err != nil {
		t.Fatal(err)
	}
	exec(t, pool, `INSERT INTO weir_line (name, key, virtual, others, value, seen, until, holder)
		VALUES ('sharedAPI', 'eu', 1000, 0, 0, '-infinity', now(), '00000000-0000-0000-0000-000000000000')`)
	exec(t, pool, `INSERT INTO weir_line_tenant (name, key, tenant, at, credit) VALUES ('sharedAPI', 'eu', 'greedy', 1030.5, 0)`)
	return pool
}

func TestALineIsShown(t *testing.T) {
	t.Parallel()
	pool := queued(t)
	is(t, weir(t, pool, "line", "sharedAPI", "eu").ok(t).out, `
TURN  TENANT  JOBS  CHARGED  NEXT JOB  KIND   PRIORITY
   1  modest     1        0         6  reply         1
   2  out        2        0         4  reply         1  passed over: orgTokens of out has too few tokens
   4  greedy     3     30.5         1  reply         1
`[1:])
	is(t, weir(t, pool, "line", "sharedAPI", "eu", "--most", "1").ok(t).out, `
TURN  TENANT  JOBS  CHARGED  NEXT JOB  KIND   PRIORITY
   1  modest     1        0         6  reply         1

Tenants that are not shown: 2. See --most.
`[1:])
	is(t, weir(t, pool, "line", "sharedAPI").ok(t).out,
		"No job waits for its turn at sharedAPI, or for a slot of it. If the limit has keys, name one.\n")
	is(t, weir(t, pool, "line", "sharedAPI", "us").ok(t).out,
		"No job waits for its turn at sharedAPI of us, or for a slot of it.\n")
	var l inLine
	weir(t, pool, "line", "sharedAPI", "eu", "--json").ok(t).json(t, &l)
	if len(l.Jobs) != 6 || len(l.Tenants) != 3 || l.More || l.Balance != nil ||
		l.Jobs[5].Turn != 6 || l.Jobs[5].Charged != 34.5 ||
		l.Tenants[1].PassedBy == nil || l.Tenants[1].PassedBy.Key != "out" || l.Tenants[2].Next.Job != 1 {
		t.Errorf("%+v", l)
	}
	weir(t, pool, "line", "nobody", "--json").ok(t).json(t, &l)
	if l.Jobs == nil || l.Tenants == nil || len(l.Jobs)+len(l.Tenants) > 0 {
		t.Errorf("%+v", l)
	}
	// The order of jobs with priorities is not certain, and the command says so.
	exec(t, pool, `UPDATE weir_turn SET priority = 2 WHERE job = 3`)
	exec(t, pool, `UPDATE river_job SET priority = 2 WHERE id = 3`)
	if got := weir(t, pool, "line", "sharedAPI", "eu").ok(t).out; !strings.Contains(got, "\n\n"+assumed+"\n") {
		t.Error(got)
	}
	weir(t, pgtest.Pool(t), "line", "sharedAPI").fails(t, exitFailed, "--river-schema")
}

func TestAJobInLineIsExplained(t *testing.T) {
	t.Parallel()
	pool := queued(t)
	is(t, weir(t, pool, "explain", "2").ok(t).out, `
Job 2 (reply) waits for its turn at sharedAPI of eu, for tenant greedy.
  turn      5
  charged   its tenant will have had 32.5 tokens more than all who wait have had, for a weight of 1
  after     1 job of tenant modest
            2 jobs of tenant out
            1 job of tenant greedy
`[1:])
	is(t, weir(t, pool, "explain", "5").ok(t).out, `
Job 5 (reply) waits for its turn at sharedAPI of eu, for tenant out.
  turn      3
  charged   its tenant will have had 20 tokens more than all who wait have had, for a weight of 1
  after     1 job of tenant modest
            1 job of tenant out
  passed    over, as orgTokens of out has too few tokens for its tenant's next job
`[1:])
	is(t, anInstant.ReplaceAllString(weir(t, pool, "explain", "7").ok(t).out, "TIME"), `
Job 7 (reply) waits for its turn at sharedAPI of eu, for tenant modest.
  turn      not before TIME
`[1:])
	var a explained
	weir(t, pool, "explain", "2", "--json").ok(t).json(t, &a)
	if !a.Waits || a.Tenant != "greedy" || a.Turn != 5 || a.Charged != 32.5 || len(a.Before) != 3 ||
		!a.Until.IsZero() || a.PassedBy != nil {
		t.Errorf("%+v", a)
	}
}

// waitingForSlots has the first three of those jobs wait for slots of the limit exports and the key
// eu, as a worker made by scheduler.AtOnce does: the queue of the second is paused.
func waitingForSlots(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := queued(t)
	exec(t, pool, `UPDATE river_job SET metadata = '{}', queue = CASE id WHEN 2 THEN 'stopped' ELSE 'default' END WHERE id < 4`)
	exec(t, pool, `INSERT INTO river_queue (name, created_at, updated_at, paused_at) VALUES ('stopped', now(), now(), now())`)
	exec(t, pool, `UPDATE weir_turn SET name = '', key = current_schema(), tenant = '7 exports eu' WHERE job < 4`)
	return pool
}

func TestJobsThatWaitForSlotsAreShown(t *testing.T) {
	t.Parallel()
	pool := waitingForSlots(t)
	is(t, weir(t, pool, "line", "exports", "eu").ok(t).out, `
Jobs that wait for a slot of exports of eu:
TURN  JOB  KIND   PRIORITY
   1    1  reply         1
none    2  reply         1  its queue is paused
   2    3  reply         1
`[1:])
	if got := weir(t, pool, "line", "exports", "eu", "--most", "1").ok(t).
		out; !strings.HasSuffix(got, "At least 2 jobs are not shown. See --most.\n") {
		t.Error(got)
	}
	is(t, weir(t, pool, "explain", "3").ok(t).out, "Job 3 (reply) waits for a slot of exports of eu.\n  turn      2\n")
	is(t, weir(t, pool, "explain", "2").ok(t).out,
		"Job 2 (reply) waits for a slot of exports of eu.\n  turn      none while its queue is paused; it keeps its place\n")
	var l inLine
	weir(t, pool, "line", "exports", "eu", "--json").ok(t).json(t, &l)
	if len(l.Jobs) != 0 || len(l.Slots) != 3 || l.Slots[2].Turn != 2 || !l.Slots[1].QueuePaused ||
		l.Slots[1].Turn != 0 {
		t.Errorf("%+v", l)
	}
	var a explained
	weir(t, pool, "explain", "3", "--json").ok(t).json(t, &a)
	if !a.Waits || !a.Slot || a.Turn != 2 || a.Limit != "exports" || a.Key != "eu" ||
		a.QueuePaused || a.Balance != nil {
		t.Errorf("%+v", a)
	}
}

// However many jobs wait, the answer comes from a few hundred.
func TestALongLineIsShownInPart(t *testing.T) {
	t.Parallel()
	pool := queued(t)
	exec(t, pool, `INSERT INTO weir_turn (name, key, tenant, priority, due, job, cost, weight)
		SELECT 'sharedAPI', 'eu', 'greedy', 1, due, 1000 + i, 2, 1 FROM weir_turn CROSS JOIN generate_series(1, 300) AS i WHERE job = 3`)
	exec(t, pool, `INSERT INTO river_job (id, args, kind, max_attempts, metadata, scheduled_at, state)
		SELECT 1000 + i, args, kind, max_attempts, metadata, scheduled_at, state
		FROM river_job CROSS JOIN generate_series(1, 300) AS i WHERE id = 3`)
	got := weir(t, pool, "line", "sharedAPI", "eu").ok(t).out
	if !strings.Contains(got, "greedy   100") ||
		!strings.Contains(got, "\n\nJOBS counts the 103 jobs that were read. There are more.\n") {
		t.Error(got)
	}
	if got := weir(t, pool, "explain", "1300").ok(t).out; !strings.Contains(got,
		"\n  turn      later than those of the jobs that were read\n") {
		t.Error(got)
	}
}
