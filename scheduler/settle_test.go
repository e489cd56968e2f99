package scheduler_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// budget is a limit into which nothing flows.
var budget = ratelimit.MustDefine("budget",
	ratelimit.TokenBucket{Rate: 1, Period: never, Capacity: ratelimit.Tokens(1000)})

// settles makes workers settle what they used, in the transaction that completes their job.
func (j *journal) settles(used func(n int) ratelimit.Request) func(ctx context.Context,
	job *river.Job[sendArgs]) error {
	return func(ctx context.Context, job *river.Job[sendArgs]) error {
		r, ok := scheduler.ReservationOf(job.JobRow)
		if !ok {
			return errors.New("nothing reserved")
		}
		return pgx.BeginFunc(ctx, j.f.pool, func(tx pgx.Tx) error {
			if settled, err := j.f.limiter.Settle(ctx, tx, r, used(job.Args.N)); err != nil || !settled {
				return errors.Join(err, errors.New("was settled before"))
			}
			_, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job)
			return err
		})
	}
}

func (f *fixture) left(t testing.TB, r ratelimit.Request) float64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience) // and not Config.Timeout: the machine may be busy
	defer cancel()
	s, err := f.limiter.Autocommit(f.pool).Value(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	return s.Value
}

// wantLeft compares what is left. On a cluster, jobs are on the coordinator and balances on workers:
// a commit in two phases is seen on the one a moment before it is on the others.
func (f *fixture) wantLeft(t testing.TB, r ratelimit.Request, want float64) {
	t.Helper()
	var got float64
	is := func() bool { got = f.left(t, r); return math.Abs(got-want) <= 1e-3 }
	if pgtest.Citus() {
		eventually(t, fmt.Sprint(want, " tokens are left"), is)
	} else if !is() {
		t.Errorf("%v tokens are left, want %v", got, want)
	}
}

func TestAWorkerSettlesWhatItsJobHasUsed(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	used := map[int]float64{0: 30, 1: 100, 2: 170}
	j.work = j.settles(func(n int) ratelimit.Request { return budget.For("k").Count(used[n]) })
	jobs := sched.Jobs(j.client(t, sched))
	for n := range used {
		f.insertBy(t, jobs, sendArgs{n}, budget.For("k").Count(100))
	}
	j.await(t, len(used))
	eventually(t, "all are settled", func() bool { return math.Abs(f.left(t, budget.For("k"))-700) < 1e-3 })
}

// Each job reserves ten tokens and uses four. Those who wait start earlier by what is given back,
// and never so that more is under way and used than the limit lets flow in.
func TestWhatIsGivenBackBringsThoseForwardWhoWait(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	const n, reserved, used, rate, capacity = 60, 10.0, 4.0, 40.0, 20.0
	limit := ratelimit.MustDefine("forward", ratelimit.TokenBucket{Rate: rate, Period: time.Second,
		Capacity: ratelimit.Tokens(capacity)})
	settle := j.settles(func(int) ratelimit.Request { return limit.For("k").Count(used) })
	var mu sync.Mutex
	ended := map[int]time.Time{} // at the latest
	j.work = func(ctx context.Context, job *river.Job[sendArgs]) error {
		time.Sleep(20 * time.Millisecond)
		var began time.Time
		if err := f.pool.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&began); err != nil {
			return err
		}
		err := settle(ctx, job)
		mu.Lock()
		defer mu.Unlock()
		ended[job.Args.N] = began
		return err
	}
	jobs := sched.Jobs(j.client(t, sched))
	began := f.now(t)
	f.inTx(t, func(ctx context.Context, tx pgx.Tx) error { // at once, so that none comes after its turn
		for i := range n {
			if _, err := jobs.InsertTx(ctx, tx, sendArgs{i}, nil, limit.For("k").Count(reserved).OrReserve()); err != nil {
				return err
			}
		}
		return nil
	})
	gap := f.longestGap(t)
	starts := j.await(t, n)
	// They come four times a second while jobs end. On a busy machine one that comes later than after
	// a second brings forward at once what belonged between.
	without := max(0, gap()-time.Second)
	last := starts[len(starts)-1].at.Sub(began)
	late := time.Duration(0) // by which a busy machine started one after its time
	for _, s := range starts {
		late = max(late, s.at.Sub(s.due))
	}
	planned := time.Duration((n*reserved - capacity) / rate * float64(time.Second))
	latest := planned*7/10 + late + without
	if pgtest.Citus() { // where the settlements of one row are transactions in two phases, one after the other
		latest = max(latest, planned)
	}
	if last > latest {
		t.Errorf("the last started after %v, and %v without what was given back", last, planned)
	}
	eventually(t, "all are settled", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(ended) == n
	})
	mu.Lock()
	defer mu.Unlock()
	starts = slices.Clone(starts)
	slices.SortFunc(starts, func(a, b start) int { return a.due.Compare(b.due) })
	for i, from := range starts {
		held := 0.0
		for _, to := range starts[i:] {
			held += reserved
			now := held // with what those that had ended by then have given back
			for _, s := range starts {
				if e, ok := ended[s.n]; ok && !s.due.Before(from.due) && e.Before(to.due) {
					now -= reserved - used
				}
			}
			// what moved up late may meet what is next
			most := capacity + rate*to.due.Sub(from.due).Seconds()
			most += rate * (reserved - used) / used * without.Seconds()
			if now > most+2*reserved+rate*late.Seconds()+1e-6 {
				t.Errorf("%v tokens within %v", now, to.due.Sub(from.due))
			}
		}
	}
	if left := f.left(t, limit.For("k")); left < 0 {
		t.Errorf("%v left", left)
	}
}

// The estimate is no part of what makes a job unique.
func TestAReservationIsNoPartOfAUniqueJob(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	opts := &river.InsertOpts{UniqueOpts: river.UniqueOpts{ByArgs: true}}
	first := f.insert(t, sendArgs{1}, opts, budget.For("k").Count(100))
	second := f.insert(t, sendArgs{1}, opts, budget.For("k").Count(200))
	if !second.Job.UniqueSkippedAsDuplicate || second.Job.Job.ID != first.Job.Job.ID {
		t.Errorf("%+v", second.Job)
	}
	f.wantLeft(t, budget.For("k"), 900)
	if r, ok := scheduler.ReservationOf(second.Job.Job); !ok || r.Takes[0].Count != 100 {
		t.Errorf("%+v", r)
	}
}
