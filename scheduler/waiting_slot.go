package scheduler

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/hand"
	"github.com/weir-go/weir/internal/jobs/riverjob"
)

const (
	// forSlotSQL reads the jobs that wait for a place, in their order, and whether their queues are
	// paused.
	//
	// $1 River's schema $2 place $3 most
	forSlotSQL = `SELECT t.job, EXISTS (SELECT FROM {river}river_queue q WHERE q.name = j.queue AND q.paused_at IS NOT NULL)` + inLine + `
ORDER BY t.priority, t.due, t.job LIMIT $3::integer`

	// placeOfJobSQL finds the place that a job waits for.
	//
	// $1 River's schema $2 job
	placeOfJobSQL = `SELECT tenant FROM {ours}weir_turn WHERE` + ofSchema + ` AND job = $2::bigint`
)

// WaitingForSlot lists the jobs that wait for a slot of a limit and key, for a worker made by
// [AtOnce], in the order in which they will be given slots: at most n jobs, and at most 10,000.
// Jobs of paused queues are passed over, and have no Place.
//
// It takes nothing, writes nothing, and may be called in a read-only transaction. The role needs
// SELECT on weir_turn, river_job and river_queue.
func (j *Jobs) WaitingForSlot(
	ctx context.Context, tx pgx.Tx, limit, key string, n int,
) ([]Waiting, error) {
	if err := j.check(); err != nil {
		return nil, err
	}
	if n = min(n, mostListed); n <= 0 {
		return nil, nil
	}
	var list []Waiting
	var id int64
	var paused bool
	place := 0
	args := []any{j.store.Schema, tenantOf(hand.Place{Name: limit, Key: key}), n}
	err := j.store.Query(ctx, tx, forSlotSQL, args, func() {
		w := Waiting{Job: &rivertype.JobRow{ID: id}, Limit: limit, Key: key, Slot: true,
			PassedOver: paused}
		if !paused {
			place++
			w.Place = place
		}
		list = append(list, w)
	}, &id, &paused)
	if err != nil {
		return nil, err
	}
	return j.withJobs(ctx, tx, list)
}

// Explain is [Explain], which asks the database as well whether the job waits for a slot, and with
// which place among the first 10,000: see [Jobs.WaitingForSlot].
func (j *Jobs) Explain(
	ctx context.Context, tx pgx.Tx, job *rivertype.JobRow,
) (Waiting, bool, error) {
	if w, ok := Explain(job); ok {
		return w, true, nil
	}
	if err := j.check(); err != nil {
		return Waiting{}, false, err
	}
	if job.State != rivertype.JobStateScheduled || job.ScheduledAt.UTC().Year() < riverjob.FarOff.Year()-1 {
		return Waiting{}, false, nil
	}
	var tenant string
	found := false
	err := j.store.Query(ctx, tx, placeOfJobSQL, []any{j.store.Schema, job.ID}, func() {
		found = true
	}, &tenant)
	of, ok := placeOf(tenant)
	if err != nil || !found || !ok {
		return Waiting{}, false, err
	}
	list, err := j.WaitingForSlot(ctx, tx, of.Name, of.Key, mostListed)
	if err != nil {
		return Waiting{}, false, err
	}
	for _, w := range list {
		if w.Job.ID == job.ID {
			return w, true, nil
		}
	}
	return Waiting{Job: job, Limit: of.Name, Key: of.Key, Slot: true}, true, nil
}
