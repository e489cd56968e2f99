package attempt

import (
	"context"
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

// WithSlot works the job in ctx while it holds a slot of what requests returns, or has it wait in
// line for one. of are the requests of another job of the kind.
func WithSlot(
	ctx context.Context, requests func() []slots.Request,
	of func(*rivertype.JobRow) []slots.Request, work func(ctx context.Context) error,
) error {
	if worknow.Asked(ctx) {
		return work(ctx)
	}
	v, _ := ctx.Value(visitKey{}).(*visit)
	switch {
	case v == nil:
		return notConfigured("AtOnce")
	case v.at.slots.None():
		return errors.New(
			"scheduler: a worker made by AtOnce, and a Scheduler without Config.Slots",
		)
	}
	want, limited, err := one(requests())
	switch {
	case err != nil:
		return err
	case !limited:
		return work(ctx)
	}
	hold, err := v.at.slots.Take(ctx, v.job, want)
	switch {
	case err != nil:
		v.at.Warn(err, "a job could not take a slot, and will try again in a second", "job", v.ID)
		return v.unstarted(ctx, time.Second)
	case hold == nil:
		v.at.clearFor(v.job, want, of)
		return v.unstarted(ctx, time.Until(riverjob.FarOff))
	}
	return v.holding(ctx, want, hold, work)
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
	defer v.at.slots.HandOn(ctx, want, hold)
	err = work(hold.Context(ctx))
	var snooze *rivertype.JobSnoozeError
	var cancel *rivertype.JobCancelError
	if err == nil || !errors.Is(hold.Err(), slots.ErrLost) || errors.As(err, &snooze) ||
		errors.As(err, &cancel) {
		return err
	}
	v.at.Warn(err, "an attempt ended because its slot was lost, and is repeated", "job", v.ID)
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
func (a *Attempts) clearFor(
	job *rivertype.JobRow, want hand.Want, of func(*rivertype.JobRow) []slots.Request,
) {
	queue, kind := job.Queue, job.Kind
	a.beside(queue+" "+kind+" slots", riverjob.RoundEvery, func(ctx context.Context) error {
		return a.EachDue(ctx, queue, kind, func(jobs []*rivertype.JobRow) error {
			var waiting []*rivertype.JobRow
			for _, j := range jobs {
				_, found := ticket.Of(j)
				w, limited, err := one(of(j))
				if limited && err == nil && w.Place == want.Place && !found &&
					!slotline.WasGiven(j) {
					waiting = append(waiting, j)
				}
			}
			return a.slots.HaveWait(ctx, want, waiting)
		})
	})
}
