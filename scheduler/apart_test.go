package scheduler_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/weir-go/weir/scheduler"
)

// Jobs that were granted at once, and that a later pause puts off, start apart when it ends or is
// ended: those that a worker was to start, and those behind them.
func TestThoseThatAPausePutsOffStartApart(t *testing.T) {
	t.Parallel()
	for name, pause := range map[string]time.Duration{"ItEnds": 5 * time.Second, "ItIsEnded": time.Hour} {
		for _, workers := range []int{20, 1} {
			t.Run(fmt.Sprint(name, workers), func(t *testing.T) {
				t.Parallel()
				untilInTime(t, func(t *testing.T) bool {
					f, _, j := exact(t)
					sched := scheduler.New(f.limiter, scheduler.Config{}) // with jitter
					const n = 20
					f.insertTogether(t, f.jobs, n/2, budget.For("k"))
					time.Sleep(3 * time.Second) // which is no reason to start apart by as much
					f.insertTogether(t, f.jobs, n/2, budget.For("k"))
					if err := f.limiter.Autocommit(f.pool).Pause(t.Context(), pause, budget.For("k")); err != nil {
						t.Fatal(err)
					}
					var until time.Time
					if err := f.pool.QueryRow(t.Context(),
						`SELECT paused_until FROM weir_balance WHERE name = $1`, budget.Name()).Scan(&until); err != nil {
						t.Fatal(err)
					}
					j.client(t, sched, func(c *river.Config) {
						c.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: workers}}
					})
					if pause == time.Hour {
						eventually(t, "all are put off", func() bool { return f.count(t, `scheduled_at >= $1`, until) == n })
						until = f.now(t)
						f.inTx(t, func(ctx context.Context, tx pgx.Tx) error { return f.limiter.Resume(ctx, tx, budget.For("k")) })
					}
					var due []time.Time
					for _, s := range j.await(t, n) {
						if s.at.Before(until) || s.at.Before(s.due) {
							t.Errorf("job %d started %v before the end of the pause", s.n, until.Sub(s.at))
						}
						if !s.due.Before(until) { // else it comes to a worker after the pause, if the machine is slow
							due = append(due, s.due.Truncate(time.Millisecond))
						}
					}
					slices.SortFunc(due, time.Time.Compare)
					if apart := len(slices.Compact(slices.Clone(due))); apart < len(due)/2 {
						t.Errorf("%d jobs were due at %d different times: %v", len(due), apart, due)
					}
					// a worker that puts a job off may stall before River adds that to its clock
					return len(due) == 0 || due[len(due)-1].Sub(due[0]) <= 251*time.Millisecond
				})
			})
		}
	}
}
