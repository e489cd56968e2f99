package scheduler

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/jobs/fairline"
	"github.com/weir-go/weir/internal/jobs/rounds"
	"github.com/weir-go/weir/internal/jobs/ticket"
)

type canceller interface {
	JobCancelTx(ctx context.Context, tx pgx.Tx, jobID int64) (*rivertype.JobRow, error)
}

// CancelTx cancels a job as River's JobCancelTx does. If the job has not started, it gives back
// what the job has taken, and the jobs that wait behind it start earlier: a client that
// [Scheduler.Configure] has configured moves each of them when its new time comes near. If the job
// has started, its worker settles what it took. A queued job that waits for its turn (see
// [Jobs.QueueTx]) leaves its line.
//
// CancelTx writes the job and the balances of its limits, however many jobs wait. Use READ
// COMMITTED: it reads and writes river_job, so at SERIALIZABLE it conflicts with River.
//
// A configured client also finds a job that River's own client or River UI has cancelled, within a
// few seconds; it looks back for a day. It finds a job that was deleted only if the job was among
// the next 1,000 to start and had waited for a second. Otherwise the job's tokens stay taken.
func (j *Jobs) CancelTx(ctx context.Context, tx pgx.Tx, id int64) (*rivertype.JobRow, error) {
	client, err := clientOf[canceller](j, "JobCancelTx")
	if err != nil {
		return nil, err
	}
	job, err := client.JobCancelTx(ctx, tx, id)
	if err != nil {
		return nil, err
	}
	t, _ := ticket.Of(job)
	if s := t.Seat; s != nil && s.Waits && job.FinalizedAt != nil {
		return job, fairline.Leave(ctx, j.store, tx, fairline.RowOf(s, job))
	}
	if job.State == rivertype.JobStateCancelled && t.IsFor(job.Attempt) {
		if _, err := rounds.Free(ctx, j.store, tx, id, &t); err != nil {
			return nil, err
		}
	}
	return job, nil
}
