package citus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/weir-go/weir/internal/test/pgserver"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
	"github.com/weir-go/weir/slots"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// open makes Slots that stand for a process.
func open(t *testing.T, pool *pgxpool.Pool, cfg slots.Config) *slots.Slots {
	t.Helper()
	cfg.Logger = quiet
	s, err := slots.New(pool, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = s.Close(ctx)
	})
	return s
}

// patience is much longer than anything should take. River looks for the jobs of a client that was
// lost every half a minute, and a machine may be slow.
const patience = 5 * time.Minute

// until waits for a condition.
func until(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// byWorker are the keys k0 to k15 of the worker that has this key, and those of the other one.
func byWorker(t *testing.T, c pgserver.Cluster, pool *pgxpool.Pool, key string) (worker *pgserver.Server, its, others []string) {
	t.Helper()
	const where = `SELECT n.nodeport FROM pg_dist_placement p JOIN pg_dist_node n USING (groupid)
		WHERE p.shardid = get_shard_id_for_distribution_column('weir_slot', $1::text)`
	port := scan[int](t, pool, where, key)
	for _, w := range c[1:] {
		if strings.Contains(w.URL(), fmt.Sprint(":", port, "/")) {
			worker = w
		}
	}
	for i := range 16 {
		if k := fmt.Sprint("k", i); scan[int](t, pool, where, k) == port {
			its = append(its, k)
		} else {
			others = append(others, k)
		}
	}
	if worker == nil || len(its) == 0 || len(others) == 0 {
		t.Fatalf("worker %v has the keys %v, and the other one %v: want some of both", worker, its, others)
	}
	return worker, its, others
}

// freeze has no process of a server go on, until the test ends: connections to it stay open, and
// nothing answers.
func freeze(t *testing.T, server *pgserver.Server) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	var postmaster int
	if err := conn.QueryRow(t.Context(), `SELECT split_part(pg_read_file('postmaster.pid'), E'\n', 1)::int`).Scan(&postmaster); err != nil {
		t.Fatal(err)
	}
	signal := func(pid int, s syscall.Signal) {
		if err := syscall.Kill(pid, s); err != nil && !errors.Is(err, syscall.ESRCH) {
			t.Error(err)
		}
	}
	signal(postmaster, syscall.SIGSTOP) // first, so that it has no further children
	frozen := []int{postmaster}
	t.Cleanup(func() {
		for _, pid := range frozen {
			signal(pid, syscall.SIGCONT)
		}
	})
	rows, _ := conn.Query(t.Context(), `SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()`)
	children, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range children {
		signal(pid, syscall.SIGSTOP)
		frozen = append(frozen, pid)
	}
}

// If a worker is down, the slots of its keys are lost. Those of other keys stay held, and are taken
// and released, also together with one that cannot be.
func TestAWorkerThatIsDownLosesOnlyItsOwnSlots(t *testing.T) {
	for name, stop := range map[string]func(*testing.T, *pgserver.Server){
		"Killed": func(t *testing.T, worker *pgserver.Server) {
			if err := worker.Kill(); err != nil {
				t.Fatal(err)
			}
		},
		"Frozen": freeze,
	} {
		t.Run(name, func(t *testing.T) {
			c, pool := killable(t)
			worker, its, others := byWorker(t, c, pool, "k0")
			const ttl = 12 * time.Second
			pool = wide(t, pool) // calls that wait for a worker that is down have a connection each
			s, other := open(t, pool, slots.Config{TTL: ttl}), open(t, pool, slots.Config{})
			one := slots.MustDefine("one", 1)
			acquire := func(requests ...slots.Request) *slots.Hold {
				h, err := s.TryAcquire(t.Context(), requests...)
				if err != nil {
					t.Fatal(err)
				}
				return h
			}
			holds := map[string]*slots.Hold{}
			for _, key := range append(its, others...) {
				holds[key] = acquire(one.For(key))
			}
			both := slots.MustDefine("both", 1)
			pair := acquire(both.For(its[0]), both.For(others[0]))

			stop(t, worker)
			for _, key := range its {
				until(t, "slots of the worker that is down are lost", func() bool { return errors.Is(holds[key].Err(), slots.ErrLost) })
			}
			freeAt := func() time.Time {
				return scan[time.Time](t, pool, `SELECT until FROM weir_slot WHERE name = 'one' AND key = $1`, others[0])
			}
			first := freeAt()
			until(t, "other slots are renewed for several TTLs", func() bool { return freeAt().Sub(first) > 3*ttl })
			for _, key := range others {
				if err := holds[key].Err(); err != nil {
					t.Errorf("key %s: %v", key, err)
				}
				if _, err := other.TryAcquire(t.Context(), one.For(key)); !errors.Is(err, slots.ErrFull) {
					t.Errorf("key %s: %v, want ErrFull", key, err)
				}
			}
			if err := pair.Release(t.Context()); err == nil {
				t.Error("a slot was released of a worker that is down")
			}
			if n, err := other.Held(t.Context(), both.For(others[0])); err != nil || n != 0 {
				t.Errorf("%d slots are held, %v: one is not released beside that of a worker that is down", n, err)
			}
			for _, key := range others {
				if err := holds[key].Release(t.Context()); err != nil {
					t.Errorf("key %s: %v", key, err)
				}
				if _, err := other.TryAcquire(t.Context(), one.For(key)); err != nil {
					t.Errorf("key %s: %v, after it was released", key, err)
				}
			}
		})
	}
}

// migrateRiver makes River's tables.
func migrateRiver(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := migrator.Migrate(t.Context(), rivermigrate.DirectionUp, nil); err != nil {
		t.Fatal(err)
	}
}

// startRiver starts a client that the scheduler has configured, until the test ends.
func startRiver(t *testing.T, sched *scheduler.Scheduler, pool *pgxpool.Pool, config *river.Config) *river.Client[pgx.Tx] {
	t.Helper()
	config.Logger = quiet
	client, err := river.NewClient(riverpgxv5.New(pool), sched.Configure(pool, config))
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.StopAndCancel(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return client
}

type keyed struct {
	Key string `json:"key"`
}

func (keyed) Kind() string { return "keyed" }

// If a worker is down, jobs that wait for slots of other keys get those that are free, also if it is
// the worker that says whose turn it is to give them.
func TestAWorkerThatIsDownKeepsNoSlotsFromJobsOfOtherKeys(t *testing.T) {
	c, pool := killable(t)
	worker, its, others := byWorker(t, c, pool, scan[string](t, pool, `SELECT current_schema()::text`))
	migrateRiver(t, pool)
	one := slots.MustDefine("one", 1)
	outside := open(t, pool, slots.Config{TTL: time.Hour})
	holds := map[string]*slots.Hold{}
	worked := make(chan string, 16)
	workers := river.NewWorkers()
	river.AddWorker(workers, scheduler.AtOnce(river.WorkFunc(func(_ context.Context, job *river.Job[keyed]) error {
		worked <- job.Args.Key
		return nil
	}), func(job *river.Job[keyed]) []slots.Request { return []slots.Request{one.For(job.Args.Key)} }))
	sched := scheduler.New(limiter(t, ratelimit.Config{Citus: true}), scheduler.Config{Slots: open(t, pool, slots.Config{})})
	start := func() *river.Client[pgx.Tx] {
		return startRiver(t, sched, pool, &river.Config{Workers: workers,
			Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 4}}})
	}
	client := start()
	for _, key := range append(its, others...) {
		var err error
		if holds[key], err = outside.TryAcquire(t.Context(), one.For(key)); err != nil {
			t.Fatal(err)
		}
		if _, err := client.Insert(t.Context(), keyed{key}, nil); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "all jobs wait", func() bool {
		return scan[int](t, pool, `SELECT count(*) FROM river_job WHERE state = 'scheduled' AND scheduled_at > '2199-12-31'`) == 16
	})
	if err := client.StopAndCancel(t.Context()); err != nil { // which has its eye on jobs that it has put off
		t.Fatal(err)
	}
	if err := worker.Kill(); err != nil {
		t.Fatal(err)
	}
	for _, key := range others {
		if err := holds[key].Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	start() // it gives them in a round
	want := map[string]bool{}
	for _, key := range others {
		want[key] = true
	}
	for len(want) > 0 {
		select {
		case key := <-worked:
			if !want[key] {
				t.Errorf("the job of key %s worked, twice or without a slot", key)
			}
			delete(want, key)
		case <-time.After(patience):
			t.Fatalf("the jobs of keys %v have no slots after %v", want, patience)
		}
	}
}
