package scheduler_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// shared makes a limit of a test's own that is shared fairly: of rate tokens a second, with a
// bucket of as many as capacity.
func shared(t testing.TB, rate, capacity float64) ratelimit.Limit {
	t.Helper()
	return ratelimit.MustDefine(strings.ReplaceAll(t.Name(), "/", " "), ratelimit.TokenBucket{Rate: rate,
		Period: time.Second, Capacity: &capacity, MaxReserved: ratelimit.Tokens(1e6)})
}

// queuing is a fixture with a scheduler of lines, and a journal.
func queuing(t testing.TB, lines ...scheduler.Line) (*fixture, *scheduler.Scheduler, *journal) {
	t.Helper()
	f := setUp(t, scheduler.Config{})
	sched := scheduler.New(f.limiter, scheduler.Config{Jitter: -1, Lines: lines})
	f.jobs = sched.Jobs(f.client)
	return f, sched, newJournal(f)
}

// queueing is a job of tenant a to be queued.
func queueing(n int, requests ...ratelimit.Request) scheduler.QueueManyParams {
	return scheduler.QueueManyParams{Args: sendArgs{n}, Tenant: scheduler.Tenant{Key: "a"}, Requests: requests}
}

func (f *fixture) queue(t testing.TB, params ...scheduler.QueueManyParams) []*rivertype.JobInsertResult {
	t.Helper()
	var jobs []*rivertype.JobInsertResult
	f.inTx(t, func(ctx context.Context, tx pgx.Tx) (err error) {
		jobs, err = f.jobs.QueueManyTx(ctx, tx, params)
		return err
	})
	return jobs
}

// inLine is how many jobs wait for their turns.
func (f *fixture) inLine(t testing.TB) (n int) {
	t.Helper()
	if err := f.pool.QueryRow(t.Context(), `SELECT count(*) FROM weir_turn WHERE priority > 0`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestAQueuedJobTakesNothingAndHasNoTime(t *testing.T) {
	t.Parallel()
	limit := shared(t, 10, 10)
	f, _, _ := queuing(t, scheduler.Line{Limit: limit})
	jobs := f.queue(t, queueing(1, limit.For("k").Count(4)))
	if job := jobs[0].Job; job.State != rivertype.JobStateScheduled || job.ScheduledAt.Year() != 2200 {
		t.Errorf("the job is %s for %v, want it scheduled for 2200", job.State, job.ScheduledAt)
	}
	f.want(t, limit.For("k"), 10, 1)
	if n := f.inLine(t); n != 1 {
		t.Errorf("%d jobs in line, want 1", n)
	}
	roll := errors.New("roll back")
	err := f.limiter.InTx(t.Context(), f.pool, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := f.jobs.QueueTx(ctx, tx, sendArgs{2}, nil, scheduler.Tenant{Key: "a"}, limit.For("k")); err != nil {
			return err
		}
		return roll
	})
	if !errors.Is(err, roll) || f.inLine(t) != 1 {
		t.Errorf("after a transaction that was rolled back (%v), %d jobs are in line, want 1", err, f.inLine(t))
	}
}

func TestAQueuedJobThatIsADuplicateIsNotQueuedAgain(t *testing.T) {
	t.Parallel()
	limit := shared(t, 10, 10)
	s := steppedLines(t, scheduler.Line{Limit: limit})
	job := queueing(1, limit.Global())
	job.InsertOpts = &river.InsertOpts{UniqueOpts: river.UniqueOpts{ByArgs: true}}
	first := s.queue(t, job)[0]
	for _, what := range []string{"waits for its turn", "has had its turn"} {
		want := 1
		if what == "has had its turn" {
			want = 0
			s.round()
		}
		second := s.queue(t, job)[0]
		if !second.UniqueSkippedAsDuplicate || second.Job.ID != first.Job.ID || s.inLine(t) > want {
			t.Errorf("of one that %s: got %+v after %+v, and %d in line; want the job that exists, and %d",
				what, second, first, s.inLine(t), want)
		}
	}
}

func TestWhatCannotBeQueuedIsRefused(t *testing.T) {
	t.Parallel()
	limit, other := shared(t, 10, 10),
		ratelimit.MustDefine("refused other", ratelimit.TokenBucket{Rate: 5, Period: time.Second})
	second := ratelimit.MustDefine("refused second",
		ratelimit.TokenBucket{Rate: 5, Period: time.Second, MaxReserved: ratelimit.Tokens(0)})
	f, _, _ := queuing(t, scheduler.Line{Limit: limit}, scheduler.Line{Limit: second})
	a := scheduler.Tenant{Key: "a"}
	for name, c := range map[string]struct {
		tenant   scheduler.Tenant
		requests []ratelimit.Request
		want     string
	}{
		"NoTenant":    {scheduler.Tenant{}, []ratelimit.Request{limit.Global()}, "want 1 to 1024 bytes"},
		"NUL":         {scheduler.Tenant{Key: "a\x00"}, []ratelimit.Request{limit.Global()}, "want 1 to 1024 bytes"},
		"Weight":      {scheduler.Tenant{Key: "a", Weight: -1}, []ratelimit.Request{limit.Global()}, "a Weight of -1"},
		"NaN":         {scheduler.Tenant{Key: "a", Weight: math.NaN()}, []ratelimit.Request{limit.Global()}, "a Weight of NaN"},
		"NoLine":      {a, []ratelimit.Request{other.Global()}, "no limit of Config.Lines"},
		"Nothing":     {a, nil, "no limit of Config.Lines"},
		"TwoLines":    {a, []ratelimit.Request{limit.Global(), second.Global()}, "want one limit of Config.Lines"},
		"TwoKeys":     {a, []ratelimit.Request{limit.For("x"), limit.For("y")}, "want one limit of Config.Lines"},
		"Reserve":     {a, []ratelimit.Request{limit.Global().OrReserve()}, "want it without OrReserve"},
		"OtherWithin": {a, []ratelimit.Request{limit.Global(), other.For("a").Within(time.Second)}, "want it without OrReserve"},
		"Leave":       {a, []ratelimit.Request{limit.Global().Leave(2)}, "no option but its count"},
		"Rule": {a, []ratelimit.Request{
			limit.Global().Rule(ratelimit.TokenBucket{Rate: 1, Period: time.Hour}),
		}, "no option but its count"},
		"Zero":     {a, []ratelimit.Request{limit.Global().Count(0)}, "want a count above 0"},
		"TooMany":  {a, []ratelimit.Request{second.Global().Count(6)}, "at most 5"},
		"OtherBad": {a, []ratelimit.Request{limit.Global(), other.For("a").Count(-1)}, "0 or more tokens"},
	} {
		err := f.limiter.InTx(t.Context(), f.pool, func(ctx context.Context, tx pgx.Tx) error {
			_, err := f.jobs.QueueTx(ctx, tx, sendArgs{1}, nil, c.tenant, c.requests...)
			return err
		})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error that says %q", name, err, c.want)
		}
	}
	err := f.limiter.InTx(t.Context(), f.pool, func(ctx context.Context, tx pgx.Tx) error {
		opts := &river.InsertOpts{UniqueOpts: river.UniqueOpts{ByPeriod: time.Hour}}
		_, err := f.jobs.QueueTx(ctx, tx, sendArgs{1}, opts, a, limit.Global())
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "ByPeriod") {
		t.Errorf("ByPeriod: %v, want an error that says so", err)
	}
	f.want(t, limit.Global(), 10, 0)
}

func TestLinesThatCannotBeFairAreRefused(t *testing.T) {
	t.Parallel()
	tokens := ratelimit.Tokens[float64]
	bucket := ratelimit.TokenBucket{Rate: 10, Period: time.Second, MaxReserved: tokens(10)}
	good := ratelimit.MustDefine("good line", bucket)
	for name, c := range map[string]struct {
		lines []scheduler.Line
		want  string
	}{
		"Zero":   {[]scheduler.Line{{}}, "the zero Limit"},
		"Twice":  {[]scheduler.Line{{Limit: good}, {Limit: good}}, "two lines of one limit"},
		"Shadow": {[]scheduler.Line{{Limit: ratelimit.MustDefine("bad line shadow", bucket, ratelimit.Shadow())}}, "a Shadow"},
		"MaxReserved": {[]scheduler.Line{{Limit: ratelimit.MustDefine("bad line", ratelimit.TokenBucket{Rate: 1, Period: time.Second})}},
			"no MaxReserved"},
		"Patience": {[]scheduler.Line{{Limit: good, Patience: -1}}, "a Patience of"},
		"Others":   {[]scheduler.Line{{Limit: good, Others: -1}}, "for Others"},
		"Window": {[]scheduler.Line{{Limit: ratelimit.MustDefine("bad line window",
			ratelimit.FixedWindow{Rate: 1, Period: time.Second, MaxReserved: tokens(1)}),
			Others: 1}}, "needs a TokenBucket"},
		"LeaveAlone": {[]scheduler.Line{{Limit: good, Leave: 1}}, "a Leave of 1"},
		"LeaveMuch":  {[]scheduler.Line{{Limit: good, Others: 1}}, "more than the capacity of 10"},
	} {
		f, sched, _ := queuing(t, c.lines...)
		err := f.limiter.InTx(t.Context(), f.pool, func(ctx context.Context, tx pgx.Tx) error {
			_, err := f.jobs.QueueTx(ctx, tx, sendArgs{1}, nil, scheduler.Tenant{Key: "a"}, good.Global())
			return err
		})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error that says %q", name, err, c.want)
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: Configure takes it", name)
				}
			}()
			sched.Configure(f.pool, &river.Config{})
		}()
	}
}

// A client without the configuration starts no queued job, however long it runs: River compares
// scheduled_at with its clock.
func TestAClientThatIsNotConfiguredStartsNoQueuedJob(t *testing.T) {
	t.Parallel()
	limit := shared(t, 10, 10)
	f, _, _ := queuing(t, scheduler.Line{Limit: limit})
	f.queue(t, queueing(1, limit.Global()))
	f.start(t)
	f.insert(t, sendArgs{2}, nil, limit.Global())
	if n := <-f.worked; n != 2 {
		t.Errorf("job %d has started, want 2: job 1 has not had its turn", n)
	}
	select {
	case n := <-f.worked:
		t.Errorf("job %d has started", n)
	case <-time.After(6 * time.Second): // longer than River's leader takes between two looks
	}
}

// Queued jobs start when it is their turn, with their tokens.
func TestQueuedJobsStart(t *testing.T) {
	t.Parallel()
	limit := shared(t, 20, 5)
	f, sched, j := queuing(t, scheduler.Line{Limit: limit})
	var params []scheduler.QueueManyParams
	for i := range 20 {
		params = append(params, queueing(i, limit.For("k")))
	}
	f.queue(t, params...)
	j.client(t, sched)
	starts := j.await(t, 20)
	var order []int
	slices.SortFunc(starts, func(a, b start) int { return a.place().Compare(b.place()) })
	for i, s := range starts {
		order = append(order, s.n)
		if len(s.takes) != 1 || s.takes[0].Limit != limit.Name() || s.takes[0].Count != 1 {
			t.Errorf("job %d has taken %+v, want 1 of %s", s.n, s.takes, limit.Name())
		} else if s.at.Before(s.place()) {
			t.Errorf("job %d started %v before its tokens existed", s.n, s.place().Sub(s.at))
		}
		if since := s.place().Sub(starts[0].place()); i >= 5 &&
			since < time.Duration(i-5)*50*time.Millisecond-time.Millisecond {
			t.Errorf("start %d has its token %v after the first, more than 20 a second and the 5 of the bucket",
				i, since)
		}
	}
	slices.Sort(order)
	for i, n := range order {
		if i != n {
			t.Fatalf("started: %v, want each once", order)
		}
	}
	eventually(t, "the line is empty", func() bool { return f.inLine(t) == 0 })
}
