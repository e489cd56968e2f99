package scheduler_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// The periodic job deletes what is idle, again and again, and never two at a time.
func TestThePeriodicJobPrunes(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	limit := ratelimit.MustDefine("idleRow", ratelimit.TokenBucket{Rate: 1000, Period: time.Second})
	idle := ratelimit.MustDefine("busy", ratelimit.TokenBucket{Rate: 1, Period: never})
	client := newJournal(f).client(t, nil, func(cfg *river.Config) {
		river.AddWorker(cfg.Workers, scheduler.NewPruneWorker(f.limiter, f.pool, ratelimit.PruneConfig{Share: 1}))
		cfg.PeriodicJobs = []*river.PeriodicJob{scheduler.PruneEvery(time.Second)}
	})
	auto := f.limiter.Autocommit(f.pool)
	for round := range 2 {
		for i := range 5 {
			if _, err := auto.RateLimit(t.Context(), limit.For(fmt.Sprint(round, i)),
				idle.For(fmt.Sprint(round, i))); err != nil {
				t.Fatal(err)
			}
		}
		deadline := time.Now().Add(patience)
		for rows := -1; rows != 5*(round+1); time.Sleep(50 * time.Millisecond) {
			if err := f.pool.QueryRow(t.Context(), `SELECT count(*) FROM weir_balance`).Scan(&rows); err != nil {
				t.Fatal(err)
			}
			if time.Now().After(deadline) {
				t.Fatalf("round %d: %d rows are left", round, rows)
			}
		}
	}
	var first *rivertype.JobInsertResult
	eventually(t, "no periodic job is under way", func() (waits bool) {
		in, err := client.Insert(t.Context(), scheduler.PruneArgs{},
			&river.InsertOpts{Queue: "nobodys", ScheduledAt: time.Now().Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		first = in
		return !in.UniqueSkippedAsDuplicate
	})
	second, err := client.Insert(t.Context(), scheduler.PruneArgs{}, nil)
	if err != nil || !second.UniqueSkippedAsDuplicate {
		t.Errorf("beside job %d (skipped: %v) there is job %d, %v", first.Job.ID,
			first.UniqueSkippedAsDuplicate, second.Job.ID, err)
	}
}

// Pruning goes on after a process was killed that pruned.
func TestAPruneJobOfAKilledProcessIsRescued(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	only, err := river.NewClient(riverpgxv5.New(f.pool), &river.Config{Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	job, err := only.Insert(t.Context(), scheduler.PruneArgs{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	const killed = `UPDATE river_job SET state = 'running', attempt = 1, attempted_at = now() - interval '2 days', attempted_by = '{gone}'`
	if _, err := f.pool.Exec(t.Context(), killed); err != nil {
		t.Fatal(err)
	}
	newJournal(f).client(t, nil, func(cfg *river.Config) {
		river.AddWorker(cfg.Workers, scheduler.NewPruneWorker(f.limiter, f.pool, ratelimit.PruneConfig{Share: 1}))
		cfg.JobTimeout, cfg.RescueStuckJobsAfter = time.Second, time.Second
	})
	eventually(t, "it is rescued", func() bool { return f.job(t, job.Job.ID).State != "running" })
}
