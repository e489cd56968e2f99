package scheduler_test

import (
	"context"
	"errors"
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

func (f *fixture) enqueue(t *testing.T, args ...int) {
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

// Never more than the capacity and what has flowed in, whichever clients start the jobs; each job starts once, is woken once
// at the most, and has used no attempt before.
func TestALimitedWorkerKeepsItsLimit(t *testing.T) {
	t.Parallel()
	for name, clients := range map[string]int{"OneClient": 1, "ThreeClients": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setUp(t, scheduler.Config{})
			sched := scheduler.New(f.limiter, scheduler.Config{})
			limit := ratelimit.MustDefine("limited", ratelimit.TokenBucket{Rate: 20, Period: time.Second, Capacity: ratelimit.Tokens(5)})
			j := newJournal(f)
			j.limited(func(int) []ratelimit.Request { return []ratelimit.Request{limit.Global()} })
			const n = 60
			f.enqueue(t, upTo(n)...)
			for range clients {
				j.client(t, sched)
			}
			starts := slices.Clone(j.await(t, n))
			slices.SortFunc(starts, func(a, b start) int { return a.at.Compare(b.at) })
			slack := latest(starts)
			for i := range starts {
				for k := i + 1; k < len(starts); k++ {
					d := starts[k].at.Sub(starts[i].at) + slack
					if got, most := float64(k-i+1), 5+20*d.Seconds(); got > most+1 {
						t.Fatalf("%v starts within %v", got, d)
					}
				}
				if starts[i].attempt != 1 {
					t.Errorf("job %d started at attempt %d", starts[i].n, starts[i].attempt)
				}
			}
			for _, s := range starts {
				eventually(t, "the job is completed", func() bool { return f.job(t, s.id).State == rivertype.JobStateCompleted })
				if n := woken(t, f.job(t, s.id)); n > 1 {
					t.Errorf("job %d was put back %d times", s.n, n)
				}
			}
		})
	}
}

// Each key's jobs have places of their own, and start in the order of these; no key waits for another. What is fetched together
// keeps its order unless the machine is so busy that one job comes to its worker long after the others.
func TestALimitedWorkerKeepsOrderForEachKey(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	sched := scheduler.New(f.limiter, scheduler.Config{})
	limit := ratelimit.MustDefine("order", ratelimit.TokenBucket{Rate: 3, Period: time.Second, Capacity: ratelimit.Tokens(1)})
	j := newJournal(f)
	j.limited(func(n int) []ratelimit.Request {
		return []ratelimit.Request{limit.For("customer " + strconv.Itoa(n%2))}
	})
	f.enqueue(t, upTo(12)...)
	j.client(t, sched)
	var dues [2][]time.Time
	passed := 0
	next := []int{0, 1}
	for _, s := range j.await(t, 12) {
		if s.n != next[s.n%2] {
			passed++
		}
		next[s.n%2] = s.n + 2
		if s.woken { // its row may be later than its place, if the put-off was written late
			dues[s.n%2] = append(dues[s.n%2], f.place(t, s.id))
		}
	}
	for key, of := range dues {
		slices.SortFunc(of, time.Time.Compare)
		for i := range len(of) - 1 {
			if d := of[i+1].Sub(of[i]); d < 333*time.Millisecond {
				t.Errorf("two jobs of key %d were due within %v", key, d)
			}
		}
		if len(of) < 4 {
			t.Errorf("%d jobs of key %d had to wait", len(of), key)
		}
	}
	t.Logf("%d jobs out of order", passed)
}

// place is when a job is due by its ticket.
func (f *fixture) place(t testing.TB, id int64) time.Time {
	t.Helper()
	var due int64
	err := f.pool.QueryRow(t.Context(), `SELECT ((metadata->'weir'->>'more')::json->>'due')::bigint FROM river_job
		WHERE id = $1`, id).Scan(&due)
	if err != nil {
		t.Fatal(err)
	}
	return time.UnixMicro(due)
}

func TestALimitedWorkerTakesAllOrNone(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	sched := scheduler.New(f.limiter, scheduler.Config{})
	slow := ratelimit.MustDefine("slow", ratelimit.TokenBucket{Rate: 4, Period: time.Second, Capacity: ratelimit.Tokens(1)})
	much := ratelimit.MustDefine("much", ratelimit.TokenBucket{Rate: 100, Period: never})
	j := newJournal(f)
	j.limited(func(int) []ratelimit.Request { return []ratelimit.Request{slow.Global(), much.For("k").Count(2)} })
	f.enqueue(t, upTo(8)...)
	j.client(t, sched)
	starts := j.await(t, 8)
	if took := starts[7].at.Sub(starts[0].at); took < 1500*time.Millisecond {
		t.Errorf("8 jobs at 4 a second took %v", took)
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

// Where the line is full, jobs wait for room in it.
func TestALimitedWorkerWhoseLineIsFull(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	sched := scheduler.New(f.limiter, scheduler.Config{})
	limit := ratelimit.MustDefine("full", ratelimit.TokenBucket{Rate: 5, Period: time.Second, Capacity: ratelimit.Tokens(1), MaxReserved: ratelimit.Tokens(2)})
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
