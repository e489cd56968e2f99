package scheduler_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

func TestAGrantedJobIsWorkedOnceTheTransactionCommits(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	f.start(t)
	limit := ratelimit.MustDefine("now", ratelimit.TokenBucket{Rate: 10, Period: never})
	var in *scheduler.Inserted
	err := f.limiter.InTx(t.Context(), f.pool, func(ctx context.Context, tx pgx.Tx) (err error) {
		if in, err = f.jobs.InsertTx(ctx, tx, sendArgs{7}, nil, limit.For("k").Count(4).OrReserve()); err != nil {
			return err
		}
		select {
		case n := <-f.worked:
			t.Errorf("job %d was worked before its transaction committed", n)
		default:
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if !in.OK || !in.RunAt.IsZero() || in.Job.Job.State != rivertype.JobStateAvailable {
		t.Errorf("got %+v, want it granted now and available", in)
	}
	select {
	case n := <-f.worked:
		if n != 7 {
			t.Errorf("job %d was worked", n)
		}
	case <-time.After(patience):
		t.Fatalf("the job was not worked within %v", patience)
	}
	f.want(t, limit.For("k"), 6, 1)
}

// The job's time comes from the same decision as its reservation, by the database's clock, and the
// jitter only adds to it.
func TestAReservedJobIsDueWhenItsTokensExistPlusJitter(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		jitter time.Duration
		period time.Duration
		most   time.Duration
	}{
		"Default":          {0, time.Hour, 0}, // one bucket's jobs have places of their own
		"None":             {-1, time.Hour, 0},
		"Wide":             {time.Minute, time.Hour, time.Minute},
		"WiderThanAPeriod": {time.Hour, time.Minute, 6 * time.Second}, // a tenth of the period
		"TooWide":          {250 * time.Millisecond, 100 * time.Millisecond, 10 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setUp(t, scheduler.Config{Jitter: c.jitter})
			limit := ratelimit.MustDefine("later"+name, ratelimit.TokenBucket{Rate: 1, Period: c.period})
			other := ratelimit.MustDefine("plenty", ratelimit.FixedWindow{Rate: 1000, Period: never})
			f.insert(t, sendArgs{0}, nil, limit.For("k").Count(1000).OrReserve()) // more than the test takes
			distinct := map[time.Duration]bool{}
			last := time.Time{}
			for i := range 20 {
				in := f.insert(t, sendArgs{i}, nil, limit.For("k").OrReserve(), other.For("k"))
				if !in.OK || in.RunAt.IsZero() || in.Limit != limit.Name() {
					t.Fatalf("got %+v, want a reservation", in.Result)
				}
				if d := in.RunAt.Sub(in.At); d > time.Duration(i+1000)*c.period || !in.RunAt.After(last) {
					t.Errorf("reservation %d is for %v, %v from the decision", i, in.RunAt, d)
				}
				last = in.RunAt
				due := in.Job.Job.ScheduledAt
				late := due.Sub(in.RunAt)
				if late < 0 || late > c.most {
					t.Errorf("due %v after its tokens exist, want 0 to %v", late, c.most)
				}
				distinct[late.Truncate(time.Microsecond)] = true
				if in.Job.Job.State != rivertype.JobStateScheduled {
					t.Errorf("state %v", in.Job.Job.State)
				}
			}
			if (len(distinct) > 10) != (c.most > 0) {
				t.Errorf("%d different delays of 20", len(distinct))
			}
		})
	}
}

// By default only such jobs have jitter as would start at one instant.
func TestTheDefaultJitterSpreadsWhatWouldStartTogether(t *testing.T) {
	t.Parallel()
	for name, paused := range map[string]bool{"AtTheEndOfAPause": true, "AtTheStartOfAWindow": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setUp(t, scheduler.Config{Bunch: true})
			limit := ratelimit.MustDefine("together", ratelimit.FixedWindow{Rate: 100, Period: never})
			if paused {
				if err := f.limiter.Autocommit(f.pool).Pause(t.Context(), time.Minute, limit.For("k")); err != nil {
					t.Fatal(err)
				}
			} else {
				f.insert(t, sendArgs{0}, nil, limit.For("k").Count(100))
			}
			distinct := map[time.Duration]bool{}
			for i := range 20 {
				in := f.insert(t, sendArgs{i}, nil, limit.For("k").OrReserve())
				late := in.Job.Job.ScheduledAt.Sub(in.RunAt)
				if distinct[late] = true; late < 0 || late > 250*time.Millisecond {
					t.Errorf("due %v after RunAt", late)
				}
			}
			if len(distinct) < 10 {
				t.Errorf("%d different delays of 20", len(distinct))
			}
		})
	}
}

// Of several limits the one whose tokens come last sets the time; a limit with tokens to spare does
// not.
func TestSeveralReservationsStartAtTheLatestOfTheirTimes(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{Jitter: -1})
	requests := ratelimit.MustDefine("requests", ratelimit.TokenBucket{Rate: 1, Period: time.Hour})
	tokens := ratelimit.MustDefine("tokens", ratelimit.TokenBucket{Rate: 100, Period: time.Hour})
	f.insert(t, sendArgs{0}, nil, requests.For("k"), tokens.For("k").Count(100))
	in := f.insert(t, sendArgs{1}, nil, tokens.For("k").Count(50).OrReserve(), requests.For("k").OrReserve())
	if in.Limit != "requests" || !in.RunAt.Equal(in.Outcomes[1].RunAt) || !in.Outcomes[0].RunAt.Before(in.RunAt) {
		t.Errorf("got %+v, want it to start with its request, an hour from now, not with its "+
			"tokens, half an hour from now",
			in.Result)
	}
	in = f.insert(t, sendArgs{2}, nil, tokens.For("k").Count(100).OrReserve(), requests.For("other").OrReserve())
	if in.Limit != "tokens" || in.Outcomes[1].RunAt != (time.Time{}) {
		t.Errorf("got %+v, want it to wait for tokens only", in.Result)
	}
}

func TestADeniedJobIsNotInsertedAndTakesNothing(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	limit := ratelimit.MustDefine("denied",
		ratelimit.TokenBucket{Rate: 10, Period: never, MaxReserved: ratelimit.Tokens(0)})
	other := ratelimit.MustDefine("other", ratelimit.TokenBucket{Rate: 10, Period: never})
	f.insert(t, sendArgs{0}, nil, limit.For("k").Count(8))
	in := f.insert(t, sendArgs{1}, nil, limit.For("k").Count(8).OrReserve(), other.For("k").OrReserve())
	if in.OK || in.Job != nil || !errors.Is(in.Err(), ratelimit.ErrDenied) || in.RetryAt.IsZero() {
		t.Errorf("got %+v, want a denial", in)
	}
	f.want(t, limit.For("k"), 2, 1)
	f.want(t, other.For("k"), 10, 1)
}

func TestARolledBackJobIsNeitherInsertedNorPaidFor(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	limit := ratelimit.MustDefine("rolledback", ratelimit.TokenBucket{Rate: 10, Period: never})
	oops := errors.New("oops")
	err := f.limiter.InTx(t.Context(), f.pool, func(ctx context.Context, tx pgx.Tx) error {
		if in, err := f.jobs.InsertTx(ctx, tx, sendArgs{1}, nil,
			limit.For("k").Count(15).OrReserve(), limit.For("m")); err != nil || !in.OK {
			t.Error(in, err)
		}
		return oops
	})
	if !errors.Is(err, oops) {
		t.Fatal(err)
	}
	f.want(t, limit.For("k"), 10, 0)
}

// A reservation that was granted ahead of time is no denial, whatever else is asked of the Result.
func TestAReservationIsNoError(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	limit := ratelimit.MustDefine("noerror", ratelimit.TokenBucket{Rate: 1, Period: time.Hour})
	for range 3 {
		if in := f.insert(t, sendArgs{}, nil, limit.Global().OrReserve()); in.Err() != nil ||
			!in.OK || !in.RetryAt.IsZero() {
			t.Errorf("got %+v and %v", in.Result, in.Err())
		}
	}
}

func TestInsertOptsPassThrough(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	limit := ratelimit.MustDefine("opts", ratelimit.TokenBucket{Rate: 1, Period: time.Hour})
	wanted := time.Now().Add(500 * time.Hour).Truncate(time.Microsecond)
	opts := &river.InsertOpts{MaxAttempts: 3, Priority: 4, Queue: "other", Tags: []string{"alpha"},
		Metadata: []byte(`{"x": 1}`), ScheduledAt: wanted}
	for i := range 2 { // granted now, and reserved
		job := f.insert(t, sendArgs{i}, opts, limit.For("k").OrReserve()).Job.Job
		if job.MaxAttempts != 3 || job.Priority != 4 || job.Queue != "other" || len(job.Tags) != 1 ||
			!strings.HasPrefix(string(job.Metadata), `{"x": 1, "weir": `) {
			t.Errorf("job %d was inserted as %+v", i, job)
		}
		if !job.ScheduledAt.Equal(wanted) {
			t.Errorf("job %d is due at %v, want %v: the later of what was asked for and what was reserved",
				i, job.ScheduledAt, wanted)
		}
	}
	if opts.Queue != "other" || !opts.ScheduledAt.Equal(wanted) {
		t.Errorf("the caller's options were changed: %+v", opts)
	}
	// a time that comes before the tokens do gives way
	in := f.insert(t, sendArgs{2}, &river.InsertOpts{ScheduledAt: time.Now()}, limit.For("k").OrReserve())
	if in.Job.Job.ScheduledAt.Before(in.RunAt) {
		t.Errorf("due at %v, before its tokens exist at %v", in.Job.Job.ScheduledAt, in.RunAt)
	}
	// so with the options that the arguments bring along
	in = f.insert(t, laterArgs{}, nil, limit.For("k").OrReserve())
	if d := time.Until(in.Job.Job.ScheduledAt); d < 999*time.Hour || in.Job.Job.Queue != "patient" {
		t.Errorf("due in %v in queue %q", d, in.Job.Job.Queue)
	}
}

func TestAJobThatRiverRefusesTakesNothing(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	limit := ratelimit.MustDefine("refused", ratelimit.TokenBucket{Rate: 10, Period: never})
	err := f.limiter.InTx(t.Context(), f.pool, func(ctx context.Context, tx pgx.Tx) error {
		for _, args := range []river.JobArgs{unknownArgs{}, nil} {
			if _, err := f.jobs.InsertTx(ctx, tx, args, nil, limit.For("k").Count(4)); err == nil {
				t.Errorf("%T was inserted", args)
			}
		}
		return nil // commits all the same
	})
	if err != nil {
		t.Fatal(err)
	}
	f.want(t, limit.For("k"), 10, 0)

	unready := scheduler.New(nil, scheduler.Config{}).Jobs(f.client)
	if _, err := unready.InsertTx(t.Context(), nil, sendArgs{}, nil, limit.For("k")); err == nil {
		t.Error("a scheduler without a limiter inserted")
	}
}

func TestADuplicateOfAUniqueJobTakesNothing(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	limit := ratelimit.MustDefine("unique", ratelimit.TokenBucket{Rate: 10, Period: never})
	for i := range 3 {
		in := f.insert(t, sendArgs{1}, &river.InsertOpts{
			UniqueOpts: river.UniqueOpts{ByArgs: true},
		}, limit.For("k").Count(4).OrReserve())
		if in.Job.UniqueSkippedAsDuplicate != (i > 0) {
			t.Errorf("insert %d: %+v", i, in.Job)
		}
	}
	f.want(t, limit.For("k"), 6, 1)
}

// Each attempt at a transaction reserves and draws its jitter anew, and only the one that commits
// leaves a job.
func TestATransactionThatRunsAgainLeavesOneJob(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "its conflicts are those of SERIALIZABLE, which is not the default there")
	f := setUp(t, scheduler.Config{})
	limit := ratelimit.MustDefine("again", ratelimit.TokenBucket{Rate: 1, Period: time.Hour})
	var runs atomic.Int64
	var due []time.Time
	err := f.limiter.InTx(t.Context(), f.pool, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT 1`); err != nil {
			return err
		}
		if runs.Add(1) == 1 {
			if _, err := f.limiter.Autocommit(f.pool).RateLimit(t.Context(), limit.For("k")); err != nil {
				return err
			}
		}
		in, err := f.jobs.InsertTx(ctx, tx, sendArgs{1}, nil, limit.For("k").OrReserve())
		if err == nil {
			due = append(due, in.Job.Job.ScheduledAt)
		}
		return err
	})
	if err != nil || runs.Load() != 2 || len(due) != 1 {
		t.Fatalf("ran %d times, inserted for %v, then %v", runs.Load(), due, err)
	}
	f.want(t, limit.For("k"), -1, 1)
}

// A row whose time lies ahead, as the clock was set back, puts off nothing for which it has tokens:
// of several limits the job waits for that which has none.
func TestWhatWasThereAtOnceIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it sets a column as Citus does not")
	f, sched, j := exact(t)
	ahead := ratelimit.MustDefine("ahead", ratelimit.TokenBucket{Rate: 10, Period: time.Hour}).For("k")
	short := ratelimit.MustDefine("short", ratelimit.TokenBucket{Rate: 10, Period: time.Second,
		Capacity: ratelimit.Tokens(0)}).For("k")
	f.insert(t, laterArgs{}, nil, ahead)
	if _, err := f.pool.Exec(t.Context(),
		`UPDATE weir_balance SET ts = ts + interval '1 hour' WHERE name = 'ahead'`); err != nil {
		t.Fatal(err)
	}
	in := f.insertBy(t, sched.Jobs(j.client(t, sched)), sendArgs{}, ahead.OrReserve(), short.Count(30).OrReserve())
	w, ok := scheduler.Explain(in.Job.Job)
	if !ok || w.Limit != "short" || in.RunAt.IsZero() || !in.Job.Job.ScheduledAt.Equal(in.RunAt) {
		t.Fatalf("granted for %v, due at %v; %+v", in.RunAt, in.Job.Job.ScheduledAt, w)
	}
	if s := j.await(t, 1)[0]; s.at.Before(in.RunAt) {
		t.Errorf("started %v early", in.RunAt.Sub(s.at))
	}
}
