package databasesql

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverdatabasesql"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// A job and its tokens are there together or not at all.
func TestAJobOfDatabaseSQLCommitsWithItsTokens(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	k := ratelimit.MustDefine("together",
		ratelimit.TokenBucket{Rate: 10, Period: never, MaxReserved: ratelimit.Tokens(5)}).For("k")
	oops := errors.New("oops")
	if _, err := f.insert(t, 1, nil, oops, k.Count(4)); !errors.Is(err, oops) {
		t.Fatal(err)
	}
	f.want(t, k, 10, 0)

	in, err := f.insert(t, 1, nil, nil, k.Count(4))
	if err != nil || in.Err() != nil || in.Job.Job.State != rivertype.JobStateAvailable {
		t.Fatalf("got %+v and %v, want a job that can start", in, err)
	}
	if r, ok := scheduler.ReservationOf(in.Job.Job); !ok || r.Takes[0].Count != 4 {
		t.Errorf("the job has the reservation %+v", r)
	}
	f.want(t, k, 6, 1)

	in, err = f.insert(t, 2, nil, nil, k.Count(8).OrReserve())
	if err != nil || in.Err() != nil || in.Job.Job.State != rivertype.JobStateScheduled ||
		in.Job.Job.ScheduledAt.Before(in.RunAt.Truncate(time.Millisecond)) {
		t.Fatalf("got %+v and %v, want a job for when its tokens exist", in, err)
	}
	f.want(t, k, -2, 2)

	in, err = f.insert(t, 3, nil, nil, k.Count(8).OrReserve()) // beyond MaxReserved
	if err != nil || !errors.Is(in.Err(), ratelimit.ErrDenied) || in.Job != nil {
		t.Fatalf("got %+v and %v, want a denial", in, err)
	}
	f.want(t, k, -2, 2)
}

// What River does not insert takes nothing, also if the transaction commits.
func TestAJobOfDatabaseSQLThatIsNotInsertedTakesNothing(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	k := ratelimit.MustDefine("not inserted", ratelimit.TokenBucket{Rate: 10, Period: never}).For("k")
	unique := &river.InsertOpts{UniqueOpts: river.UniqueOpts{ByArgs: true}}
	if _, err := f.insert(t, 1, unique, nil, k.Count(3)); err != nil {
		t.Fatal(err)
	}
	in, err := f.insert(t, 1, unique, nil, k.Count(3))
	if err != nil || !in.Job.UniqueSkippedAsDuplicate {
		t.Fatalf("got %+v and %v, want the job that exists", in, err)
	}
	f.want(t, k, 7, 1)

	err = f.limiter.InSQLTx(t.Context(), f.db, nil, func(ctx context.Context, tx *sql.Tx) error {
		_, err := f.jobs.InsertTx(ctx, tx, nil, nil, k)
		if err == nil {
			t.Error("a job without arguments was inserted")
		}
		return nil // and commit
	})
	if err != nil {
		t.Fatal(err)
	}
	f.want(t, k, 7, 1)
	if _, err := f.sched.SQLJobs(nil).InsertTx(t.Context(), nil, sendArgs{}, nil, k); err == nil {
		t.Error("a job was inserted without a client")
	}
}

// Callers who meet each other run again, and each gets one job for its tokens.
func TestConcurrentJobsOfDatabaseSQLAreInsertedOnce(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	k := ratelimit.MustDefine("many jobs", ratelimit.TokenBucket{Rate: 20, Period: never}).For("k")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			for n := range 5 {
				err := f.limiter.InSQLTx(ctx, f.db, nil, func(ctx context.Context, tx *sql.Tx) error {
					in, err := f.jobs.InsertTx(ctx, tx, sendArgs{10*i + n}, nil, k)
					if err != nil {
						return err
					}
					return in.Err()
				})
				if err != nil && !errors.Is(err, ratelimit.ErrDenied) {
					t.Errorf("caller %d: %v", i, err)
				}
			}
		})
	}
	all.Wait()
	f.want(t, k, 0, 20)
}

// Jobs that were reserved over database/sql start, and not before their tokens exist, by a client
// of either driver.
func TestAReservedJobOfDatabaseSQLStarts(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T, *fixture, *river.Config){
		"ByPgx": func(t *testing.T, f *fixture, cfg *river.Config) {
			client, err := river.NewClient(riverpgxv5.New(f.pool), f.sched.Configure(f.pool, cfg))
			if err != nil {
				t.Fatal(err)
			}
			work(t, client)
		},
		"ByDatabaseSQL": func(t *testing.T, f *fixture, cfg *river.Config) {
			client, err := river.NewClient(riverdatabasesql.New(f.db), f.sched.Configure(f.pool, cfg))
			if err != nil {
				t.Fatal(err)
			}
			work(t, client)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setUp(t)
			k := ratelimit.MustDefine("starts", ratelimit.TokenBucket{Rate: 1, Period: 2 * time.Second}).For("k")
			started := make(chan time.Time, 10)
			workers := river.NewWorkers()
			river.AddWorker(workers, river.WorkFunc(func(ctx context.Context, _ *river.Job[sendArgs]) error {
				var now time.Time
				err := f.pool.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now)
				started <- now
				return err
			}))
			cfg := f.config(workers)
			cfg.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 10}}
			start(t, f, cfg)
			var due time.Time
			for n := range 2 {
				in, err := f.insert(t, n, nil, nil, k.OrReserve())
				if err != nil || in.Err() != nil {
					t.Fatalf("got %+v and %v", in, err)
				}
				due = in.RunAt
			}
			<-started
			select {
			case at := <-started:
				if at.Before(due) {
					t.Errorf("it has started at %v, and its tokens exist at %v", at, due)
				}
			case <-time.After(time.Minute):
				t.Fatal("it has not started within a minute")
			}
		})
	}
}

// work starts a client until the test ends.
func work[T any](t *testing.T, client *river.Client[T]) {
	t.Helper()
	if err := client.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.StopAndCancel(context.Background()); err != nil {
			t.Error(err)
		}
	})
}
