package faults

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
	"github.com/weir-go/weir/slots"
)

// kindEnv makes this test binary a worker of scheduled jobs, and says of which kind.
const kindEnv = "WEIR_FAULTS_WORKER"

type kind string

const (
	careful kind = "careful" // as the documentation would have it
	plain   kind = "plain"   // River's client without Weir's plugin
	hasty   kind = "hasty"   // like plain, and has jobs that wait start at once
	outside kind = "outside" // completes its jobs outside of the transaction that does the work
)

const (
	rescueEnv = "WEIR_FAULTS_RESCUE" // a client's RescueStuckJobsAfter; its attempts have no JobTimeout then
	busyEnv   = "WEIR_FAULTS_BUSY"   // set: a client has few workers, and each job takes them long
)

type dueArgs struct {
	ID    string `json:"id"`
	Loose bool   `json:"loose,omitempty"` // its client completes it, after the work was committed
}

func (dueArgs) Kind() string { return "due_work" }

// lapse is an attempt that its worker knows to have failed.
type lapse struct {
	Job     int64
	Attempt int
	Class   class
	Text    string
}

// utterance is a line of a worker's output.
type utterance struct {
	Ready bool   `json:",omitempty"`
	Lapse *lapse `json:",omitempty"`
}

type atOnce struct{}

func (atOnce) NextRetry(*rivertype.JobRow) time.Time { return time.Now() }

// serve works jobs until the process is killed, or whoever started it has ended.
func serve(url, name string, k kind) error {
	if k == inserting {
		return reserveAhead(url, name)
	}
	ctx := context.Background()
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return err
	}
	cfg.MaxConns = 8
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer pool.Close()
	limiter, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		return err
	}
	w := &dueWorker{pool: pool, name: name, kind: k, longest: 20 * time.Millisecond, out: json.NewEncoder(os.Stdout)}
	config := &river.Config{
		ID: name, Schema: cfg.ConnConfig.RuntimeParams["search_path"], Logger: slog.New(slog.DiscardHandler),
		// The server may be away while a job runs: less than this would rescue the living.
		JobTimeout: 2 * time.Second, RescueStuckJobsAfter: 12 * time.Second, RetryPolicy: atOnce{},
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 20}}, Workers: river.NewWorkers(),
	}
	if d := os.Getenv(rescueEnv); d != "" {
		if config.RescueStuckJobsAfter, err = time.ParseDuration(d); err != nil {
			return err
		}
		config.JobTimeout = -1
	}
	if os.Getenv(busyEnv) != "" {
		config.Queues[river.QueueDefault] = river.QueueConfig{MaxWorkers: 4}
		w.longest = 250 * time.Millisecond
	}
	river.AddWorker(config.Workers, w)
	river.AddWorker(config.Workers, &linedWorker{w: w})
	if k == slotless {
		config.Queues[river.QueueDefault] = river.QueueConfig{MaxWorkers: slotKeys * slotsEach}
		river.AddWorker(config.Workers, &slottedWorker{w: w})
	} else {
		river.AddWorker(config.Workers, scheduler.AtOnce(&slottedWorker{w: w}, slotOf))
	}
	switch k {
	case plain, slotless:
	case hasty:
		go pull(ctx, pool)
	case lining:
		config = scheduler.New(limiter, lined).Configure(pool, config)
	case slotted:
		var s *slots.Slots
		if s, err = slots.New(pool, slots.Config{TTL: slotsLast}); err != nil {
			return err
		}
		defer s.Close(ctx) //nolint:errcheck // the process ends
		config = scheduler.New(limiter, scheduler.Config{Slots: s}).Configure(pool, config)
	default:
		config = scheduler.New(limiter, scheduler.Config{}).Configure(pool, config)
	}
	client, err := river.NewClient(riverpgxv5.New(pool), config)
	if err != nil {
		return err
	}
	if err := client.Start(ctx); err != nil {
		return err
	}
	w.tell(utterance{Ready: true})
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return client.StopAndCancel(ctx)
}

// pull makes all jobs due that wait.
func pull(ctx context.Context, pool *pgxpool.Pool) {
	for ctx.Err() == nil {
		// tries again
		_, _ = pool.Exec(ctx, `UPDATE river_job SET scheduled_at = now() WHERE state = 'available' AND scheduled_at > now()`)
		time.Sleep(20 * time.Millisecond)
	}
}

// dueWorker writes down when it starts, and then that it is done together with the job's
// completion.
type dueWorker struct {
	river.WorkerDefaults[dueArgs]
	pool *pgxpool.Pool
	name string
	kind kind

	longest time.Duration // that a job takes

	mu  sync.Mutex
	out *json.Encoder
}

func (w *dueWorker) tell(u utterance) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.out.Encode(u); err != nil {
		panic(err)
	}
}

func (w *dueWorker) Work(ctx context.Context, job *river.Job[dueArgs]) error {
	err := w.work(ctx, job)
	if err != nil {
		w.tell(utterance{Lapse: &lapse{job.ID, job.Attempt, classify(err), err.Error()}})
	}
	return err
}

func (w *dueWorker) work(ctx context.Context, job *river.Job[dueArgs]) error {
	if _, err := w.pool.Exec(ctx, `INSERT INTO start VALUES ($1, $2, $3, clock_timestamp(), $4)`,
		job.ID, job.Attempt, w.name, job.ScheduledAt); err != nil {
		return fmt.Errorf("insert start: %w", err)
	}
	<-time.After(rand.N(w.longest)) //nolint:gosec // how long the work takes
	const done = `INSERT INTO done VALUES ($1, $2, $3)`
	if w.kind == outside || job.Args.Loose {
		if _, err := w.pool.Exec(ctx, done, job.ID, job.Attempt, w.name); err != nil {
			return fmt.Errorf("insert done: %w", err)
		}
		return nil
	}
	return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, done, job.ID, job.Attempt, w.name); err != nil {
			return fmt.Errorf("insert done: %w", err)
		}
		_, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job)
		return err
	})
}

// hand is a worker's process, from outside.
type hand struct {
	name  string
	kind  kind
	cmd   *exec.Cmd
	input io.Closer
	ready chan struct{} // closed when its client has started
	done  chan struct{} // closed when all that it said was heard
}

// hire starts workers and waits until they work.
func (s *shift) hire(t *testing.T, kinds ...kind) {
	t.Helper()
	var hands []*hand
	for _, k := range kinds {
		s.hired++
		h := s.spawnWorker(t, fmt.Sprintf("%s-%d", k, s.hired), k)
		s.crew[h.name] = h
		hands = append(hands, h)
	}
	timeout := time.After(hung)
	for _, h := range hands {
		select {
		case <-h.ready:
		case <-h.done:
			t.Fatalf("%s has ended", h.name)
		case <-timeout:
			t.Fatalf("%s did not start within %v", h.name, hung)
		}
	}
}

func (s *shift) spawnWorker(t *testing.T, name string, k kind) *hand {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), kindEnv+"="+string(k), childEnv+"="+s.url(t), prefixEnv+"="+name)
	cmd.Env = append(cmd.Env, s.env...)
	cmd.Stderr = os.Stderr
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h := &hand{name: name, kind: k, cmd: cmd, input: input, ready: make(chan struct{}), done: make(chan struct{})}
	t.Cleanup(h.kill)
	go func() {
		defer close(h.done)
		h.listen(output, s)
	}()
	return h
}

func (h *hand) listen(output io.Reader, s *shift) {
	lines := bufio.NewScanner(output)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var u utterance
		if json.Unmarshal(lines.Bytes(), &u) != nil {
			return // the process died in the middle of a line
		}
		if u.Ready {
			close(h.ready)
		}
		if u.Lapse != nil {
			s.mu.Lock()
			s.lapses[attempt{u.Lapse.Job, u.Lapse.Attempt, h.name}] = *u.Lapse
			s.mu.Unlock()
		}
	}
}

// kill returns when the process has ended and everything it said is known.
func (h *hand) kill() {
	_ = h.cmd.Process.Kill() // it may have been before
	<-h.done
	_ = h.cmd.Wait() // it was killed
	_ = h.input.Close()
}

// fire kills a worker for the sake of a fault.
func (s *shift) fire(h *hand) {
	h.kill()
	delete(s.crew, h.name)
	s.killed[h.name] = true
}

// dismiss stops all workers in order.
func (s *shift) dismiss(t *testing.T) {
	t.Helper()
	for _, h := range s.crew {
		_ = h.input.Close()
	}
	for _, h := range s.crew {
		<-h.done
		if err := h.cmd.Wait(); err != nil {
			t.Errorf("%s: %v", h.name, err)
		}
	}
	clear(s.crew)
}
