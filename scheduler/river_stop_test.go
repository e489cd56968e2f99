package scheduler_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// An attempt that has begun has paid, though a stop of its client interrupts it: the next one, at
// another client, pays too.
func TestAnInterruptedAttemptHasPaid(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		pays scheduler.Pays
		once bool
		soft bool // each client is stopped softly, and its timeout interrupts the attempt
	}{
		"PerAttempt": {scheduler.PerAttempt, false, false}, "PerStart": {scheduler.PerStart, false, false},
		"PerJob": {scheduler.PerJob, true, false}, "SoftStop": {scheduler.PerAttempt, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			beside(t, func(t *testing.T, s *setting) {
				s.j.work = func(ctx context.Context, _ *river.Job[sendArgs]) error {
					if len(s.j.await(t, 1)) >= 3 {
						return nil
					}
					<-ctx.Done() // the API was called, and has not answered
					return ctx.Err()
				}
				id := s.insertFrom(t, s.f.client, payer(c.pays), nil).Job.ID
				for n := range 3 {
					client := s.client(t, func(cfg *river.Config) {
						if c.soft {
							cfg.SoftStopTimeout = time.Millisecond
						}
					})
					s.j.await(t, n+1)
					switch {
					case n == 2:
					case c.soft:
						ctx, cancel := context.WithTimeout(t.Context(), patience)
						err := client.Stop(ctx)
						if cancel(); err != nil {
							t.Fatal(err)
						}
					default:
						stop(t, client)
					}
				}
				s.f.completed(t, 1)
				if n := s.f.fetched(t, id); c.once {
					s.charged(t, 100)
				} else {
					s.charged(t, 100*n)
				}
			})
		})
	}
}

// fetched is how often clients have fetched a job that had to be stopped: mostly once each, but a
// client that is being stopped may fetch the job once more. River counts no such attempt in newer
// releases.
func (f *fixture) fetched(t testing.TB, id int64) float64 {
	t.Helper()
	return float64(len(f.job(t, id).AttemptedBy))
}

// What a job has taken is given back if it is cancelled and has not begun, and is kept if it has.
func TestACancelledJobThatAStopHasInterrupted(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	s := &setting{f: f, sched: sched, j: j}
	s.j.work = func(ctx context.Context, _ *river.Job[sendArgs]) error {
		<-ctx.Done()
		return ctx.Err()
	}
	begun := s.insertFrom(t, f.client, 1, nil).Job.ID
	client := s.client(t)
	s.j.await(t, 1)
	stop(t, client)
	waits := s.insertFrom(t, f.client, 2, nil).Job.ID // no client runs
	s.charged(t, 100+100*f.fetched(t, begun))
	for id, charged := range map[int64]float64{begun: 0, waits: 100} {
		before := f.left(t, budget.For("k"))
		f.cancel(t, sched.Jobs(f.client), id)
		f.wantLeft(t, budget.For("k"), before+charged)
		if job := f.job(t, id); job.State != rivertype.JobStateCancelled {
			t.Errorf("%+v", job)
		}
	}
	if job := f.job(t, waits); len(job.AttemptedBy) != 0 {
		t.Errorf("%+v", job)
	}
}

// River's tables stand in a schema of their own, as Config.Schema says, and Weir's in another.
func TestRiverHasASchemaOfItsOwn(t *testing.T) {
	t.Parallel()
	for name, plain := range map[string]bool{"Configured": false, "PlainRiver": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			of := &fixture{pool: pgtest.Bare(t)} // sees River's tables
			schema := of.pool.Config().ConnConfig.RuntimeParams["search_path"]
			f := &fixture{pool: pgtest.Pool(t)}
			migrator, err := rivermigrate.New(riverpgxv5.New(f.pool),
				&rivermigrate.Config{Logger: quiet(), Schema: schema})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := migrator.Migrate(t.Context(), rivermigrate.DirectionUp, nil); err != nil {
				t.Fatal(err)
			}
			if f.limiter, err = ratelimit.New(ratelimit.Config{Citus: pgtest.Citus()}); err != nil {
				t.Fatal(err)
			}
			sched := scheduler.New(f.limiter, scheduler.Config{Jitter: -1})
			s := &setting{f: f, j: newJournal(f), sched: sched, plain: plain}
			if !plain {
				notified(t, s, schema)
				of.exec(t, `DELETE FROM river_job`)
			}
			client := s.client(t, func(c *river.Config) { c.Schema = schema })
			now, due := f.now(t), map[int64]time.Time{}
			for n := range 20 {
				job := s.insert(t, client, n, now.Add(time.Duration(n)*100*time.Millisecond), nil).Job
				due[job.ID] = job.ScheduledAt
			}
			cancelled := s.insertFrom(t, client, 100, &river.InsertOpts{ScheduledAt: now.Add(time.Hour)}).Job.ID
			if plain {
				_, err = client.JobCancel(t.Context(), cancelled)
			} else {
				f.cancel(t, sched.Jobs(client), cancelled)
			}
			if err != nil {
				t.Fatal(err)
			}
			punctual(t, s.j.await(t, 20), due)
			eventually(t, "all are completed", func() bool { return of.count(t, `state = 'completed'`) == 20 })
			if n := of.count(t, `state = 'cancelled'`); n != 1 {
				t.Errorf("%d jobs are cancelled", n)
			}
			s.charged(t, 0)
		})
	}
}

// notified checks that River is notified in its schema when a job is due, by the process that has
// reserved it: no client runs.
func notified(t *testing.T, s *setting, schema string) {
	t.Helper()
	client, err := river.NewClient(riverpgxv5.New(s.f.pool),
		s.sched.Configure(s.f.pool, &river.Config{Logger: quiet(), Schema: schema}))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := s.f.pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	own := conn.Hijack()
	defer func() { _ = own.Close(context.WithoutCancel(ctx)) }()
	if _, err := own.Exec(ctx, `LISTEN `+pgx.Identifier{schema + ".river_insert"}.Sanitize()); err != nil {
		t.Fatal(err)
	}
	var due, next time.Time
	for {
		if now := s.f.now(t); !now.Before(next) { // if it takes seconds to look for a job: for another one
			due = s.insert(t, client, 0, now.Add(time.Second), nil).Job.ScheduledAt
			next = now.Add(10 * time.Second)
		}
		try, cancel := context.WithTimeout(ctx, 10*time.Second)
		n, err := own.WaitForNotification(try)
		late := try.Err() != nil && ctx.Err() == nil
		cancel()
		if late {
			continue
		}
		if err != nil {
			t.Fatal("River is not notified: ", err)
		}
		var to struct{ Queue string }
		if err := json.Unmarshal([]byte(n.Payload), &to); err != nil || to.Queue != river.QueueDefault {
			t.Errorf("%s: %v", n.Payload, err)
		}
		if !s.f.now(t).Before(due) {
			return
		}
	}
}
