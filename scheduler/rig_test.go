package scheduler_test

import (
	"context"
	"encoding/json"
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

// start is one time that a worker was called for a job, by the database's clock.
type start struct {
	id      int64
	n       int
	at      time.Time
	queue   string
	attempt int
	due     time.Time
	woken   bool // it was put off before, or moved
	takes   []ratelimit.Take
}

// place is when the job has its tokens: when it took them, if they were there.
func (s start) place() time.Time {
	runAt, _ := s.takes[0].RunAt(ratelimit.State{})
	return runAt
}

// journal is what the workers of a test did.
type journal struct {
	f      *fixture
	mu     sync.Mutex
	starts []start
	from   time.Time     // since when the last of its clients runs
	moved  chan struct{} // closed at the next start
	work   func(ctx context.Context, job *river.Job[sendArgs]) error
	wrap   func(river.Worker[sendArgs]) river.Worker[sendArgs]
}

func newJournal(f *fixture) *journal { return &journal{f: f, moved: make(chan struct{})} }

type logWorker struct {
	river.WorkerDefaults[sendArgs]
	j *journal
}

func (w *logWorker) NextRetry(*river.Job[sendArgs]) time.Time {
	return time.Now().Add(10 * time.Millisecond)
}

func (w *logWorker) Work(ctx context.Context, job *river.Job[sendArgs]) error {
	s := start{id: job.ID, n: job.Args.N, queue: job.Queue, attempt: job.Attempt,
		due: job.ScheduledAt, woken: job.ScheduledAt.Sub(job.CreatedAt) > 50*time.Millisecond}
	if r, ok := scheduler.ReservationOf(job.JobRow); ok {
		s.takes = r.Takes
	}
	if err := w.j.f.pool.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&s.at); err != nil {
		return err
	}
	w.j.mu.Lock()
	w.j.starts = append(w.j.starts, s)
	close(w.j.moved)
	w.j.moved = make(chan struct{})
	w.j.mu.Unlock()
	if w.j.work != nil {
		return w.j.work(ctx, job)
	}
	return nil
}

// await waits for n starts, and returns all that there are then.
func (l *journal) await(t testing.TB, n int) []start {
	t.Helper()
	timeout := time.After(patience)
	for {
		l.mu.Lock()
		starts, moved := l.starts[:len(l.starts):len(l.starts)], l.moved
		l.mu.Unlock()
		if len(starts) >= n {
			return starts
		}
		select {
		case <-moved:
		case <-timeout:
			t.Fatalf("%d of %d starts within %v", len(starts), n, patience)
		}
	}
}

// never checks that nothing starts for a while.
func (l *journal) never(t testing.TB, d time.Duration) {
	t.Helper()
	time.Sleep(d)
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.starts) > 0 {
		t.Fatalf("started: %+v", l.starts)
	}
}

// client starts a River client; with the scheduler's configuration or, for nil, without.
func (l *journal) client(t testing.TB, sched *scheduler.Scheduler,
	configure ...func(*river.Config)) *river.Client[pgx.Tx] {
	t.Helper()
	workers := river.NewWorkers()
	var w river.Worker[sendArgs] = &logWorker{j: l}
	if l.wrap != nil {
		w = l.wrap(w)
	}
	river.AddWorker(workers, w)
	cfg := &river.Config{Logger: quiet(), Workers: workers,
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 20}}}
	for _, c := range configure {
		c(cfg)
	}
	if sched != nil {
		cfg = sched.Configure(l.f.pool, cfg)
	}
	client, err := river.NewClient(riverpgxv5.New(l.f.pool), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Start(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, client) })
	l.mu.Lock()
	defer l.mu.Unlock()
	l.from = time.Now()
	return client
}

func stop(t testing.TB, client *river.Client[pgx.Tx]) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	if err := client.StopAndCancel(ctx); err != nil {
		t.Error(err)
	}
}

// exact is a fixture with a scheduler that adds no jitter, and a journal.
func exact(t testing.TB) (*fixture, *scheduler.Scheduler, *journal) {
	t.Helper()
	f := setUp(t, scheduler.Config{})
	return f, scheduler.New(f.limiter, scheduler.Config{Jitter: -1}), newJournal(f)
}

// reserve inserts a job that is due after d.
func (f *fixture) reserve(t testing.TB, jobs *scheduler.Jobs, n int, d time.Duration) *rivertype.JobRow {
	t.Helper()
	in, err := f.tryReserve(t.Context(), jobs, n, d)
	if err != nil {
		t.Fatal(err)
	}
	return in.Job.Job
}

// wait is a limit of which one token comes each millisecond, with a full bucket of a second's.
var wait = ratelimit.MustDefine("wait", ratelimit.TokenBucket{Rate: 1000, Period: time.Second})

func (f *fixture) tryReserve(
	ctx context.Context, jobs *scheduler.Jobs, n int, d time.Duration,
) (in *scheduler.Inserted, err error) {
	tokens := 1000 + d.Seconds()*1000
	err = f.limiter.InTx(ctx, f.pool, func(ctx context.Context, tx pgx.Tx) error {
		in, err = jobs.InsertTx(ctx, tx, sendArgs{n}, nil, wait.For(time.Now().String()).Count(tokens).OrReserve())
		return err
	})
	return in, err
}

func (f *fixture) job(t testing.TB, id int64) *rivertype.JobRow {
	t.Helper()
	job, err := f.client.JobGet(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return job
}

// patience is for what happens at once on a machine with nothing else to do.
const patience = 3 * time.Minute

// eventually waits until it is so.
func eventually(t testing.TB, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !so(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// seen waits until the one client that is running has looked at all that waits, and for what has
// gone, which it does every two seconds. A round ends before the next one takes the turn. So it
// waits for one round more: on a busy machine the first that comes may be five seconds late.
func (f *fixture) seen(t testing.TB) {
	t.Helper()
	var first, looked time.Time
	eventually(t, "rounds for four seconds, and one more", func() bool {
		var until *time.Time
		err := f.pool.QueryRow(t.Context(),
			`SELECT max(until) FROM weir_slot WHERE name = 'weir scheduler'`).Scan(&until)
		switch {
		case err != nil:
			t.Fatal(err)
		case until == nil:
		case first.IsZero():
			first = *until
		case !looked.IsZero():
			return until.After(looked)
		case until.Sub(first) > 4*time.Second:
			looked = *until
		}
		return false
	})
}

// longestGap watches the rounds of the one client that is running, from now on. What it returns
// says how long there was none.
func (f *fixture) longestGap(t testing.TB) func() time.Duration {
	t.Helper()
	var mu sync.Mutex
	last, longest := f.now(t), time.Duration(0)
	look := func(ctx context.Context) {
		const sql = `SELECT clock_timestamp(), max(until) - interval '3 s' FROM weir_slot
			WHERE name = 'weir scheduler'`
		mu.Lock()
		defer mu.Unlock()
		var now time.Time
		var round *time.Time
		if err := f.pool.QueryRow(ctx, sql).Scan(&now, &round); err != nil {
			return // the test has ended
		}
		longest = max(longest, now.Sub(last))
		if round != nil && round.After(last) {
			longest, last = max(longest, round.Sub(last)), *round
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ; ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
			look(ctx)
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return func() time.Duration {
		look(ctx)
		mu.Lock()
		defer mu.Unlock()
		return longest
	}
}

func (f *fixture) inTx(t testing.TB, fn func(ctx context.Context, tx pgx.Tx) error) {
	t.Helper()
	if err := f.limiter.InTx(t.Context(), f.pool, fn); err != nil {
		t.Fatal(err)
	}
}

func (f *fixture) insertBy(
	t testing.TB, jobs *scheduler.Jobs, args river.JobArgs, requests ...ratelimit.Request,
) (in *scheduler.Inserted) {
	t.Helper()
	f.inTx(t, func(ctx context.Context, tx pgx.Tx) (err error) {
		in, err = jobs.InsertTx(ctx, tx, args, nil, requests...)
		if err == nil {
			err = in.Err()
		}
		return err
	})
	return in
}

// insertTogether inserts n jobs in one statement, so that their places are as far from each other as
// the rate has them, however slow the machine is.
func (f *fixture) insertTogether(
	t testing.TB, jobs *scheduler.Jobs, n int, request ratelimit.Request,
) []*scheduler.Inserted {
	t.Helper()
	var params []scheduler.InsertManyParams
	for i := range n {
		params = append(params, scheduler.InsertManyParams{Args: sendArgs{i}, Requests: []ratelimit.Request{request}})
	}
	in, err := jobs.InsertMany(t.Context(), f.pool, params)
	if err == nil {
		err = in.Err()
	}
	if err != nil {
		t.Fatal(err)
	}
	return in.Jobs
}

// hold locks a balance, which somebody has taken from, in a transaction. It writes nothing that a cluster
// has on its coordinator: until such a transaction ends, tests that drop a table wait, as River's
// migrations do, and others wait for them.
func (f *fixture) hold(t testing.TB, r ratelimit.Request) pgx.Tx {
	t.Helper()
	tx, err := f.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
	const sql = `UPDATE weir_balance SET value = value WHERE name = $1 AND key = $2`
	tag, err := tx.Exec(t.Context(), sql, r.Limit().Name(), r.Key())
	if err != nil || tag.RowsAffected() != 1 {
		t.Fatal(tag, err)
	}
	return tx
}

// now is the database's clock.
func (f *fixture) now(t testing.TB) (now time.Time) {
	t.Helper()
	if err := f.pool.QueryRow(t.Context(), `SELECT clock_timestamp()`).Scan(&now); err != nil {
		t.Fatal(err)
	}
	return now
}

// woken is how often a job was put back.
func woken(t testing.TB, job *rivertype.JobRow) int {
	t.Helper()
	var m struct{ Snoozes int }
	if err := json.Unmarshal(job.Metadata, &m); err != nil {
		t.Fatal(err)
	}
	return m.Snoozes
}

func (f *fixture) inRC(t testing.TB, fn func(tx pgx.Tx) error) {
	t.Helper()
	if err := pgx.BeginTxFunc(t.Context(), f.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, fn); err != nil {
		t.Fatal(err)
	}
}
