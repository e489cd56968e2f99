package scheduler_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/riverqueue/river"

	"github.com/weir-go/weir/internal/test/pgserver"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// A worker of Citus that is down holds up jobs of its own keys only, even if it has the row that
// says who does the rounds. Late jobs of other keys pay anew. When one of them is cancelled, it
// gives back what it took, and the next one moves up.
func TestAWorkerThatIsDownHoldsUpNoJobOfAnotherKey(t *testing.T) {
	for name, most := range map[string]int{"AtWorkers": 20, "InTheQueue": 1} {
		t.Run(name, func(t *testing.T) {
			c, pool := pgtest.OwnCluster(t)
			f := setUpOn(t, pool, scheduler.Config{})
			sched, j := scheduler.New(f.limiter, scheduler.Config{Jitter: -1}), newJournal(f)
			home := func(key string) (port int) {
				t.Helper()
				if err := pool.QueryRow(t.Context(), `SELECT n.nodeport
					FROM pg_dist_placement p JOIN pg_dist_node n USING (groupid)
					WHERE p.shardid = get_shard_id_for_distribution_column('weir_slot', $1::text)`,
					key).Scan(&port); err != nil {
					t.Fatal(err)
				}
				return port
			}
			var down, up []string // keys
			for i := 0; len(down) < 1 || len(up) < 2; i++ {
				if key := fmt.Sprint("k", i); home(key) == home("public") { // River's schema
					down = append(down, key)
				} else {
					up = append(up, key)
				}
			}
			var node *pgserver.Server
			for _, s := range c[1:] {
				if strings.Contains(s.URL(), fmt.Sprintf(":%d/", home("public"))) {
					node = s
				}
			}

			limit := ratelimit.MustDefine("down",
				ratelimit.TokenBucket{Rate: 10, Period: time.Second, Capacity: ratelimit.Tokens(0)})
			ahead := ratelimit.MustDefine("down ahead",
				ratelimit.TokenBucket{Rate: 1, Period: time.Second, Capacity: ratelimit.Tokens(0)})
			gone := []int64{
				f.reserveOn(t, 10, nil, ahead.For(down[0]).Count(3000)).ID,
				f.reserveOn(t, 11, nil, ahead.For(up[0]).Count(3000)).ID,
			}
			f.reserveOn(t, 12, nil, ahead.For(up[0])) // in an hour, behind the one that goes
			f.reserveOn(t, 13, nil, ahead.For(down[0]))
			f.reserveOn(t, 0, &river.InsertOpts{Priority: 2}, limit.For(down[0]))
			f.reserveOn(t, 1, nil, limit.For(up[0]))
			late := f.reserveOn(t, 2, nil, limit.For(up[1]))
			f.until(t, late.ScheduledAt.Add(3200*time.Millisecond))

			if err := node.Kill(); err != nil {
				t.Fatal(err)
			}
			for _, id := range gone {
				if _, err := pool.Exec(t.Context(), `UPDATE river_job SET state = 'cancelled',
					finalized_at = clock_timestamp() WHERE id = $1`, id); err != nil {
					t.Fatal(err)
				}
			}
			f.exec(t, `UPDATE river_job SET state = 'available' WHERE state = 'scheduled' AND scheduled_at < now()`)
			j.client(t, sched, workers(most))
			for _, s := range j.await(t, 3) {
				switch job := f.ended(t, s.id); s.n {
				case 1, 2:
					if !paidLate(job) {
						t.Errorf("job %d has started, and did not pay anew: %s", s.n, job.Metadata)
					}
				case 12:
				default:
					t.Errorf("job %d has started, whose worker is down", s.n)
				}
			}

			if err := node.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, s := range j.await(t, 5) {
				job := f.ended(t, s.id)
				if s.attempt != 1 || len(job.Errors) > 0 {
					t.Errorf("job %d started at attempt %d, after %v", s.n, s.attempt, job.Errors)
				}
				if s.n < 10 && !paidLate(job) {
					t.Errorf("job %d has started, and did not pay anew: %s", s.n, job.Metadata)
				}
			}
			eventually(t, "both that were cancelled have given back what they took", func() bool {
				var n int
				err := pool.QueryRow(context.WithoutCancel(t.Context()), `SELECT count(*) FROM weir_settled`).Scan(&n)
				return err == nil && n == 2
			})
		})
	}
}
