package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// wrapped is a worker with middleware of its own, which River runs around the plugin's.
type wrapped struct {
	river.Worker[sendArgs]
	around func(ctx context.Context, job *rivertype.JobRow, doInner func(context.Context) error) error
}

func (w *wrapped) Middleware(*rivertype.JobRow) []rivertype.WorkerMiddleware {
	return []rivertype.WorkerMiddleware{river.WorkerMiddlewareFunc(w.around)}
}

// A worker's own middleware does not begin before its job is due.
func TestAWorkersMiddlewareBeginsWhenItsJobIsDue(t *testing.T) {
	beside(t, func(t *testing.T, s *setting) {
		var mu sync.Mutex
		began := map[int64][]time.Time{}
		s.j.wrap = func(w river.Worker[sendArgs]) river.Worker[sendArgs] {
			return &wrapped{w, func(ctx context.Context, job *rivertype.JobRow,
				doInner func(context.Context) error) error {
				var now time.Time
				if err := s.f.pool.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now); err != nil {
					return err
				}
				mu.Lock()
				began[job.ID] = append(began[job.ID], now)
				mu.Unlock()
				return doInner(ctx)
			}}
		}
		client := s.client(t)
		now, due := s.f.now(t), map[int64]time.Time{}
		for n := range 20 {
			job := s.insert(t, client, n, now.Add(time.Duration(n)*100*time.Millisecond), nil).Job
			due[job.ID] = job.ScheduledAt
		}
		punctual(t, s.j.await(t, 20), due)
		s.f.completed(t, 20)
		mu.Lock()
		defer mu.Unlock()
		for id, at := range due {
			if b := began[id]; len(b) != 1 || b[0].Before(at) {
				t.Errorf("job %d is due at %v, and its middleware began at %v", id, at, b)
			}
		}
	})
}

// A worker's middleware opens a transaction around each job, and there are no more connections than
// workers: all jobs are worked, also if the first ones meet a pause.
func TestAWorkersMiddlewareHoldsAllConnections(t *testing.T) {
	var mosts sync.Map // connections at a time, by the name of the test
	pool := func(t *testing.T) *pgxpool.Pool {
		var open atomic.Int64
		most := new(atomic.Int64)
		mosts.Store(t.Name(), most)
		return pgtest.Pool(t, func(c *pgxpool.Config) {
			c.MaxConns = 4
			c.AfterConnect = func(context.Context, *pgx.Conn) error {
				for n := open.Add(1); ; {
					if m := most.Load(); n <= m || most.CompareAndSwap(m, n) {
						return nil
					}
				}
			}
			c.BeforeClose = func(*pgx.Conn) { open.Add(-1) }
		})
	}
	besideOn(t, pool, func(t *testing.T, s *setting) {
		var began, worked atomic.Int64
		s.j.wrap = func(river.Worker[sendArgs]) river.Worker[sendArgs] {
			w := river.WorkFunc(func(_ context.Context, job *river.Job[sendArgs]) error {
				switch n := worked.Add(1); {
				case n > 4:
					return nil
				case s.plain:
					return river.JobSnooze(time.Millisecond)
				default:
					return &scheduler.PauseError{For: time.Millisecond,
						Requests: []ratelimit.Request{budget.For(fmt.Sprint(job.ID))}}
				}
			})
			if !s.plain { // its take needs a connection as well
				w = scheduler.Limit(w, func(*river.Job[sendArgs]) []ratelimit.Request {
					return []ratelimit.Request{budget.For("limited")}
				})
			}
			return &wrapped{w, func(ctx context.Context, _ *rivertype.JobRow,
				doInner func(context.Context) error) error {
				return pgx.BeginFunc(ctx, s.f.pool, func(pgx.Tx) error {
					began.Add(1)
					for deadline := time.Now().Add(5 * time.Second); began.Load() < 4 && time.Now().Before(deadline); {
						time.Sleep(time.Millisecond) // until the first four hold all connections
					}
					return doInner(ctx)
				})
			}}
		}
		s.insertDue(t, s.f.client, 30, time.Second, nil)
		noTokens := newListener("could not take its tokens")
		s.client(t, workers(4), func(c *river.Config) { c.Logger = slog.New(noTokens) })
		for deadline := time.Now().Add(4 * time.Minute); worked.Load() < 34 && time.Now().Before(deadline); {
			time.Sleep(5 * time.Millisecond) // each look waits for a connection first, so this may take long
		}
		s.f.completed(t, 30)
		if n := worked.Load(); n != 34 {
			t.Errorf("30 jobs, four of which were snoozed, were worked %d times", n)
		}
		if snoozed, failed := s.f.count(t, `metadata ? 'snoozes'`), s.f.count(t,
			`errors IS NOT NULL`); snoozed < 4 || snoozed > 4 && !noTokens.hasHeard() || failed != 0 {
			t.Errorf("%d jobs were snoozed, and %d failed", snoozed, failed)
		}
		most, _ := mosts.Load(t.Name())
		// Those of the pool, River's listener, and one for a look while workers hold all others.
		if n := most.(*atomic.Int64).Load(); n > 4+1+1 {
			t.Errorf("%d connections were open at a time", n)
		}
	})
}

// To a worker's middleware a job that is put off has been snoozed.
func TestAWorkersMiddlewareSeesASnooze(t *testing.T) {
	beside(t, func(t *testing.T, s *setting) {
		seen := make(chan error, 1)
		s.j.wrap = func(w river.Worker[sendArgs]) river.Worker[sendArgs] {
			return &wrapped{w, func(ctx context.Context, _ *rivertype.JobRow,
				doInner func(context.Context) error) error {
				err := doInner(ctx)
				select {
				case seen <- err:
				default:
				}
				return err
			}}
		}
		if s.plain { // its worker does what the look at a paused limit does
			s.j.work = func(context.Context, *river.Job[sendArgs]) error { return river.JobSnooze(time.Hour) }
		}
		id := s.insertFrom(t, s.f.client, 1, nil).Job.ID
		if err := s.f.limiter.Autocommit(s.f.pool).Pause(t.Context(), time.Hour, budget.For("k")); err != nil {
			t.Fatal(err)
		}
		s.client(t)
		var snooze *rivertype.JobSnoozeError
		if err := within(t, "the job is fetched", seen); !errors.As(err, &snooze) ||
			snooze.Duration > time.Hour || snooze.Duration < 30*time.Minute {
			t.Errorf("the middleware has seen %v", err)
		}
		eventually(t, "the job is put off", func() bool { return s.f.job(t, id).State == rivertype.JobStateScheduled })
		job := s.f.job(t, id)
		if n := woken(t, job); n != 1 || job.Attempt != 0 || len(job.Errors) != 0 {
			t.Errorf("%d snoozes, attempt %d, errors %+v", n, job.Attempt, job.Errors)
		}
	})
}
