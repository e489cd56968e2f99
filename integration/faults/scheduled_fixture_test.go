package faults

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// delay has a token each millisecond, and a full bucket of a second's: with each key used once, the
// tokens that are reserved say when the job is due.
var delay = ratelimit.MustDefine("delay", ratelimit.TokenBucket{Rate: 1000, Period: time.Second})

// What is planned is written with the reservation, as a retry changes river_job. No constraints:
// see tables.
const shiftTables = `
CREATE TABLE plan (id text NOT NULL, job bigint NOT NULL, due timestamptz NOT NULL);
CREATE TABLE start (job bigint NOT NULL, attempt int NOT NULL, worker text NOT NULL, at timestamptz NOT NULL, due timestamptz NOT NULL);
CREATE TABLE done (job bigint NOT NULL, attempt int NOT NULL, worker text NOT NULL)`

// shift is a crew of workers and those who keep reserving jobs for them.
type shift struct {
	*fixture
	client  *river.Client[pgx.Tx] // inserts only
	jobs    *scheduler.Jobs
	crew    map[string]*hand // that live
	killed  map[string]bool  // that are dead
	hired   int
	prefix  string   // of the ids of jobs
	server  bool     // goes away
	control bool     // there is no plugin anywhere
	env     []string // of the workers

	kinds []kind // who works in run
	// inserts a job in place of reserving one
	put   func(ctx context.Context, tx pgx.Tx, id string) (*rivertype.JobRow, error)
	more  func(t *testing.T) (violations []string) // that are not of all jobs
	slots bool                                     // an attempt whose slot is lost is repeated

	mu     sync.Mutex
	ids    int
	lapses map[attempt]lapse

	worked                   int // jobs
	late                     []time.Duration
	kills, outages, overtime int
}

func newShift(t *testing.T) *shift {
	t.Helper()
	f := setUp(t)
	f.exec(t, shiftTables)
	s := &shift{fixture: f, prefix: "job", crew: map[string]*hand{}, killed: map[string]bool{},
		lapses: map[attempt]lapse{},
		kinds:  []kind{careful, careful, plain}}
	if err := s.connectRiver(false); err != nil {
		t.Fatal(err)
	}
	return s
}

// connectRiver makes the client that inserts.
func (s *shift) connectRiver(control bool) (err error) {
	sched := scheduler.New(s.app.limiter, lined)
	config := &river.Config{Logger: slog.New(slog.DiscardHandler), Schema: s.name}
	if s.control = control; !control {
		config = sched.Configure(s.pool, config)
	}
	if s.client, err = river.NewClient(riverpgxv5.New(s.pool), config); err == nil {
		s.jobs = sched.Jobs(s.client)
	}
	return err
}

// reserve keeps jobs coming; what it returns ends that.
func (s *shift) reserve(t *testing.T) (stop func()) {
	t.Helper()
	ctx, began := t.Context(), time.Now()
	stopping := make(chan struct{})
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			pace := time.NewTicker(30 * time.Millisecond)
			defer pace.Stop()
			for {
				select {
				case <-stopping:
					return
				case <-pace.C:
					w := wish{after: time.Millisecond + rand.N(4*time.Second), far: rand.N(10) == 0}
					if time.Since(began) < time.Second && rand.N(10) == 0 {
						w.after = 6*time.Second + rand.N(500*time.Millisecond)
					}
					s.once(ctx, w)
				}
			}
		})
	}
	stop = sync.OnceFunc(func() {
		close(stopping)
		wg.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// wish is a job that somebody wants.
type wish struct {
	after time.Duration // it is due, and jitter
	far   bool          // as if it had been further ahead: River has it as scheduled, until somebody promotes it
	loose bool
}

// once reserves a job, or of a control schedules it.
func (s *shift) once(ctx context.Context, w wish) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	s.mu.Lock()
	s.ids++
	id := fmt.Sprintf("%s-%d", s.prefix, s.ids)
	s.mu.Unlock()
	s.callers.begin(op{ID: id})
	err := s.app.limiter.InTx(ctx, s.pool, func(ctx context.Context, tx pgx.Tx) error {
		job, err := s.insert(ctx, tx, dueArgs{id, w.loose}, w.after)
		if err != nil {
			return err
		}
		if w.far {
			if _, err := tx.Exec(ctx, `UPDATE river_job SET state = 'scheduled' WHERE id = $1`, job.ID); err != nil {
				return err
			}
		}
		_, err = tx.Exec(ctx, `INSERT INTO plan VALUES ($1, $2, $3)`, id, job.ID, job.ScheduledAt)
		return err
	})
	s.callers.end(resultOf(id, err))
}

func (s *shift) insert(ctx context.Context, tx pgx.Tx, args dueArgs, after time.Duration) (*rivertype.JobRow, error) {
	if s.put != nil {
		return s.put(ctx, tx, args.ID)
	}
	if s.control {
		in, err := s.client.InsertTx(ctx, tx, args, &river.InsertOpts{ScheduledAt: time.Now().Add(after)})
		if err != nil {
			return nil, err
		}
		return in.Job, nil
	}
	in, err := s.jobs.InsertTx(ctx, tx, args, nil, delay.For(args.ID).Count(1000+after.Seconds()*1000).OrReserve())
	if err == nil {
		err = in.Err()
	}
	if err != nil {
		return nil, err
	}
	return in.Job.Job, nil
}

// count is the answer to a question.
func (s *shift) count(t testing.TB, sql string, args ...any) (n int) {
	t.Helper()
	s.admin(t, func(ctx context.Context, conn *pgx.Conn) error { return conn.QueryRow(ctx, sql, args...).Scan(&n) })
	return n
}

// busy waits until a worker is in the middle of a job.
func (s *shift) busy(t *testing.T, h *hand) {
	t.Helper()
	s.admin(t, func(ctx context.Context, conn *pgx.Conn) error {
		for {
			var n int
			if err := conn.QueryRow(ctx,
				`SELECT count(*) FROM start s JOIN river_job j ON j.id = s.job AND j.state = 'running'
				WHERE s.worker = $1 AND s.at > now() - interval '1 s'`, h.name).Scan(&n); err != nil || n > 0 {
				return err
			}
			if _, err := conn.Exec(ctx, `SELECT pg_sleep(0.001)`); err != nil { // between two polls
				return err
			}
		}
	})
}

// leader waits until one of the crew leads.
func (s *shift) leader(t *testing.T) *hand {
	t.Helper()
	for deadline := time.Now().Add(hung); ; time.Sleep(5 * time.Millisecond) {
		var name string
		s.admin(t, func(ctx context.Context, conn *pgx.Conn) error {
			return conn.QueryRow(ctx,
				`SELECT coalesce((SELECT leader_id FROM river_leader WHERE expires_at > now()), '')`).
				Scan(&name)
		})
		if h := s.crew[name]; h != nil {
			return h
		}
		if time.Now().After(deadline) {
			t.Fatalf("nobody leads for %v", hung)
		}
	}
}

// Statements that let time pass for what the dead have left.
const (
	// River's rescuer finds what they worked on.
	ageRows = `UPDATE river_job SET attempted_at = attempted_at - interval '5 min'
		WHERE state = 'running' AND attempted_at > now() - interval '2 min' AND attempted_by[array_upper(attempted_by, 1)] = ANY ($1)`
	ageLeader = `UPDATE river_leader SET expires_at = now() - interval '1 s' WHERE leader_id = ANY ($1)`
)

func (s *shift) age(t *testing.T, sql string) {
	t.Helper()
	dead := slices.Collect(maps.Keys(s.killed))
	s.admin(t, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sql, dead)
		return err
	})
}

// settled waits until all jobs are completed. If for two minutes no more of them are, the audit
// says what is wrong.
func (s *shift) settled(t *testing.T) {
	t.Helper()
	term, resign := 5*time.Second, time.Now().Add(time.Second)
	last, since := 0, time.Now()
	for ; time.Since(since) < 2*time.Minute; time.Sleep(50 * time.Millisecond) {
		n := s.count(t, unfinished)
		if n == 0 {
			return
		}
		if n != last {
			last, since = n, time.Now()
		}
		s.age(t, ageLeader)
		s.age(t, ageRows)
		// A new leader rescues and promotes at once, if it is given the time to start, of which a
		// slow machine takes more: River's own ticks are 30 and 5 s.
		if time.Now().After(resign) {
			s.resign(t)
			resign = time.Now().Add(term)
			term += time.Second
		}
	}
}

const unfinished = `SELECT count(*) FROM river_job WHERE state <> 'completed'`

func (s *shift) resign(t *testing.T) {
	t.Helper()
	if err := s.client.Notify().RequestResign(t.Context()); err != nil && classify(err) != away {
		t.Fatal(err)
	}
}

// ledger reads all there is, in one snapshot.
func (s *shift) ledger(t *testing.T) *ledger {
	t.Helper()
	l := &ledger{}
	s.admin(t, func(ctx context.Context, conn *pgx.Conn) error {
		return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead,
			AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
			var p plan
			if err := each(ctx, tx, `SELECT id, job, due FROM plan`, []any{&p.id, &p.job, &p.due}, func() {
				l.plans = append(l.plans, p)
			}); err != nil {
				return err
			}
			var r row
			if err := each(ctx, tx, `SELECT id, args->>'id', state, coalesce(attempted_by[array_upper(attempted_by, 1)], ''),
				format(' at attempt %s, due at %s, with %s rows in line, and %s', attempt, scheduled_at,
					(SELECT count(*) FROM weir_turn t WHERE t.job = j.id), metadata) FROM river_job j`,
				[]any{&r.job, &r.id, &r.state, &r.by, &r.more}, func() { l.rows = append(l.rows, r) }); err != nil {
				return err
			}
			var b began
			if err := each(ctx, tx, `SELECT job, attempt, worker, at FROM start`,
				[]any{&b.job, &b.number, &b.worker, &b.at},
				func() { l.starts = append(l.starts, b) }); err != nil {
				return err
			}
			var d attempt
			return each(ctx, tx, `SELECT job, attempt, worker FROM done`, []any{&d.job, &d.number, &d.worker},
				func() { l.dones = append(l.dones, d) })
		})
	})
	return l
}

// examine settles, sends the crew home and audits.
func (s *shift) examine(t *testing.T) *finding {
	t.Helper()
	s.settled(t)
	s.dismiss(t)
	l := s.ledger(t)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.callers.mu.Lock()
	defer s.callers.mu.Unlock()
	f := review(l, &told{records: s.callers.records, killed: s.killed, lapses: s.lapses,
		server: s.server, slots: s.slots})
	s.worked += len(l.plans)
	s.late = append(s.late, f.late...)
	s.kills, s.outages, s.overtime = s.kills+f.kills, s.outages+f.outages, s.overtime+f.overtime
	return f
}

func (s *shift) startOver(t *testing.T) {
	t.Helper()
	s.exec(t, `TRUNCATE plan, start, done, river_job, river_leader, weir_balance, weir_line, weir_line_tenant, weir_turn`)
	s.callers.forget()
}

// run lets a crew work while inject does its worst, and audits what has become of the jobs.
func (s *shift) run(t *testing.T, x fault, hit func() bool, inject func(t *testing.T)) {
	t.Helper()
	start := time.Now()
	enough, patient := rounds(t, x.rounds), patience()
	for ; !enough(s.rounds) || (!hit() || s.callers.spared(x)) && patient(s.rounds); s.rounds++ {
		s.hire(t, s.kinds...)
		stop := s.reserve(t)
		s.callers.await(t, granted, 50)
		s.leader(t)
		inject(t)
		s.callers.await(t, granted, 50)
		stop()
		f := s.examine(t)
		if s.more != nil {
			f.violations = append(f.violations, s.more(t)...)
		}
		for i, v := range f.violations {
			if i == 20 {
				t.Errorf("and %d more", len(f.violations)-i)
				break
			}
			t.Errorf("round %d: %s", s.rounds, v)
		}
		if len(f.violations) > 0 {
			t.FailNow()
		}
		s.startOver(t)
	}
	for _, v := range s.callers.senseless(x) {
		t.Error(v)
	}
	if !hit() {
		t.Error("the fault hit nothing")
	}
	slices.Sort(s.late)
	summary :=
		fmt.Sprintf("faults: %s: %d rounds in %.1f s: %d jobs (reserving: %s), each done once and none early; %d workers killed, "+
			"%d starts repeated after that, %d as the server was away, %d over time; p50 %v late, p95 %v, latest %v",
			t.Name(), s.rounds, time.Since(start).Seconds(), s.worked, s.callers, len(s.killed),
			s.kills, s.outages, s.overtime, s.lateness(50), s.lateness(95), s.lateness(100))
	t.Log(summary)
	fmt.Println(summary)
}

// lateness is a percentile of the first starts'.
func (s *shift) lateness(percent int) time.Duration {
	if len(s.late) == 0 {
		return 0
	}
	return s.late[(len(s.late)-1)*percent/100].Round(time.Millisecond)
}

// says counts the violations that have a text in them.
func (f *finding) says(text string) (n int) {
	for _, v := range f.violations {
		if strings.Contains(v, text) {
			n++
		}
	}
	return n
}
