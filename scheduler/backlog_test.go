package scheduler_test

import (
	"context"
	"log/slog"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// One customer's backlog does not stand in front of another's jobs, and costs little while it
// waits: with reservations and, by MaxReserved, without.
func TestABacklogLeavesTheJobsOfOthersAlone(t *testing.T) {
	t.Parallel()
	for name, rule := range map[string]ratelimit.TokenBucket{
		"Unbounded":   {Rate: 10, Period: time.Minute},
		"MaxReserved": {Rate: 10, Period: time.Minute, MaxReserved: ratelimit.Tokens(5)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			untilInTime(t, func(t *testing.T) bool {
				f, sched, j := exact(t)
				const backlog, modest = 2000, 10
				limit := ratelimit.MustDefine("customer"+name, rule)
				customer := func(n int) string {
					if n < 0 {
						return "B"
					}
					return "A"
				}
				j.limited(func(n int) []ratelimit.Request { return []ratelimit.Request{limit.For(customer(n))} })
				f.enqueue(t, upTo(backlog)...)
				for i := range modest {
					f.enqueue(t, -1-i)
				}
				f.noteVersions(t)
				j.client(t, sched, func(c *river.Config) {
					c.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 10}}
				})
				mine := func() (n int) {
					for _, s := range j.await(t, 0) {
						if s.n < 0 {
							n++
						}
					}
					return n
				}
				eventually(t, "the modest customer's jobs have started", func() bool { return mine() == modest })
				eventually(t, "the backlog is out of the way", func() bool {
					var n int
					if err := f.pool.QueryRow(t.Context(), `SELECT count(*) FROM river_job WHERE state = 'available' AND scheduled_at <= now()`).Scan(&n); err != nil {
						t.Fatal(err)
					}
					return n == 0
				})
				for _, s := range j.await(t, 0) {
					if s.attempt != 1 {
						t.Errorf("job %d started at attempt %d", s.n, s.attempt)
					}
				}
				// Each job of the backlog was moved once; those that a worker had in hand meanwhile were
				// fetched and put off: not many, unless the machine stalls before the others are moved.
				n := 0
				for _, of := range f.versions(t) {
					n += len(of)
				}
				t.Logf("%d row versions for a backlog of %d", n, backlog)
				var first, last time.Time
				if err := f.pool.QueryRow(t.Context(), `SELECT min(scheduled_at), max(scheduled_at) FROM river_job WHERE state IN ('available', 'scheduled')`).Scan(&first, &last); err != nil {
					t.Fatal(err)
				}
				d := last.Sub(first)
				if d > backlog*6*time.Second {
					t.Errorf("the backlog is spread over %v", d)
				}
				t.Logf("it is spread over %v", d)
				return n <= backlog*3/2 && d >= backlog*3/4*6*time.Second
			})
		})
	}
}

// Its jobs start at the rate, each once, and whether or not they could reserve. They cost at most
// two row versions a job more than scheduled jobs of River's, which cost three. Those that could not
// reserve cost two more for each token that they could not have: others took it, or this machine was
// late and it overflowed.
func TestABacklogStartsAtItsRate(t *testing.T) {
	t.Parallel()
	const workers = 10
	for name, c := range map[string]struct {
		rate, capacity float64
		maxReserved    *float64
		n, others      int // jobs, and tokens that somebody else takes meanwhile
	}{
		"Unbounded":        {20, 5, nil, 100, 0},
		"MaxReserved":      {20, 5, ratelimit.Tokens(10), 100, 0},
		"OthersTake":       {20, 5, nil, 100, 10},
		"OthersTakeBeyond": {20, 5, ratelimit.Tokens(10), 100, 10},
		"OthersTakeOfFew":  {2, 2, ratelimit.Tokens(2), 24, 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, sched, j := exact(t)
			n := c.n
			limit := ratelimit.MustDefine("rated"+name, ratelimit.TokenBucket{Rate: c.rate, Period: time.Second,
				Capacity: &c.capacity, MaxReserved: c.maxReserved})
			j.limited(func(int) []ratelimit.Request { return []ratelimit.Request{limit.Global()} })
			f.enqueue(t, upTo(n)...)
			f.noteVersions(t)
			before := time.Now()
			noTokens := newListener("could not take its tokens") // within two seconds: that puts it off, too
			j.client(t, sched, func(c *river.Config) {
				c.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: workers}}
				c.Logger = slog.New(noTokens)
			})
			j.await(t, 1)
			for a, taken := f.limiter.Autocommit(f.pool), 0; taken < c.others; time.Sleep(time.Millisecond) {
				res, err := a.RateLimit(t.Context(), limit.Global().OrReserve())
				if err != nil {
					t.Fatal(err)
				}
				if res.OK {
					taken++
				}
			}
			starts := j.await(t, n)
			slices.SortFunc(starts, func(a, b start) int { return a.at.Compare(b.at) })
			for i, s := range starts { // counted from the beginning: a machine that stalls may start late jobs together
				if most := c.capacity + c.rate*s.at.Sub(before).Seconds(); float64(i+1) > most+1e-3 {
					t.Fatalf("%d starts within %v", i+1, s.at.Sub(before))
				}
			}
			for _, s := range starts {
				eventually(t, "it is completed", func() bool {
					return f.job(t, s.id).State == rivertype.JobStateCompleted
				})
			}
			lost := max(0, c.capacity+c.rate*starts[n-1].at.Sub(starts[0].place()).Seconds()-float64(n))
			all, putOffs, most := 0, 0, 0
			for id, of := range f.versions(t) {
				all, putOffs, most = all+len(of), putOffs+woken(t, f.job(t, id)), max(most, len(of))
			}
			bound := 5 * n
			if c.maxReserved != nil { // else all have places, and miss none
				bound += int(2*float64(n)*lost) + 4*workers // which have the first in hand
			}
			if len(f.paidAnew(t)) > 0 || noTokens.hasHeard() {
				bound += 2 * putOffs
			}
			if all > bound {
				t.Errorf("%d row versions of %d jobs that missed %.1f tokens, want at most %d", all, n, lost, bound)
			}
			t.Logf("%d row versions of %d jobs that missed %.1f tokens, %d of one", all, n, lost, most)
		})
	}
}

// Jobs that take from several limits are placed together if they take from the same ones.
func TestABacklogOfJobsWithSeveralLimits(t *testing.T) {
	t.Parallel()
	untilInTime(t, func(t *testing.T) bool {
		f, sched, j := exact(t)
		const n = 60
		each := ratelimit.MustDefine("each",
			ratelimit.TokenBucket{Rate: 20, Period: time.Second, Capacity: ratelimit.Tokens(1)})
		all := ratelimit.MustDefine("all",
			ratelimit.TokenBucket{Rate: 1, Period: never, Capacity: ratelimit.Tokens(1000)})
		j.limited(func(n int) []ratelimit.Request {
			return []ratelimit.Request{each.For(strconv.Itoa(n % 2)), all.Global().Count(2)}
		})
		f.enqueue(t, upTo(n)...)
		noTokens := newListener("could not take its tokens") // within two seconds: it may have, at COMMIT
		j.client(t, sched, func(c *river.Config) { c.Logger = slog.New(noTokens) })
		for _, s := range j.await(t, n) {
			f.ended(t, s.id)
		}
		if noTokens.hasHeard() {
			return false
		}
		f.wantLeft(t, all.Global(), 1000-2*n) // once for each, also for one that was late
		return true
	})
}

// A backlog that is moved along leaves jobs that InsertTx or QueueTx has inserted to their own
// starts: there one that is late pays anew, and one that was retried by hand goes back in line.
func TestABacklogLeavesReservedAndQueuedJobsAlone(t *testing.T) {
	t.Parallel()
	line := store(t, 1)
	f, sched, j := queuing(t, scheduler.Line{Limit: line})
	reserved := ratelimit.MustDefine("besideABacklog", ratelimit.TokenBucket{Rate: 1, Period: time.Second})
	out := ratelimit.MustDefine("outForAnHour",
		ratelimit.TokenBucket{Rate: 1, Period: time.Hour, Capacity: ratelimit.Tokens(1)})
	j.limited(func(int) []ratelimit.Request { return []ratelimit.Request{out.Global()} })
	if _, err := f.limiter.Autocommit(f.pool).RateLimit(t.Context(), line.Global().Count(50).OrReserve()); err != nil {
		t.Fatal(err)
	}
	f.enqueue(t, 0, 1, 2, 3, 4)
	jobs := sched.Jobs(f.client)
	f.insertBy(t, jobs, sendArgs{100}, reserved.For("k"))
	queued := f.queue(t, queueing(101, line.Global()))[0].Job.ID
	if _, err := f.client.JobRetry(t.Context(), queued); err != nil {
		t.Fatal(err)
	}
	j.client(t, sched, oneWorker)
	eventually(t, "one has started, and all others wait", func() bool {
		return f.count(t, `state = 'scheduled'`) == 6
	})
	if n := f.count(t, `args->>'n' IN ('100', '101') AND metadata->>'snoozes' = '1'`); n != 2 {
		t.Errorf("%d of the two jobs were put off at their own starts", n)
	}
	if at := f.job(t, queued).ScheduledAt; at.Year() < 2199 || f.inLine(t) != 1 {
		t.Errorf("the queued job is due at %v, with %d rows in line", at, f.inLine(t))
	}
}

// What the requests function cannot read is left to the worker, which then fails.
func TestABacklogWithBadArguments(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	limit := ratelimit.MustDefine("bad",
		ratelimit.TokenBucket{Rate: 5, Period: time.Second, Capacity: ratelimit.Tokens(1)})
	j.limited(func(int) []ratelimit.Request { return []ratelimit.Request{limit.Global()} })
	f.enqueue(t, upTo(20)...)
	if _, err := f.pool.Exec(context.Background(), `UPDATE river_job SET args = '"text"' WHERE id = 15`); err != nil {
		t.Fatal(err)
	}
	j.client(t, sched, func(c *river.Config) {
		c.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 3}}
	})
	j.await(t, 19)
	eventually(t, "its attempt has failed", func() bool { return len(f.job(t, 15).Errors) > 0 })
}
