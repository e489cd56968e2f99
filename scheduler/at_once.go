package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/hand"
	"github.com/weir-go/weir/internal/jobs/riverjob"
	"github.com/weir-go/weir/internal/jobs/slotline"
	"github.com/weir-go/weir/internal/jobs/ticket"
	"github.com/weir-go/weir/internal/worknow"
	"github.com/weir-go/weir/slots"
)

// AtOnce bounds how many jobs run at once: while a job runs, it holds a slot of what requests
// returns. If all slots are held, the job waits without occupying a worker, and its waiting uses no
// attempt. Set [Config.Slots], and make the River client's configuration with
// [Scheduler.Configure].
//
//	worker = scheduler.AtOnce(worker, func(job *river.Job[Export]) []slots.Request {
//		return []slots.Request{Exports.For(job.Args.Tenant)}
//	})
//
// A job asks for one slot, or for none; more than one is an error. requests must depend on nothing
// but the job, because it is also called for jobs that do not start yet.
//
// A job that ends, however it ends, hands its slot to the next waiting job of the key in the
// transaction that frees the slot. Jobs are served in River's order: priority, scheduled_at, id. A
// job that is given a slot has five seconds to start. After that the slot goes to the next job. A
// job that comes while others wait goes behind them. Jobs that were cancelled or deleted, and jobs
// of paused queues, are passed over.
//
// Slots that become free in another way are given to waiting jobs within about a second: those of a
// killed process, those of [slots.Slots.Do], and those of a limit whose number was raised. Callers
// of Do and jobs may share a limit, but Do does not look whether jobs wait. If callers of Do keep
// all slots busy, jobs may wait for ever.
//
// The ctx of the worker ends if the slot is lost, with [slots.ErrLost] as its cause. An attempt
// that then returns an error is repeated, and uses up no attempt.
//
// To take tokens as well, put Limit inside: AtOnce(Limit(worker, tokens), slots). Then a job that
// waits for a slot takes no tokens, and a job that waits for tokens holds no slot. When its tokens
// have come, it may have to wait for a slot again, and then keeps its tokens. So does a job that
// was inserted by [Jobs.InsertTx].
//
// In a test, weirtest.WorkNow calls such a worker without taking anything.
func AtOnce[T river.JobArgs](
	worker river.Worker[T], requests func(job *river.Job[T]) []slots.Request,
) river.Worker[T] {
	return &atOnce[T]{worker, requests}
}

type atOnce[T river.JobArgs] struct {
	river.Worker[T]
	requests func(job *river.Job[T]) []slots.Request
}

func (w *atOnce[T]) Work(ctx context.Context, job *river.Job[T]) error {
	if worknow.Asked(ctx) {
		return w.Worker.Work(ctx, job)
	}
	v, _ := ctx.Value(visitKey{}).(*visit)
	switch {
	case v == nil:
		return errors.New("scheduler: a worker made by AtOnce, on a River client whose " +
			"configuration was not made by Scheduler.Configure")
	case v.plugin.slots.None():
		return errors.New(
			"scheduler: a worker made by AtOnce, and a Scheduler without Config.Slots",
		)
	}
	want, limited, err := one(w.requests(job))
	switch {
	case err != nil:
		return err
	case !limited:
		return w.Worker.Work(ctx, job)
	}
	hold, err := v.plugin.slots.Take(ctx, v.job, want)
	switch {
	case err != nil:
		v.plugin.Warn(err, "a job could not take a slot, and will try again in a second", "job",
			v.ID)
		return v.unstarted(ctx, time.Second)
	case hold == nil:
		v.plugin.clearFor(v.job, want, w.of)
		return v.unstarted(ctx, time.Until(riverjob.FarOff))
	}
	return v.holding(ctx, want, hold, func(ctx context.Context) error {
		return w.Worker.Work(ctx, job)
	})
}

// of is what another job of the kind asks for; false if that is nothing, or nothing valid.
func (w *atOnce[T]) of(row *rivertype.JobRow) (hand.Want, bool) {
	job := &river.Job[T]{JobRow: row}
	if err := json.Unmarshal(row.EncodedArgs, &job.Args); err != nil {
		return hand.Want{}, false
	}
	want, limited, err := one(w.requests(job))
	return want, limited && err == nil
}

// one checks what a job asks for.
func one(requests []slots.Request) (want hand.Want, limited bool, err error) {
	switch len(requests) {
	case 0:
		return want, false, nil
	case 1:
		want, err = requests[0].Hand()
		return want, true, err
	}
	return want, false, fmt.Errorf(
		"scheduler: a worker made by AtOnce asks for %d slots: want one at most", len(requests),
	)
}

// holding works a job that holds a slot, and then hands the slot on.
func (v *visit) holding(
	ctx context.Context, want hand.Want, hold hand.Hold, work func(context.Context) error,
) (err error) {
	defer v.plugin.slots.HandOn(ctx, want, hold)
	err = work(hold.Context(ctx))
	var snooze *rivertype.JobSnoozeError
	var cancel *rivertype.JobCancelError
	if err == nil || !errors.Is(hold.Err(), slots.ErrLost) || errors.As(err, &snooze) ||
		errors.As(err, &cancel) {
		return err
	}
	v.plugin.Warn(err, "an attempt ended because its slot was lost, and is repeated", "job", v.ID)
	return river.JobSnooze(time.Second)
}

// unstarted puts off a job that has not started, and that keeps what it has paid. It waits for no
// tokens any more, so it is not late.
func (v *visit) unstarted(ctx context.Context, d time.Duration) error {
	if v.paid || v.found && v.Ticket.Known() {
		t := v.Ticket
		v.usedUp(&t, v.used)
		if err := river.MetadataSet(ctx, ticket.Key, &t); err != nil {
			return err
		}
	}
	return putOff(d)
}

// clearFor has the other due jobs of a job's kind and queue wait that ask for slots of the same
// key, so that none of them is fetched in front of the jobs of other keys, to wait after all. Jobs
// with tokens are left alone. It reads them once a second at most.
func (p *plugin) clearFor(
	job *rivertype.JobRow, want hand.Want, of func(*rivertype.JobRow) (hand.Want, bool),
) {
	queue, kind := job.Queue, job.Kind
	p.beside(queue+" "+kind+" slots", riverjob.RoundEvery, func(ctx context.Context) error {
		return p.EachDue(ctx, queue, kind, func(jobs []*rivertype.JobRow) error {
			var waiting []*rivertype.JobRow
			for _, j := range jobs {
				_, found := ticket.Of(j)
				if w, ok := of(j); ok && w.Place == want.Place && !found && !slotline.WasGiven(j) {
					waiting = append(waiting, j)
				}
			}
			return p.slots.HaveWait(ctx, want, waiting)
		})
	})
}
