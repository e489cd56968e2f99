package scheduler_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// limited makes the workers of a journal take what requests ask for.
func (j *journal) limited(requests func(n int) []ratelimit.Request) {
	j.wrap = func(w river.Worker[sendArgs]) river.Worker[sendArgs] {
		return scheduler.Limit(w, func(job *river.Job[sendArgs]) []ratelimit.Request { return requests(job.Args.N) })
	}
}

func (f *fixture) enqueue(t testing.TB, args ...int) {
	t.Helper()
	var params []river.InsertManyParams
	for _, n := range args {
		params = append(params, river.InsertManyParams{Args: sendArgs{n}})
	}
	if _, err := f.client.InsertMany(t.Context(), params); err != nil {
		t.Fatal(err)
	}
}

func upTo(n int) []int {
	var all []int
	for i := range n {
		all = append(all, i)
	}
	return all
}

// Never more than the capacity and what has flowed in, whichever clients start the jobs; each job
// starts once, is woken once at the most, and has used no attempt before.
func TestALimitedWorkerKeepsItsLimit(t *testing.T) {
	t.Parallel()
	for name, clients := range map[string]int{"OneClient": 1, "ThreeClients": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setUp(t, scheduler.Config{})
			sched := scheduler.New(f.limiter, scheduler.Config{})
			limit := ratelimit.MustDefine("limited",
				ratelimit.TokenBucket{Rate: 20, Period: time.Second, Capacity: ratelimit.Tokens(5)})
			j := newJournal(f)
			j.limited(func(int) []ratelimit.Request { return []ratelimit.Request{limit.Global()} })
			const n = 60
			f.enqueue(t, upTo(n)...)
			noTokens := newListener("could not take its tokens") // within two seconds
			for range clients {
				j.client(t, sched, func(c *river.Config) { c.Logger = slog.New(noTokens) })
			}
			starts := j.await(t, n)
			for _, s := range starts {
				f.ended(t, s.id)
			}
			anew := len(f.paidAnew(t)) > 0 // ahead of those that wait, which are put back once more
			var places []time.Time
			for _, s := range starts {
				more := woken(t, f.job(t, s.id))
				if more > 1 && !anew && !noTokens.hasHeard() || s.attempt != 1 {
					t.Errorf("job %d was put back %d times, and started at attempt %d", s.n, more, s.attempt)
				}
				if !anew { // by what was taken first, those that wait keep their places
					places = append(places, s.place())
				}
				if s.takes[0].Ahead() && s.at.Before(s.place()) {
					t.Errorf("job %d started %v before its tokens were there", s.n, s.place().Sub(s.at))
				}
			}
			slices.SortFunc(places, time.Time.Compare)
			for i, from := range places {
				for k, to := range places[i:] {
					if most := 5 + 20*to.Sub(from).Seconds() + 0.001; float64(k+1) > most {
						t.Fatalf("%d have their tokens within %v", k+1, to.Sub(from))
					}
				}
			}
		})
	}
}

// Each key's jobs have places of their own, and start in the order of these; no key waits for
// another. What is fetched together keeps its order unless the machine is so busy that one job
// comes to its worker long after the others.
func TestALimitedWorkerKeepsOrderForEachKey(t *testing.T) {
	t.Parallel()
	untilInTime(t, func(t *testing.T) bool {
		f := setUp(t, scheduler.Config{})
		sched := scheduler.New(f.limiter, scheduler.Config{})
		limit := ratelimit.MustDefine("order",
			ratelimit.TokenBucket{Rate: 3, Period: time.Second, Capacity: ratelimit.Tokens(1)})
		j := newJournal(f)
		j.limited(func(n int) []ratelimit.Request {
			return []ratelimit.Request{limit.For("customer " + strconv.Itoa(n%2))}
		})
		f.enqueue(t, upTo(12)...)
		j.client(t, sched)
		var places [2][]time.Time
		passed := 0
		next := []int{0, 1}
		for _, s := range j.await(t, 12) {
			if s.n != next[s.n%2] {
				passed++
			}
			next[s.n%2] = s.n + 2
			if s.takes[0].Ahead() { // its row may be due a little later: River adds a snooze to its own clock
				places[s.n%2] = append(places[s.n%2], s.place())
			}
		}
		for n := range 12 {
			f.ended(t, int64(n+1))
		}
		if len(f.paidAnew(t)) > 0 { // ahead of those that wait, who keep their places
			return false
		}
		for key, of := range places {
			slices.SortFunc(of, time.Time.Compare)
			for i := range len(of) - 1 {
				if d := of[i+1].Sub(of[i]); d < 333*time.Millisecond {
					t.Errorf("the places of two jobs of key %d are %v apart", key, d)
				}
			}
		}
		t.Logf("%d jobs out of order", passed)
		return min(len(places[0]), len(places[1])) >= 4 // had to wait, unless the machine is slow
	})
}

func TestALimitedWorkerTakesAllOrNone(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	sched := scheduler.New(f.limiter, scheduler.Config{})
	slow := ratelimit.MustDefine("slow",
		ratelimit.TokenBucket{Rate: 4, Period: time.Second, Capacity: ratelimit.Tokens(1)})
	much := ratelimit.MustDefine("much", ratelimit.TokenBucket{Rate: 100, Period: never})
	j := newJournal(f)
	j.limited(func(int) []ratelimit.Request { return []ratelimit.Request{slow.Global(), much.For("k").Count(2)} })
	f.enqueue(t, upTo(8)...)
	j.client(t, sched)
	var places []time.Time
	for _, s := range j.await(t, 8) {
		slow, _ := s.takes[1].RunAt(ratelimit.State{}) // takes are in the order of their limits' names
		places = append(places, slow)
	}
	slices.SortFunc(places, time.Time.Compare)
	if took := places[7].Sub(places[0]); took < 1750*time.Millisecond-time.Microsecond {
		t.Errorf("8 jobs at 4 a second have their tokens within %v", took)
	}
	f.want(t, much.For("k"), 84, -1)
}

// Each attempt is a call of its own.
func TestARetryPaysAgain(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	sched := scheduler.New(f.limiter, scheduler.Config{})
	limit := ratelimit.MustDefine("retry", ratelimit.TokenBucket{Rate: 10, Period: never})
	j := newJournal(f)
	j.limited(func(int) []ratelimit.Request { return []ratelimit.Request{limit.Global()} })
	j.work = func(_ context.Context, job *river.Job[sendArgs]) error {
		if job.Attempt < 3 {
			return errors.New("no")
		}
		return nil
	}
	f.enqueue(t, 1)
	j.client(t, sched)
	j.await(t, 3)
	f.want(t, limit.Global(), 7, -1)
}

// A retry that has to wait has paid when its tokens exist, also if the attempt before had to wait.
func TestARetryThatHasToWaitPaysOnce(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	sched := scheduler.New(f.limiter, scheduler.Config{Jitter: -1})
	limit := ratelimit.MustDefine("waits", ratelimit.TokenBucket{Rate: 2, Period: time.Second, Capacity: ratelimit.Tokens(1)})
	others := func(n float64) {
		if _, err := f.limiter.Autocommit(f.pool).RateLimit(context.Background(), limit.Global().Count(n).OrReserve()); err != nil {
			t.Error(err)
		}
	}
	j := newJournal(f)
	j.limited(func(int) []ratelimit.Request { return []ratelimit.Request{limit.Global()} })
	j.work = func(_ context.Context, job *river.Job[sendArgs]) error {
		if job.Attempt == 1 {
			others(20) // for longer than River takes to try again
			return errors.New("no")
		}
		return nil
	}
	others(2)
	f.enqueue(t, 1)
	noTokens := newListener("could not take its tokens")
	j.client(t, sched, func(c *river.Config) { c.Logger = slog.New(noTokens) })
	starts := j.await(t, 2)
	var snoozes int
	eventually(t, "the job is completed", func() bool {
		job := f.job(t, starts[0].id)
		var has struct{ Snoozes int }
		if err := json.Unmarshal(job.Metadata, &has); err != nil {
			t.Fatal(err)
		}
		snoozes = has.Snoozes
		return job.State == rivertype.JobStateCompleted
	})
	if snoozes > 2 && len(f.paidAnew(t)) == 0 && !noTokens.hasHeard() {
		t.Errorf("put off %d times, want once before each attempt: %v", snoozes, starts)
	}
}

// Where the line is full, jobs wait for room in it.
func TestALimitedWorkerWhoseLineIsFull(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	sched := scheduler.New(f.limiter, scheduler.Config{})
	limit := ratelimit.MustDefine("full", ratelimit.TokenBucket{Rate: 5, Period: time.Second,
		Capacity: ratelimit.Tokens(1), MaxReserved: ratelimit.Tokens(2)})
	j := newJournal(f)
	j.limited(func(int) []ratelimit.Request { return []ratelimit.Request{limit.Global()} })
	f.enqueue(t, upTo(10)...)
	j.client(t, sched)
	for _, s := range j.await(t, 10) {
		if s.attempt != 1 {
			t.Errorf("job %d started at attempt %d", s.n, s.attempt)
		}
	}
}

// A job that InsertTx has reserved, and that waits for room in the line of its worker's limit, is
// not brought forward by rounds: its own tokens came long before.
func TestAReservedJobWaitsForRoomInTheLine(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	reserved := ratelimit.MustDefine("reservedForRoom",
		ratelimit.TokenBucket{Rate: 10, Period: time.Second, Capacity: ratelimit.Tokens(0)})
	full := ratelimit.MustDefine("noRoom", ratelimit.TokenBucket{Rate: 1, Period: time.Hour,
		Capacity: ratelimit.Tokens(1), MaxReserved: ratelimit.Tokens(0)})
	j.limited(func(int) []ratelimit.Request { return []ratelimit.Request{full.Global()} })
	jobs := sched.Jobs(j.client(t, sched))
	f.insertBy(t, jobs, sendArgs{0}, reserved.Global().OrReserve())
	j.await(t, 1)
	id := f.insertBy(t, jobs, sendArgs{1}, reserved.Global().OrReserve()).Job.Job.ID
	var before int
	eventually(t, "it is put off until there is room", func() bool {
		job := f.job(t, id)
		before = woken(t, job)
		return job.State == rivertype.JobStateScheduled && time.Until(job.ScheduledAt) > 30*time.Minute
	})
	f.seen(t)
	if job := f.job(t, id); woken(t, job) != before || time.Until(job.ScheduledAt) < 30*time.Minute {
		t.Errorf("it was put off %d times, and then %d times; it is due at %v",
			before, woken(t, job)-before, job.ScheduledAt)
	}
}

func TestALimitedWorkerSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	limit := ratelimit.MustDefine("missing", ratelimit.TokenBucket{Rate: 5, Period: time.Second})
	for name, c := range map[string]struct {
		sched   *scheduler.Scheduler
		request ratelimit.Request
		want    string
	}{
		"NotConfigured": {nil, limit.Global(), "Scheduler.Configure"},
		"Invalid":       {scheduler.New(f.limiter, scheduler.Config{}), limit.Global().Count(-1), "count"},
	} {
		t.Run(name, func(t *testing.T) {
			f := setUp(t, scheduler.Config{})
			j := newJournal(f)
			j.limited(func(int) []ratelimit.Request { return []ratelimit.Request{c.request} })
			f.enqueue(t, 1)
			j.client(t, c.sched)
			var job *rivertype.JobRow
			eventually(t, "the attempt has failed", func() bool { job = f.job(t, 1); return len(job.Errors) > 0 })
			if !strings.Contains(job.Errors[0].Error, c.want) {
				t.Errorf("%q does not say %q", job.Errors[0].Error, c.want)
			}
		})
	}
}

func TestNoRequestsNoLimit(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	j := newJournal(f)
	j.limited(func(int) []ratelimit.Request { return nil })
	f.enqueue(t, upTo(10)...)
	j.client(t, scheduler.New(f.limiter, scheduler.Config{}))
	j.await(t, 10)
}
