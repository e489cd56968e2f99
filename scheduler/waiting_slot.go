package scheduler

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/hand"
	"github.com/weir-go/weir/internal/jobs/slotline"
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
	place, of := 0, hand.Place{Name: limit, Key: key}
	err := slotline.List(ctx, j.store, tx, of, n, func(id int64, paused bool) {
		w := Waiting{Job: &rivertype.JobRow{ID: id}, Limit: limit, Key: key, Slot: true,
			PassedOver: paused}
		if !paused {
			place++
			w.Place = place
		}
		list = append(list, w)
	})
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
	of, found, err := slotline.PlaceOf(ctx, j.store, tx, job)
	if err != nil || !found {
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
