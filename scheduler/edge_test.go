package scheduler_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

type clientFunc func(ctx context.Context) error

func (f clientFunc) InsertTx(
	ctx context.Context, _ pgx.Tx, _ river.JobArgs, _ *river.InsertOpts,
) (*rivertype.JobInsertResult, error) {
	return nil, f(ctx)
}

// The transaction may go on, without the job and without its tokens gone.
func TestAContextThatEndsInRiverTakesNothing(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	limit := ratelimit.MustDefine("ctx", ratelimit.TokenBucket{Rate: 10, Period: never})
	ctx, cancel := context.WithCancel(t.Context())
	jobs := scheduler.New(f.limiter, scheduler.Config{}).Jobs(clientFunc(func(ctx context.Context) error {
		cancel()
		return ctx.Err()
	}))
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := jobs.InsertTx(ctx, tx, sendArgs{}, nil, limit.For("k").Count(4)); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Log(err)
	}
	f.want(t, limit.For("k"), 10, 0)
}

// leaving is a River client whose caller's context ends as soon as a job is inserted: before River has
// notified, if that is an error.
type leaving struct {
	scheduler.Client
	leave context.CancelFunc
	err   error
}

func (l *leaving) InsertTx(
	ctx context.Context, tx pgx.Tx, args river.JobArgs, opts *river.InsertOpts,
) (*rivertype.JobInsertResult, error) {
	job, err := l.Client.InsertTx(ctx, tx, args, opts)
	if l.leave(); err == nil {
		err = l.err
	}
	return job, err
}

// left calls insert with jobs whose caller leaves, in a transaction that commits all the same if it
// can.
func (f *fixture) leaves(t *testing.T, sched *scheduler.Scheduler, err error,
	insert func(ctx context.Context, tx pgx.Tx, jobs *scheduler.Jobs) error) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	tx, began := f.pool.Begin(t.Context())
	if began != nil {
		t.Fatal(began)
	}
	failed := insert(ctx, tx, sched.Jobs(&leaving{f.client, cancel, err}))
	if err := tx.Commit(t.Context()); err != nil {
		t.Log(err)
	}
	return failed
}

// A job is there with its tokens, or neither, whenever the context ends.
func TestAContextThatEndsBehindTheInsertKeepsBothOrNone(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	k := ratelimit.MustDefine("behind the insert", ratelimit.TokenBucket{Rate: 10, Period: never}).For("k")
	sched := scheduler.New(f.limiter, scheduler.Config{})
	unique := &river.InsertOpts{UniqueOpts: river.UniqueOpts{ByArgs: true}}
	insert := func(ctx context.Context, tx pgx.Tx, jobs *scheduler.Jobs) error {
		_, err := jobs.InsertTx(ctx, tx, sendArgs{1}, unique, k.Count(4))
		return err
	}
	if err := f.leaves(t, sched, context.Canceled, insert); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want that of the context", err)
	}
	f.want(t, k, 10, 0)
	for range 2 { // the second one is a duplicate
		if err := f.leaves(t, sched, nil, insert); err != nil {
			t.Error(err)
		}
		f.want(t, k, 6, 1)
	}
}

// A job that is queued has its place in line, whenever the context ends.
func TestAContextThatEndsBehindTheInsertLeavesNoJobOutOfLine(t *testing.T) {
	t.Parallel()
	limit := ratelimit.MustDefine("out of line", ratelimit.TokenBucket{Rate: 10, Period: never, MaxReserved: ratelimit.Tokens(10)})
	f := setUp(t, scheduler.Config{Lines: []scheduler.Line{{Limit: limit}}})
	sched := scheduler.New(f.limiter, scheduler.Config{Lines: []scheduler.Line{{Limit: limit}}})
	err := f.leaves(t, sched, nil, func(ctx context.Context, tx pgx.Tx, jobs *scheduler.Jobs) error {
		_, err := jobs.QueueTx(ctx, tx, sendArgs{1}, nil, scheduler.Tenant{Key: "a"}, limit.For("k"))
		return err
	})
	if err != nil || f.inLine(t) != 1 {
		t.Errorf("%v, %d in line", err, f.inLine(t))
	}
}

// Its tokens went back already.
func TestADuplicateCannotBeGivenBack(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	k := ratelimit.MustDefine("dup", ratelimit.TokenBucket{Rate: 10, Period: never}).For("k")
	opts := &river.InsertOpts{UniqueOpts: river.UniqueOpts{ByArgs: true}}
	f.insert(t, sendArgs{1}, opts, k.Count(4))
	in := f.insert(t, sendArgs{1}, opts, k.Count(4))
	if !in.Job.UniqueSkippedAsDuplicate {
		t.Fatal("no duplicate")
	}
	if err := f.limiter.Autocommit(f.pool).GiveBack(t.Context(), in.Result); err != nil {
		t.Log(err)
	}
	f.want(t, k, 6, 1)
}

// A duplicate takes nothing, though it would have been for another time. River counts its periods
// from the insert, and since v0.48 from the time that the reservation has set: here both are of one
// period.
func TestADuplicateOfAReservedJobTakesNothing(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	k := ratelimit.MustDefine("per", ratelimit.TokenBucket{Rate: 1, Period: 3 * time.Hour}).For("k")
	opts := &river.InsertOpts{UniqueOpts: river.UniqueOpts{ByPeriod: 100_000 * time.Hour}}
	f.insert(t, sendArgs{0}, nil, k.OrReserve())
	one := f.insert(t, sendArgs{1}, opts, k.OrReserve())
	two := f.insert(t, sendArgs{1}, opts, k.OrReserve())
	if one.RunAt.IsZero() || !two.Job.UniqueSkippedAsDuplicate || !two.RunAt.IsZero() {
		t.Errorf("reserved for %v, then for %v; skipped: %v", one.RunAt, two.RunAt, two.Job.UniqueSkippedAsDuplicate)
	}
	f.want(t, k, -1, 2)
}
