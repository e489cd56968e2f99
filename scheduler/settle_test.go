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
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// budget is a limit into which nothing flows.
var budget = ratelimit.MustDefine("budget", ratelimit.TokenBucket{Rate: 1, Period: never, Capacity: ratelimit.Tokens(1000)})

// settles makes workers settle what they used, in the transaction that completes their job.
func (j *journal) settles(used func(n int) ratelimit.Request) func(ctx context.Context, job *river.Job[sendArgs]) error {
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
	s, err := f.limiter.Autocommit(f.pool).Value(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return s.Value
}

func (f *fixture) wantLeft(t testing.TB, r ratelimit.Request, want float64) {
	t.Helper()
	if got := f.left(t, r); math.Abs(got-want) > 1e-3 {
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

// Each job reserves ten tokens and uses four. Those who wait start earlier by what is given back, and never so that more is
// under way and used than the limit lets flow in.
func TestWhatIsGivenBackBringsThoseForwardWhoWait(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	const n, reserved, used, rate, capacity = 60, 10.0, 4.0, 40.0, 20.0
	limit := ratelimit.MustDefine("forward", ratelimit.TokenBucket{Rate: rate, Period: time.Second, Capacity: ratelimit.Tokens(capacity)})
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
	for i := range n {
		f.insertBy(t, jobs, sendArgs{i}, limit.For("k").Count(reserved).OrReserve())
	}
	starts := j.await(t, n)
	last := starts[len(starts)-1].at.Sub(began)
	if planned := time.Duration((n*reserved - capacity) / rate * float64(time.Second)); last > planned*7/10 {
		t.Errorf("the last started after %v, and %v without what was given back", last, planned)
	}
	eventually(t, "all are settled", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(ended) == n
	})
	mu.Lock()
	defer mu.Unlock()
	for i, from := range starts {
		held := 0.0
		for _, to := range starts[i:] {
			held += reserved
			now := held // with what those that had ended by then have given back
			for _, s := range starts {
				if e, ok := ended[s.n]; ok && !s.at.Before(from.at) && e.Before(to.at) {
					now -= reserved - used
				}
			}
			if most := capacity + rate*to.at.Sub(from.at).Seconds(); now > most+reserved+1e-6 {
				t.Errorf("%v tokens within %v", now, to.at.Sub(from.at))
			}
		}
	}
	if left := f.left(t, limit.For("k")); left < 0 {
		t.Errorf("%v left", left)
	}
}

func TestWhoPaysAgain(t *testing.T) {
	t.Parallel()
	fails := func(context.Context, *river.Job[sendArgs]) error { return errors.New("once more") }
	snoozes := func(context.Context, *river.Job[sendArgs]) error { return river.JobSnooze(0) }
	pauses := func(context.Context, *river.Job[sendArgs]) error {
		return &scheduler.PauseError{For: time.Millisecond, Requests: []ratelimit.Request{budget.For("k")}}
	}
	for name, tc := range map[string]struct {
		pays  scheduler.Pays
		first func(context.Context, *river.Job[sendArgs]) error
		want  float64 // tokens charged
	}{
		"ARetry":                   {scheduler.PerAttempt, fails, 200},
		"NoSnooze":                 {scheduler.PerAttempt, snoozes, 100},
		"NoPause":                  {scheduler.PerAttempt, pauses, 100},
		"NoRetryOfAJobPaidOnce":    {scheduler.PerJob, fails, 100},
		"NoSnoozeOfAJobPaidOnce":   {scheduler.PerJob, snoozes, 100},
		"ARetryWhereEachStartPays": {scheduler.PerStart, fails, 200},
		"ASnoozeWhereEachDoes":     {scheduler.PerStart, snoozes, 200},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, sched, j := exact(t)
			var ids []string
			j.work = func(ctx context.Context, job *river.Job[sendArgs]) error {
				r, _ := scheduler.ReservationOf(job.JobRow)
				ids = append(ids, r.ID.String())
				if len(ids) == 1 {
					return tc.first(ctx, job)
				}
				return j.settles(func(int) ratelimit.Request { return budget.For("k").Count(10) })(ctx, job)
			}
			jobs := sched.Jobs(j.client(t, sched))
			id := f.insertBy(t, jobs, sendArgs{payer(tc.pays)}, budget.For("k").Count(100)).Job.Job.ID
			j.await(t, 2)
			eventually(t, "it is completed", func() bool { return f.job(t, id).State == rivertype.JobStateCompleted })
			f.wantLeft(t, budget.For("k"), 1000-tc.want+90)
			if same := ids[0] == ids[1]; same != (tc.want == 100) {
				t.Errorf("the reservations are %v", ids)
			}
		})
	}
}

// A retry waits for its tokens, ahead of those who came later.
func TestARetryWaitsForItsTokens(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	limit := ratelimit.MustDefine("again", ratelimit.TokenBucket{Rate: 10, Period: time.Second})
	var failed time.Time
	j.work = func(ctx context.Context, job *river.Job[sendArgs]) error {
		if job.Args.N == 0 && job.Attempt == 1 {
			if err := f.pool.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&failed); err != nil {
				return err
			}
			return errors.New("once more")
		}
		return nil
	}
	jobs := sched.Jobs(j.client(t, sched))
	for i := range 3 {
		f.insertBy(t, jobs, sendArgs{i}, limit.For("k").Count(10).OrReserve())
	}
	starts := j.await(t, 4)
	order := [4]int{starts[0].n, starts[1].n, starts[2].n, starts[3].n}
	if order != [4]int{0, 0, 1, 2} && order != [4]int{0, 1, 0, 2} {
		t.Errorf("started in the order %v", order)
	}
	for _, s := range starts[1:] {
		if s.n == 0 && s.attempt != 2 {
			t.Errorf("it is at attempt %d", s.attempt)
		}
		if s.n == 0 && s.at.Sub(failed) < 500*time.Millisecond {
			t.Errorf("it started again %v after it had failed", s.at.Sub(failed))
		}
	}
	if last := starts[3].at.Sub(starts[0].at); last < 2800*time.Millisecond {
		t.Errorf("40 tokens at 10 a second, from 10, within %v", last)
	}
}

// After an outage, what is late starts in its order and at the rate of its limit, not at once; it pays for its new time and
// for nothing else, and whoever comes then stands behind.
func TestWhatIsLateIsPacedAnew(t *testing.T) {
	t.Parallel()
	for name, clients := range map[string]int{"OneClient": 1, "ThreeClients": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, sched, j := exact(t)
			const n, rate, capacity, slack = 30, 10.0, 5.0, 0.3 // seconds that a busy machine may be late by
			limit := ratelimit.MustDefine("late", ratelimit.TokenBucket{Rate: rate, Period: time.Second, Capacity: ratelimit.Tokens(capacity)})
			jobs := sched.Jobs(f.client) // which works none
			for i := range n {
				f.insertBy(t, jobs, sendArgs{i}, limit.For("k").OrReserve())
			}
			time.Sleep(6 * time.Second) // the outage: all are due, and more than three seconds late
			for range clients {
				j.client(t, sched)
			}
			starts := j.await(t, n)
			late := starts[:0:0]
			for _, s := range starts {
				if s.n >= capacity { // the first were granted at once
					late = append(late, s)
				}
			}
			slices.SortFunc(late, func(a, b start) int { return a.at.Compare(b.at) })
			for i, from := range late {
				for k, to := range late[i:] {
					if most := capacity + rate*to.at.Sub(from.at).Seconds() + 1; float64(k+1) > most+slack*rate {
						t.Errorf("%d started within %v", k+1, to.at.Sub(from.at))
					}
				}
				if clients == 1 && i > capacity && late[i-1].n > from.n { // the first came together
					t.Errorf("%d started before %d", late[i-1].n, from.n)
				}
			}
			if f.left(t, limit.For("k")) > capacity/2 {
				t.Error("they have not paid for their new times")
			}
			for _, s := range late {
				if w := woken(t, f.job(t, s.id)); w > 2 {
					t.Errorf("job %d was put back %d times", s.n, w)
				}
			}
		})
	}
}

// Tokens that were there at once were taken for good: a late job does not take them again.
func TestALateJobPaysOnceForWhatWasThere(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	limit := ratelimit.MustDefine("sec", ratelimit.TokenBucket{Rate: 10, Period: time.Second, Capacity: ratelimit.Tokens(2)})
	j.work = j.settles(func(int) ratelimit.Request { return budget.For("k").Count(20) })
	jobs := sched.Jobs(f.client) // which works none
	const n = 6
	for i := range n {
		f.insertBy(t, jobs, sendArgs{i}, limit.For("k").OrReserve(), budget.For("k").Count(20))
	}
	f.wantLeft(t, budget.For("k"), 1000-n*20)
	time.Sleep(5 * time.Second)
	j.client(t, sched)
	j.await(t, n)
	eventually(t, "all are settled", func() bool { return f.settlements(t) == n })
	f.wantLeft(t, budget.For("k"), 1000-n*20)
}

// A queue whose workers were all busy, too.
func TestWhatABackedUpQueueHasMadeLateIsPacedAnew(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	limit := ratelimit.MustDefine("backedUp", ratelimit.TokenBucket{Rate: 2, Period: time.Second, Capacity: ratelimit.Tokens(1)})
	j.work = func(ctx context.Context, job *river.Job[sendArgs]) error {
		if job.Args.N == 0 {
			select {
			case <-time.After(7 * time.Second):
			case <-ctx.Done():
			}
		}
		return nil
	}
	jobs := sched.Jobs(j.client(t, sched, func(c *river.Config) {
		c.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 1}}
	}))
	for i := range 7 {
		f.insertBy(t, jobs, sendArgs{i}, limit.For("k").OrReserve())
	}
	starts := j.await(t, 7)
	// One token was there; five came after it.
	if d := starts[6].at.Sub(starts[1].at); d < 2*time.Second {
		t.Errorf("six started within %v", d)
	}
	for i := 2; i < 7; i++ {
		if starts[i].n < starts[i-1].n {
			t.Errorf("%d started before %d", starts[i-1].n, starts[i].n)
		}
	}
}

// A charge beyond a reservation, shortly before a held job is due, puts it off by a moment and no more.
func TestAChargePutsAHeldJobOffByAsMuch(t *testing.T) {
	t.Parallel()
	for _, charge := range []float64{5, 10, 20, 40} { // tokens, and so ms
		t.Run(fmt.Sprint(charge), func(t *testing.T) {
			t.Parallel()
			f, sched, j := exact(t)
			jobs := sched.Jobs(j.client(t, sched))
			a, k := f.limiter.Autocommit(f.pool), wait.For("k").Count(1000)
			first, err := a.RateLimit(t.Context(), k)
			if err != nil || !first.OK {
				t.Fatal(first, err)
			}
			if more, err := a.RateLimit(t.Context(), k.OrReserve()); err != nil || !more.OK {
				t.Fatal(more, err)
			}
			due := f.insertBy(t, jobs, sendArgs{0}, k.OrReserve()).Job.Job.ScheduledAt
			time.Sleep(due.Sub(f.now(t)) - 70*time.Millisecond)
			if ok, err := a.Settle(t.Context(), first.Reservation(), k.Count(1000+charge)); err != nil || !ok {
				t.Fatal(ok, err)
			}
			due = due.Add(time.Duration(charge) * time.Millisecond)
			if s := j.await(t, 1)[0]; s.at.Before(due.Add(-time.Microsecond)) || s.at.Sub(due) > 700*time.Millisecond {
				t.Errorf("charged %v: started %v after it was due", charge, s.at.Sub(due))
			}
		})
	}
}

func TestACancelledJobGivesBackWhatItTook(t *testing.T) {
	t.Parallel()
	f, sched, _ := exact(t)
	limit := ratelimit.MustDefine("cancel", ratelimit.TokenBucket{Rate: 100, Period: time.Hour})
	jobs := sched.Jobs(f.client)
	var ids []int64
	var dues []time.Time
	for i := range 5 {
		job := f.insertBy(t, jobs, sendArgs{i}, limit.For("k").Count(100).OrReserve()).Job.Job
		ids, dues = append(ids, job.ID), append(dues, job.ScheduledAt)
	}
	if got := f.left(t, limit.For("k")); math.Abs(got+400) > 1 {
		t.Errorf("%v left", got)
	}
	cancel := func(id int64) {
		t.Helper()
		var job *rivertype.JobRow
		err := pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) (err error) {
			job, err = jobs.CancelTx(t.Context(), tx, id)
			return err
		})
		if err != nil || job.State != rivertype.JobStateCancelled {
			t.Fatal(job, err)
		}
	}
	cancel(ids[2])
	near := func(i int, want time.Time) {
		t.Helper()
		job := f.job(t, ids[i])
		if d := job.ScheduledAt.Sub(want).Abs(); d > 10*time.Millisecond {
			t.Errorf("job %d is due at %v, %v from where it should be", i, job.ScheduledAt, d)
		}
		if w, ok := scheduler.Explain(job); !ok || !w.Until.Equal(job.ScheduledAt) {
			t.Errorf("job %d: %v %v", i, w, ok)
		}
	}
	if got := f.left(t, limit.For("k")); math.Abs(got+300) > 1 {
		t.Errorf("%v left", got)
	}
	near(1, dues[1])
	near(3, dues[2])
	near(4, dues[3])
	cancel(ids[2]) // changes nothing
	if got := f.left(t, limit.For("k")); math.Abs(got+300) > 1 {
		t.Errorf("%v left", got)
	}
	cancel(ids[0]) // was granted at once, and has not been started: those who wait come earlier
	near(1, f.now(t))
	near(3, dues[1])
	near(4, dues[2])
	cancel(ids[4])
	if got := f.left(t, limit.For("k")); math.Abs(got+100) > 1 {
		t.Errorf("%v left", got)
	}
	near(3, dues[1])
}

func TestACancellationThatRollsBackChangesNothing(t *testing.T) {
	t.Parallel()
	f, sched, _ := exact(t)
	jobs := sched.Jobs(f.client)
	id := f.insertBy(t, jobs, sendArgs{0}, budget.For("k").Count(100)).Job.Job.ID
	err := pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error {
		if _, err := jobs.CancelTx(t.Context(), tx, id); err != nil {
			return err
		}
		return errors.New("no")
	})
	if err == nil {
		t.Fatal("committed")
	}
	f.wantLeft(t, budget.For("k"), 900)
	if job := f.job(t, id); job.State != rivertype.JobStateAvailable {
		t.Error(job.State)
	}
}

// A job that is cancelled while it is held, a moment before it starts, has not started either.
func TestACancelledHeldJobGivesBackWhatItTook(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	jobs := sched.Jobs(j.client(t, sched))
	limit := ratelimit.MustDefine("held", ratelimit.TokenBucket{Rate: 50, Period: time.Second, Capacity: ratelimit.Tokens(0)})
	id := f.insertBy(t, jobs, sendArgs{0}, limit.For("k").Count(100).OrReserve()).Job.Job.ID
	eventually(t, "it is held", func() bool { return f.job(t, id).State == rivertype.JobStateRunning })
	f.inRC(t, func(tx pgx.Tx) error {
		_, err := jobs.CancelTx(t.Context(), tx, id)
		return err
	})
	eventually(t, "it is cancelled", func() bool { return f.job(t, id).State == rivertype.JobStateCancelled })
	eventually(t, "what it took is given back", func() bool { return f.settlements(t) == 1 })
	j.never(t, 100*time.Millisecond)
}

func (f *fixture) inRC(t testing.TB, fn func(tx pgx.Tx) error) {
	t.Helper()
	if err := pgx.BeginTxFunc(t.Context(), f.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, fn); err != nil {
		t.Fatal(err)
	}
}

func (f *fixture) settlements(t testing.TB) (n int) {
	t.Helper()
	if err := f.pool.QueryRow(t.Context(), `SELECT count(*) FROM weir_settled`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// What has started has used what it took, as far as anybody knows.
func TestACancelledRunningJobKeepsWhatItTook(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	j.work = func(ctx context.Context, _ *river.Job[sendArgs]) error {
		<-ctx.Done()
		return ctx.Err()
	}
	jobs := sched.Jobs(j.client(t, sched))
	id := f.insertBy(t, jobs, sendArgs{0}, budget.For("k").Count(100)).Job.Job.ID
	j.await(t, 1)
	f.inRC(t, func(tx pgx.Tx) error {
		_, err := jobs.CancelTx(t.Context(), tx, id)
		return err
	})
	eventually(t, "it is cancelled", func() bool { return f.job(t, id).State == rivertype.JobStateCancelled })
	time.Sleep(3 * time.Second) // for the watch to find it, wrongly
	f.wantLeft(t, budget.For("k"), 900)
}

// A job that is paid once has used what it took with its first attempt, whenever it is cancelled then.
func TestAJobCancelledBeforeItsSecondAttemptKeepsWhatItTook(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	j.work = func(ctx context.Context, job *river.Job[sendArgs]) error {
		if job.Args.N == 1 {
			<-ctx.Done()
		}
		return errors.New("once more")
	}
	jobs := sched.Jobs(j.client(t, sched, func(c *river.Config) {
		c.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 1}}
	}))
	id := f.insertBy(t, jobs, sendArgs{payer(scheduler.PerJob)}, budget.For("k").Count(100)).Job.Job.ID
	f.insertBy(t, jobs, sendArgs{1}, wait.For("k")) // occupies the worker as soon as it is free
	j.await(t, 2)
	eventually(t, "it waits for its second attempt", func() bool {
		s := f.job(t, id).State
		return s == rivertype.JobStateAvailable || s == rivertype.JobStateRunning
	})
	eventually(t, "it is cancelled", func() bool {
		f.inRC(t, func(tx pgx.Tx) error { // again and again: a client may not hear of it just when it fetches the job
			_, err := jobs.CancelTx(t.Context(), tx, id)
			return err
		})
		return f.job(t, id).State == rivertype.JobStateCancelled
	})
	time.Sleep(3 * time.Second)
	f.wantLeft(t, budget.For("k"), 900)
}

// Who wants a cancelled job to be worked after all pays for it again: what it took has been given back.
func TestACancelledJobThatIsRetriedPaysAgain(t *testing.T) {
	t.Parallel()
	for name, pays := range map[string]scheduler.Pays{"PerAttempt": scheduler.PerAttempt, "PerJob": scheduler.PerJob} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, sched, j := exact(t)
			j.work = j.settles(func(int) ratelimit.Request { return budget.For("k").Count(30) })
			jobs := sched.Jobs(f.client)
			id := f.insertBy(t, jobs, sendArgs{payer(pays)}, budget.For("k").Count(100)).Job.Job.ID
			f.inRC(t, func(tx pgx.Tx) error {
				_, err := jobs.CancelTx(t.Context(), tx, id)
				return err
			})
			f.wantLeft(t, budget.For("k"), 1000)
			if _, err := f.client.JobRetry(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			j.client(t, sched)
			eventually(t, "it is completed", func() bool { return f.job(t, id).State == rivertype.JobStateCompleted })
			f.wantLeft(t, budget.For("k"), 970)
		})
	}
}

// Behind the scheduler's back.
func TestJobsThatAreCancelledOrDeletedByOthersGiveBackWhatTheyTook(t *testing.T) {
	t.Parallel()
	for name, remove := range map[string]func(f *fixture, id int64) error{
		"Cancelled": func(f *fixture, id int64) error { _, err := f.client.JobCancel(context.Background(), id); return err },
		"Deleted":   func(f *fixture, id int64) error { _, err := f.client.JobDelete(context.Background(), id); return err },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, sched, j := exact(t)
			jobs := sched.Jobs(j.client(t, sched))
			limit := ratelimit.MustDefine("behind", ratelimit.TokenBucket{Rate: 100, Period: time.Hour})
			var ids []int64
			var dues []time.Time
			for i := range 4 {
				job := f.insertBy(t, jobs, sendArgs{i}, limit.For("k").Count(100).OrReserve()).Job.Job
				ids, dues = append(ids, job.ID), append(dues, job.ScheduledAt)
			}
			j.await(t, 1)
			time.Sleep(5 * time.Second) // the watch has seen them all
			if err := remove(f, ids[1]); err != nil {
				t.Fatal(err)
			}
			eventually(t, "it gives back what it took", func() bool { return f.left(t, limit.For("k")) > -201 })
			eventually(t, "those behind come earlier", func() bool {
				return f.job(t, ids[2]).ScheduledAt.Sub(dues[1]).Abs() < 10*time.Millisecond &&
					f.job(t, ids[3]).ScheduledAt.Sub(dues[2]).Abs() < 10*time.Millisecond
			})
			time.Sleep(3 * time.Second)
			if n, left := f.settlements(t), f.left(t, limit.For("k")); n != 1 || left > -199 {
				t.Errorf("%d settlements, %v left", n, left)
			}
		})
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
