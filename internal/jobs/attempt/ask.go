package attempt

import (
	"cmp"
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/weir-go/weir/internal/jobs/riverjob"
	"github.com/weir-go/weir/internal/jobs/ticket"
)

// look tells visits when their jobs are due, given how their limits stand by now.
func (a *Attempts) look(items []*visit) {
	ctx, cancel := context.WithTimeout(context.Background(), riverjob.Patience)
	defer cancel()
	jobs := make([]*riverjob.Waiter, len(items))
	for i, v := range items {
		jobs[i] = &v.Waiter
	}
	clock, err := a.reckon(ctx, jobs)
	a.Warn(err, "jobs start late: their limits could not be read", "jobs", len(items))
	for _, v := range items {
		v.clock, v.err = clock, cmp.Or(err, v.Unread)
	}
}

// reckon tells of jobs when they may start by now, and reads the clock.
func (a *Attempts) reckon(
	ctx context.Context, jobs []*riverjob.Waiter,
) (clock riverjob.Clock, err error) {
	err = a.Connected(ctx, func(c *pgxpool.Conn) error {
		clock.At, err = a.ReckonEach(ctx, c, jobs)
		clock.Answered = time.Now()
		return err
	})
	return clock, err
}

// ask asks a batch until the database has answered, or Patience is over. If a worker of Citus is
// down, it asks once: the jobs of that worker's keys must not occupy River's workers for so long.
func (v *visit) ask(ctx context.Context, b *visits) error {
	for deadline := time.Now().Add(riverjob.Patience); ; time.Sleep(100 * time.Millisecond) {
		if b.Do(v); v.err == nil {
			return nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil || riverjob.IsDown(v.err) {
			return v.missed(ctx)
		}
	}
}

// missed puts off a job that was not answered. It stays as late as it is, and pays anew for that.
func (v *visit) missed(ctx context.Context) error {
	t, _ := ticket.Of(v.job)
	t.Missed = true
	t.Fetched = v.fetched()
	if err := river.MetadataSet(ctx, ticket.Key, &t); err != nil {
		return err
	}
	return putOff(time.Second)
}
