package scheduler_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/weir-go/weir/scheduler"
)

// Workers that become free while River fetches get jobs of the line, too: without waiting for another
// job to end, or for River's poll.
func TestNoWorkerIsIdleWhileGrantedWorkWaits(t *testing.T) {
	t.Parallel()
	const workers = 5
	limit := shared(t, 1000, 1000)
	f, sched, j := queuing(t, scheduler.Line{Limit: limit})
	var params []scheduler.QueueManyParams
	for i := range 2 * workers {
		params = append(params, queueing(i, limit.Global()))
	}
	f.queue(t, params...)
	one, others, second := make(chan struct{}), make(chan struct{}), make(chan struct{})
	ended := make(chan struct{}, 2*workers)
	began := make(chan struct{}, 2*workers)
	gates := make(chan chan struct{}, 2*workers)
	gates <- one
	for range workers - 1 {
		gates <- others
	}
	for range workers {
		gates <- second
	}
	j.work = func(ctx context.Context, _ *river.Job[sendArgs]) error {
		began <- struct{}{}
		select {
		case <-<-gates:
		case <-ctx.Done():
			return ctx.Err()
		}
		ended <- struct{}{}
		return nil
	}
	j.client(t, sched, func(cfg *river.Config) {
		cfg.FetchPollInterval = time.Hour
		cfg.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: workers}}
	})
	j.await(t, workers)
	for range workers {
		<-began
	}
	eventually(t, "all have had their turns", func() bool { return f.inLine(t) == 0 })
	f.inRC(t, func(tx pgx.Tx) error { // River's next fetch waits for this transaction
		if _, err := tx.Exec(t.Context(), `LOCK TABLE river_job IN SHARE ROW EXCLUSIVE MODE`); err != nil {
			return err
		}
		close(one)
		<-ended
		eventually(t, "River fetches", func() bool {
			var n int
			const sql = `SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%locked_jobs%'
				AND pid IN (SELECT pid FROM pg_locks WHERE NOT granted AND relation = 'river_job'::regclass)`
			if err := f.pool.QueryRow(t.Context(), sql).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n > 0
		})
		close(others)
		for range workers - 1 {
			<-ended
		}
		time.Sleep(100 * time.Millisecond) // until River has noted that
		return nil
	})
	j.await(t, 2*workers)
	close(second)
}
