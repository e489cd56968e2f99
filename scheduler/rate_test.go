package scheduler_test

import (
	"slices"
	"testing"
	"time"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// A release that lowers a rate counts for the jobs that wait, too: no more of them start than flow
// by the old rule until a second after its definition, and by the new one from then on, and each is
// spaced anew once. Starts are counted by where the jobs stand in line: on a busy machine a job may
// have come to its worker before it was moved, and wait there. There it may also be counted to the
// time after that second that belongs before it, by as much as the answer of the database took.
func TestALoweredRateCountsForWhatWaits(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	old := ratelimit.TokenBucket{Rate: 20, Period: time.Second, Capacity: ratelimit.Tokens(1)}
	lowered := ratelimit.TokenBucket{Rate: 4, Period: time.Second, Capacity: ratelimit.Tokens(1)}
	limit := ratelimit.MustDefine("lowered", old)
	jobs := sched.Jobs(j.client(t, sched))
	const n = 300 // fifteen seconds by the old rule
	params := make([]scheduler.InsertManyParams, n)
	for i := range params {
		params[i] = scheduler.InsertManyParams{Args: sendArgs{i},
			Requests: []ratelimit.Request{limit.For("k").OrReserve()}}
	}
	if in, err := jobs.InsertMany(t.Context(), f.pool, params); err != nil || !in.OK {
		t.Fatal(in, err)
	}
	before := f.now(t)
	ratelimit.MustDefine("lowered", lowered) // the new release
	from := f.now(t).Add(time.Second)
	var starts []start
	eventually(t, "jobs start by the new rule", func() bool {
		starts = slices.DeleteFunc(slices.Clone(j.await(t, 0)), func(s start) bool { return !s.place().After(before) })
		slices.SortFunc(starts, func(a, b start) int { return a.place().Compare(b.place()) })
		return len(starts) >= 30 && starts[len(starts)-30].place().After(from)
	})
	for i, s := range starts {
		if early := s.place().Sub(s.at); early > time.Millisecond {
			t.Errorf("job %d started %v too early", s.n, early)
		}
		d := s.place().Sub(before)
		first := min(d, from.Sub(before)) // by the old rule
		if most := 1 + 20*first.Seconds() + 4*(d-first).Seconds(); float64(i+1) > most+1 {
			t.Fatalf("%d starts within %v", i+1, d)
		}
	}
	anew := len(f.paidAnew(t)) > 0 // they go ahead of the others, which are put off once more
	for _, s := range starts {
		if w := woken(t, f.job(t, s.id)); w > 1 && !anew {
			t.Errorf("job %d was put off %d times", s.n, w)
		}
	}
}

// A rule of a request's own, a customer's plan say, stays what it was.
func TestAnotherDefinitionLeavesPlansAlone(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	plan := ratelimit.TokenBucket{Rate: 10, Period: time.Second, Capacity: ratelimit.Tokens(1)}
	limit := ratelimit.MustDefine("plans", plan)
	jobs := sched.Jobs(j.client(t, sched))
	var due []time.Time
	for i := range 30 {
		in := f.insertBy(t, jobs, sendArgs{i}, limit.For("k").Rule(plan).OrReserve())
		due = append(due, in.Job.Job.ScheduledAt)
	}
	ratelimit.MustDefine("plans", ratelimit.TokenBucket{Rate: 1, Period: time.Hour})
	starts := j.await(t, 30)
	anew := len(f.paidAnew(t)) > 0 // they go ahead of the others
	for _, s := range starts {
		if !s.due.Equal(due[s.n]) && !anew {
			t.Errorf("job %d was moved by %v", s.n, s.due.Sub(due[s.n]))
		}
	}
}
