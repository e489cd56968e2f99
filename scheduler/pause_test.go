package scheduler_test

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// An upstream that says to come later: nothing starts until then; each job is woken once at the
// most, none uses an attempt, none pays twice, and all keep their order and their distance.
func TestAPausePutsOffWhatWaits(t *testing.T) {
	t.Parallel()
	untilInTime(t, putsOffWhatWaits)
}

func putsOffWhatWaits(t *testing.T) bool {
	t.Helper()
	f := setUp(t, scheduler.Config{})
	sched := scheduler.New(f.limiter, scheduler.Config{Jitter: -1})
	limit := ratelimit.MustDefine("upstream",
		ratelimit.TokenBucket{Rate: 5, Period: time.Second, Capacity: ratelimit.Tokens(1)})
	const pause = 3 * time.Second
	j := newJournal(f)
	var paused atomic.Pointer[time.Time] // the pause begins after it
	j.work = func(_ context.Context, job *river.Job[sendArgs]) error {
		if now := time.Now(); job.Args.N == 2 && paused.CompareAndSwap(nil, &now) {
			return &scheduler.PauseError{For: pause, Requests: []ratelimit.Request{limit.For("k")},
				Err: errors.New("429")}
		}
		return nil
	}
	jobs := sched.Jobs(j.client(t, sched))
	const n = 20
	reserved := f.insertTogether(t, jobs, n, limit.For("k").OrReserve())
	var closed, opened time.Time // from when on everybody sees the pause, and until when it lasts
	var delay time.Duration      // of those who wait: less by as long as the pause has waited for the row
	eventually(t, "the pause has begun", func() bool {
		err := f.pool.QueryRow(t.Context(), `SELECT clock_timestamp(), paused_until, delay * interval '1 microsecond'
			FROM weir_balance WHERE name = 'upstream' AND paused_until IS NOT NULL`).Scan(&closed, &opened, &delay)
		return err == nil
	})
	if delay <= 0 || delay > pause {
		t.Errorf("those who wait are delayed by %v, want at most %v", delay, pause)
	}
	starts := j.await(t, n+1)
	waited, called := 0, false
	anew := len(f.paidAnew(t)) > 0 // they go ahead of the others, which are put back once more
	for _, s := range starts {
		if s.n == 2 && !called {
			called = true
			continue
		}
		if s.attempt != 1 {
			t.Errorf("job %d started at attempt %d", s.n, s.attempt)
		}
		job := f.job(t, s.id)
		// One that was fetched before the pause may have begun with job 2.
		if s.at.Before(opened) && job.AttemptedAt.After(closed) {
			t.Errorf("job %d started %v before the end of the pause", s.n, opened.Sub(s.at))
		}
		if in := reserved[s.n]; s.n != 2 && !s.at.Before(opened) && in.At.Before(*paused.Load()) {
			waited++
			if early := in.RunAt.Add(delay).Sub(s.at); early > 0 {
				t.Errorf("job %d started %v before its place and the pause", s.n, early)
			}
		}
		if n := woken(t, job); n > 1 && !anew {
			t.Errorf("job %d was put back %d times", s.n, n)
		}
	}
	return waited > 0 || t.Failed() // all had started before the pause began
}

// Work that was granted before the pause, and had not started, waits too.
func TestAPauseHoldsUpWhatWasGranted(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	sched := scheduler.New(f.limiter, scheduler.Config{Jitter: -1})
	limit := ratelimit.MustDefine("granted", ratelimit.TokenBucket{Rate: 100, Period: time.Hour})
	j := newJournal(f)
	jobs := sched.Jobs(f.client)
	for i := range 5 {
		f.insertBy(t, jobs, sendArgs{i}, limit.For("k"))
	}
	before := f.now(t)
	if err := f.limiter.Autocommit(f.pool).Pause(t.Context(), 2*time.Second, limit.For("k")); err != nil {
		t.Fatal(err)
	}
	j.client(t, sched)
	for _, s := range j.await(t, 5) {
		if d := s.at.Sub(before); d < 2*time.Second {
			t.Errorf("job %d started %v into the pause", s.n, d)
		}
	}
}

func TestResumeBringsForwardWhatAPauseHasPutOff(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	sched := scheduler.New(f.limiter, scheduler.Config{Jitter: -1})
	// All belong within 40 us. A round that came between two of them would put those that it finds
	// late as far apart as they belong, and maybe behind the next ones.
	limit := ratelimit.MustDefine("resume",
		ratelimit.TokenBucket{Rate: 100_000, Period: time.Second, Capacity: ratelimit.Tokens(1)})
	j := newJournal(f)
	jobs := sched.Jobs(j.client(t, sched))
	var params []scheduler.InsertManyParams
	for i := range 5 {
		params = append(params, scheduler.InsertManyParams{Args: sendArgs{i},
			Requests: []ratelimit.Request{limit.For("k").OrReserve()}})
	}
	f.inTx(t, func(ctx context.Context, tx pgx.Tx) error { // nobody sees the jobs before the second pause
		if err := f.limiter.Pause(ctx, tx, 3*time.Second, limit.For("k")); err != nil {
			return err
		}
		if _, err := jobs.InsertManyTx(ctx, tx, params); err != nil {
			return err
		}
		return f.limiter.Pause(ctx, tx, time.Hour, limit.For("k"))
	})
	var before string
	eventually(t, "the jobs are put off, and nobody moves them any more", func() bool {
		var n int
		var rows string
		if err := f.pool.QueryRow(t.Context(),
			`SELECT count(*), coalesce(string_agg(scheduled_at::text, ' ' ORDER BY id), '') FROM river_job
			WHERE scheduled_at > now() + interval '50 min'`).Scan(&n, &rows); err != nil {
			t.Fatal(err)
		}
		settled := n == 5 && rows == before
		if before = rows; n == 5 && !settled {
			time.Sleep(2 * time.Second)
		}
		return settled
	})
	f.inTx(t, func(ctx context.Context, tx pgx.Tx) error {
		waiting, err := jobs.Waiting(ctx, tx, limit.For("k"), 10)
		if len(waiting) != 5 || time.Until(waiting[0].Until) < 50*time.Minute {
			t.Errorf("waiting: %v", waiting)
		}
		return err
	})
	resumed := f.now(t)
	f.inTx(t, func(ctx context.Context, tx pgx.Tx) error { return f.limiter.Resume(ctx, tx, limit.For("k")) })
	starts := slices.Clone(j.await(t, 5))
	slices.SortFunc(starts, func(a, b start) int { return cmp.Or(a.due.Compare(b.due), cmp.Compare(a.n, b.n)) })
	last := -1
	for i, s := range starts {
		if s.place().After(resumed) {
			continue // on a slow machine it was late by seconds, and has paid anew
		}
		if s.n < last {
			t.Errorf("job %d was due as number %d, after job %d", s.n, i, last)
		}
		last = s.n
	}
}

// Also the job whose call was refused, whether or not a window would have begun in the pause.
func TestResumeBringsForwardWhoHasMetThePause(t *testing.T) {
	t.Parallel()
	for name, rule := range map[string]ratelimit.Rule{
		"TokenBucket": ratelimit.TokenBucket{Rate: 10, Period: time.Second},
		"FixedWindow": ratelimit.FixedWindow{Rate: 10, Period: never},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, _, j := exact(t)
			sched := scheduler.New(f.limiter, scheduler.Config{})
			limit := ratelimit.MustDefine("met"+name, rule)
			j.work = func(context.Context, *river.Job[sendArgs]) error {
				if len(j.await(t, 1)) == 1 {
					return &scheduler.PauseError{For: time.Hour, Requests: []ratelimit.Request{limit.For("k")}}
				}
				return nil
			}
			jobs := sched.Jobs(j.client(t, sched))
			id := f.insertBy(t, jobs, sendArgs{1}, limit.For("k").Count(1)).Job.Job.ID
			eventually(t, "it is put back", func() bool { return f.job(t, id).State == rivertype.JobStateScheduled })
			f.inTx(t, func(ctx context.Context, tx pgx.Tx) error { return f.limiter.Resume(ctx, tx, limit.For("k")) })
			if s := j.await(t, 2)[1]; s.attempt != 1 {
				t.Errorf("it started at attempt %d", s.attempt)
			}
		})
	}
}

// A worker that was limited by Limit does not pay again for a call that its upstream refused.
func TestAPausedAttemptDoesNotPayAgain(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	sched := scheduler.New(f.limiter, scheduler.Config{Jitter: -1})
	limit := ratelimit.MustDefine("pausedAgain", ratelimit.TokenBucket{Rate: 10, Period: never})
	j := newJournal(f)
	j.limited(func(int) []ratelimit.Request { return []ratelimit.Request{limit.Global()} })
	j.work = func(context.Context, *river.Job[sendArgs]) error {
		if len(j.await(t, 1)) == 1 {
			return &scheduler.PauseError{For: 500 * time.Millisecond, Requests: []ratelimit.Request{limit.Global()}}
		}
		return nil
	}
	f.enqueue(t, 1)
	j.client(t, sched)
	starts := j.await(t, 2)
	if d := starts[1].at.Sub(starts[0].at); d < 500*time.Millisecond || starts[1].attempt != 1 {
		t.Errorf("again after %v, at attempt %d", d, starts[1].attempt)
	}
	eventually(t, "the job is completed", func() bool {
		return f.job(t, starts[0].id).State == rivertype.JobStateCompleted
	})
	f.want(t, limit.Global(), 9, -1)
}

// A pause that is refused fails the attempt, and says why.
func TestAPauseThatIsRefusedFailsTheAttempt(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	j := newJournal(f)
	j.work = func(context.Context, *river.Job[sendArgs]) error { return &scheduler.PauseError{For: time.Second} }
	f.enqueue(t, 1)
	j.client(t, scheduler.New(f.limiter, scheduler.Config{}))
	var job *rivertype.JobRow
	eventually(t, "the attempt has failed", func() bool { job = f.job(t, 1); return len(job.Errors) > 0 })
	t.Log(job.Errors[0].Error)
}

func TestExplainSaysWhyAJobWaits(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	sched := scheduler.New(f.limiter, scheduler.Config{Jitter: -1})
	slow := ratelimit.MustDefine("explained", ratelimit.TokenBucket{Rate: 10, Period: time.Hour})
	fast := ratelimit.MustDefine("chatRequests", ratelimit.TokenBucket{Rate: 100, Period: time.Hour})
	jobs := sched.Jobs(f.client)
	now := f.insertBy(t, jobs, sendArgs{0}, slow.For("acme").Count(10).OrReserve(), fast.For("acme").OrReserve())
	if w, ok := scheduler.Explain(now.Job.Job); ok {
		t.Errorf("a job that was granted at once waits: %v", w)
	}
	for i := range 3 {
		in := f.insertBy(t, jobs, sendArgs{i}, slow.For("acme").Count(2).OrReserve(), fast.For("acme").OrReserve())
		w, ok := scheduler.Explain(f.job(t, in.Job.Job.ID))
		if !ok || w.Limit != "explained" || w.Key != "acme" || !w.Until.Equal(in.RunAt) || w.Paused {
			t.Errorf("%+v %v, reserved for %v", w, ok, in.RunAt)
		}
		t.Log(w)
	}
	f.inTx(t, func(ctx context.Context, tx pgx.Tx) error {
		for _, r := range []ratelimit.Request{slow.For("acme"), fast.For("acme")} {
			all, err := jobs.Waiting(ctx, tx, r, 100)
			if err != nil {
				return err
			}
			if len(all) != 3 || !all[0].Until.Before(all[1].Until) || all[2].Limit != "explained" {
				t.Errorf("waiting: %v", all)
			}
		}
		if all, err := jobs.Waiting(ctx, tx, slow.For("globex"), 100); err != nil || len(all) != 0 {
			t.Errorf("waiting of another key: %v, %v", all, err)
		}
		if err := f.limiter.Pause(ctx, tx, time.Minute, slow.For("acme")); err != nil {
			return err
		}
		all, err := jobs.Waiting(ctx, tx, slow.For("acme"), 100)
		if len(all) != 3 || !all[0].Paused {
			t.Errorf("waiting in a pause: %v", all)
		}
		return err
	})
}

// Work for which there are tokens waits for nothing but the end of the pause that it was inserted
// in.
func TestExplainTellsOfThePauseOfItsInsert(t *testing.T) {
	t.Parallel()
	f, sched, _ := exact(t)
	jobs := sched.Jobs(f.client)
	if err := f.limiter.Autocommit(f.pool).Pause(t.Context(), time.Hour, budget.For("k")); err != nil {
		t.Fatal(err)
	}
	for i, owed := range []bool{false, true} {
		in := f.insertBy(t, jobs, sendArgs{i}, budget.For("k").Count(900).OrReserve())
		if w, ok := scheduler.Explain(in.Job.Job); !ok || w.Paused == owed || !w.Until.Equal(in.RunAt) {
			t.Errorf("%v %+v, reserved for %v", ok, w, in.RunAt)
		}
	}
	f.inRC(t, func(tx pgx.Tx) error {
		w, err := jobs.Waiting(t.Context(), tx, budget.For("k"), 10)
		if len(w) != 2 || !w[0].Paused || w[1].Paused {
			t.Errorf("%v", w)
		}
		return err
	})
}

// A job waits for nothing once it has started.
func TestAJobThatRunsWaitsForNothing(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	done := make(chan struct{})
	j.work = func(context.Context, *river.Job[sendArgs]) error { <-done; return nil }
	job := f.reserve(t, sched.Jobs(f.client), 1, time.Second)
	defer close(done)
	if w, ok := scheduler.Explain(f.job(t, job.ID)); !ok || !w.Until.Equal(job.ScheduledAt) {
		t.Errorf("waiting: %+v, %v", w, ok)
	}
	j.client(t, sched)
	j.await(t, 1)
	if w, ok := scheduler.Explain(f.job(t, job.ID)); ok {
		t.Errorf("at work: %v", w)
	}
}

// The first that waits is listed although others, before it, are due.
func TestWaitingListsWhoWaits(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	jobs := sched.Jobs(j.client(t, nil))
	limit := ratelimit.MustDefine("waited",
		ratelimit.TokenBucket{Rate: 100, Period: time.Hour, Capacity: ratelimit.Tokens(100)})
	first, err := f.limiter.Autocommit(f.pool).RateLimit(t.Context(), limit.For("k").Count(100))
	if err != nil || !first.OK {
		t.Fatal(first, err)
	}
	f.insertBy(t, jobs, sendArgs{0}, limit.For("k").Count(100).OrReserve())
	second := f.insertBy(t, jobs, sendArgs{1}, limit.For("k").Count(100).OrReserve())
	if _, err := f.limiter.Autocommit(f.pool).Settle(t.Context(), first.Reservation(),
		limit.For("k").Count(0)); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{-1000, -1, 0, 1, 2, math.MaxInt} {
		f.inRC(t, func(tx pgx.Tx) error {
			w, err := jobs.Waiting(t.Context(), tx, limit.For("k"), n)
			if len(w) != min(max(n, 0), 1) || n > 0 && w[0].Job.ID != second.Job.Job.ID {
				t.Errorf("of %d: %v", n, w)
			}
			return err
		})
	}
}

// JSON's containment knows neither order nor number: the jobs of other keys, and of a limit and a
// key that are named the other way round, are not meant.
func TestWaitingListsNoOtherKey(t *testing.T) {
	t.Parallel()
	f, sched, _ := exact(t)
	jobs := sched.Jobs(f.client)
	limits := map[string]ratelimit.Limit{}
	for _, name := range []string{"a", "b"} {
		limits[name] = ratelimit.MustDefine(name, ratelimit.TokenBucket{Rate: 1, Period: time.Hour})
	}
	for i, at := range [][2]string{{"a", "a"}, {"a", "b"}, {"b", "a"}, {"b", "c"}} {
		f.insertBy(t, jobs, sendArgs{i}, limits[at[0]].For(at[1]).Count(2).OrReserve())
		f.inRC(t, func(tx pgx.Tx) error {
			w, err := jobs.Waiting(t.Context(), tx, limits[at[0]].For(at[1]), 10)
			if len(w) != 1 || w[0].Limit != at[0] || w[0].Key != at[1] {
				t.Errorf("%v: %v", at, w)
			}
			return err
		})
	}
	f.inRC(t, func(tx pgx.Tx) error {
		w, err := jobs.Waiting(t.Context(), tx, limits["a"].For("a"), 10)
		if len(w) != 1 {
			t.Errorf("%v", w)
		}
		return err
	})
}
