package scheduler_test

import (
	"cmp"
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// busy has one worker put off the first of some jobs, and then be busy with one that asks for
// nothing, until open is called. So the jobs behind these are moved while no worker meets them.
func (j *journal) busy(
	t *testing.T, sched *scheduler.Scheduler, first int, others []int,
	requests func(n int) []ratelimit.Request,
) (open func()) {
	t.Helper()
	j.limited(func(n int) []ratelimit.Request {
		if n < 0 {
			return nil
		}
		return requests(n)
	})
	gate := make(chan struct{})
	j.work = func(ctx context.Context, job *river.Job[sendArgs]) error {
		if job.Args.N < 0 {
			select {
			case <-gate:
			case <-ctx.Done():
			}
		}
		return nil
	}
	j.f.enqueue(t, append([]int{first, -1}, others...)...)
	j.client(t, sched, oneWorker)
	return sync.OnceFunc(func() { close(gate) })
}

// take takes one token.
func (f *fixture) take(t *testing.T, r ratelimit.Request) {
	t.Helper()
	if res, err := f.limiter.Autocommit(f.pool).RateLimit(t.Context(), r); err != nil || !res.OK {
		t.Fatal(res, err)
	}
}

// Jobs that ask for more than the capacity, and so can only reserve, get out of the way as well.
func TestABacklogMayAskForMoreThanTheCapacity(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	limit := ratelimit.MustDefine("backlog beyond the capacity",
		ratelimit.TokenBucket{Rate: 3, Period: time.Hour, Capacity: ratelimit.Tokens(1)})
	open := j.busy(t, sched, 0, upTo(21)[1:], func(int) []ratelimit.Request {
		return []ratelimit.Request{limit.Global().Count(3)}
	})
	defer open()
	eventually(t, "all of them wait", func() bool { return f.count(t, `state = 'scheduled'`) == 21 })
	if n := f.count(t, `metadata ? 'snoozes'`); n != 1 {
		t.Errorf("%d were put off at their own starts, want the first", n)
	}
	// The first one waits for two tokens, and each of the others for three more.
	const inOrder = `state = 'scheduled' AND scheduled_at BETWEEN
		now() + (args->>'n')::int * interval '1 hour' AND now() + (1 + (args->>'n')::int) * interval '1 hour'`
	if n := f.count(t, inOrder); n != 21 {
		t.Errorf("%d of 21 are due when their tokens are there", n)
	}
}

// A job that asks for more than can ever be granted is left to its own attempt, which fails. The
// others reserve, and wait for nothing but their own tokens.
func TestAJobThatAsksForTooMuchKeepsNoOtherWaiting(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	limit := ratelimit.MustDefine("asks for too much", ratelimit.TokenBucket{Rate: 1,
		Period: time.Hour, Capacity: ratelimit.Tokens(1), MaxReserved: ratelimit.Tokens(100)})
	f.take(t, limit.Global())
	const tooMuch = 1000
	open := j.busy(t, sched, 0, []int{1, 2, tooMuch, 3, 4}, func(n int) []ratelimit.Request {
		if n == tooMuch {
			return []ratelimit.Request{limit.Global().Count(1e6)}
		}
		return []ratelimit.Request{limit.Global()}
	})
	eventually(t, "the others wait", func() bool {
		return f.count(t, `state = 'scheduled' AND args->>'n' <> '1000'`) == 5
	})
	if n := f.count(t, `state = 'scheduled' AND scheduled_at < now() + interval '6 hours'
		AND metadata ? 'weir'`); n != 5 {
		t.Errorf("%d of 5 jobs have reserved and are due in time", n)
	}
	open()
	var failed *rivertype.JobRow
	eventually(t, "its attempt fails", func() bool {
		failed = f.job(t, 5)
		return len(failed.Errors) > 0
	})
	if why := failed.Errors[0].Error; !strings.Contains(why, "can never be granted") {
		t.Errorf("it fails with %q", why)
	}
}

// While somebody holds the balance of one key, the backlogs of others get out of the way.
func TestAHeldBalanceHoldsUpNoOtherBacklog(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	const keys = 30 // which are placed in any order
	limit := ratelimit.MustDefine("held backlog",
		ratelimit.TokenBucket{Rate: 1, Period: time.Hour, Capacity: ratelimit.Tokens(1)})
	var others []int
	for key := range keys {
		f.take(t, limit.For(keyOf(100*key)))
		others = append(others, 100*key)
	}
	first, second := f.hold(t, limit.For(keyOf(0))), f.hold(t, limit.For(keyOf(200)))
	open := j.busy(t, sched, 101, others, func(n int) []ratelimit.Request {
		return []ratelimit.Request{limit.For(keyOf(n))}
	})
	defer open()
	eventually(t, "those of other keys wait", func() bool {
		return f.count(t, `state = 'scheduled' AND args->>'n' NOT IN ('0', '200')`) == keys-1
	})
	// River ends the attempt at the gate after a minute, and then each job waits by its own.
	if n := f.count(t, `metadata ? 'snoozes'`); n != 1 {
		t.Errorf("%d were put off at their own starts, want the first", n)
	}
	if err := cmp.Or(first.Rollback(t.Context()), second.Rollback(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// The ticket of a job cannot say which of two workers has taken its tokens, so the inner one would
// let it start without its own. With nothing to take, a worker is in nobody's way.
func TestALimitInsideAnotherFailsTheAttempt(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	limit := ratelimit.MustDefine("nested",
		ratelimit.TokenBucket{Rate: 1, Period: never, Capacity: ratelimit.Tokens(1000)})
	takes := func(key string, takes func(n int) bool) func(*river.Job[sendArgs]) []ratelimit.Request {
		return func(job *river.Job[sendArgs]) []ratelimit.Request {
			if !takes(job.Args.N) {
				return nil
			}
			return []ratelimit.Request{limit.For(key)}
		}
	}
	j.wrap = func(w river.Worker[sendArgs]) river.Worker[sendArgs] {
		inner := scheduler.Limit(w, takes("inner", func(n int) bool { return n != 2 }))
		return scheduler.Limit(inner, takes("outer", func(n int) bool { return n != 3 }))
	}
	f.enqueue(t, 1, 2, 3)
	j.client(t, sched)
	var job *rivertype.JobRow
	eventually(t, "the attempt has failed", func() bool {
		job = f.job(t, 1)
		return len(job.Errors) > 0
	})
	if why := job.Errors[0].Error; !strings.Contains(why, "inside another one") {
		t.Errorf("it fails with %q", why)
	}
	for _, s := range j.await(t, 2) {
		if s.n == 1 {
			t.Error("it was started, without the tokens of the inner worker")
		}
		f.ended(t, s.id)
	}
}
