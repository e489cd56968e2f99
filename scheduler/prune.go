package scheduler

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/ratelimit"
)

// PruneArgs is the job that [PruneWorker] works. At most one is waiting or running at a time.
type PruneArgs struct{}

// Kind is the kind of the job, weir_prune.
func (PruneArgs) Kind() string { return "weir_prune" }

// InsertOpts makes the job unique.
func (PruneArgs) InsertOpts() river.InsertOpts {
	return river.InsertOpts{MaxAttempts: 3,
		UniqueOpts: river.UniqueOpts{ByState: []rivertype.JobState{
			rivertype.JobStateAvailable, rivertype.JobStatePending, rivertype.JobStateRunning,
			rivertype.JobStateRetryable, rivertype.JobStateScheduled,
		}}}
}

// PruneEvery returns a periodic job that deletes idle rows: see [ratelimit.Limiter.Prune]. Give it
// to each client that may become River's leader, and a [PruneWorker] to each client that works its
// queue.
//
//	river.AddWorker(workers, scheduler.NewPruneWorker(limiter, pool, ratelimit.PruneConfig{}))
//	periodic := []*river.PeriodicJob{scheduler.PruneEvery(24 * time.Hour)}
//	cfg := &river.Config{Workers: workers, PeriodicJobs: periodic}
func PruneEvery(d time.Duration) *river.PeriodicJob {
	args := func() (river.JobArgs, *river.InsertOpts) { return PruneArgs{}, nil }
	return river.NewPeriodicJob(river.PeriodicInterval(d), args, nil)
}

// PruneWorker deletes idle rows in batches. It pauses between them for three quarters of the time,
// unless PruneConfig.Share says otherwise, for a day at most. A client that stops interrupts it
// between two batches, and the job then starts again from the beginning.
type PruneWorker struct {
	river.WorkerDefaults[PruneArgs]
	limiter *ratelimit.Limiter
	pool    *pgxpool.Pool
	cfg     ratelimit.PruneConfig
}

// NewPruneWorker returns a worker for [PruneArgs].
func NewPruneWorker(
	limiter *ratelimit.Limiter, pool *pgxpool.Pool, cfg ratelimit.PruneConfig,
) *PruneWorker {
	return &PruneWorker{limiter: limiter, pool: pool, cfg: cfg}
}

// Timeout is a day. River never rescues a job without one from a process that was killed.
func (*PruneWorker) Timeout(*river.Job[PruneArgs]) time.Duration { return 24 * time.Hour }

// Work prunes, and logs what it has deleted to [slog.Default].
func (w *PruneWorker) Work(ctx context.Context, _ *river.Job[PruneArgs]) error {
	began := time.Now()
	done, err := w.limiter.Prune(ctx, w.pool, w.cfg)
	if err == nil {
		slog.InfoContext(ctx, "ratelimit: pruned", "looked", done.Looked, "deleted", done.Deleted,
			"slots", done.Slots, "settled", done.Settled, "took", time.Since(began))
	}
	return err
}
