package faults

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
	"github.com/weir-go/weir/slots"
)

// What is held and what is due when the primary ends goes on at its standby: a lease, a slot, a
// reserved job.
func TestWhatIsHeldWhenAStandbyTakesOver(t *testing.T) {
	t.Parallel()
	ours(t)
	f := setUpPair(t, true)
	lease, slot, job := f.holdLease(t), f.holdSlot(t), f.reserveJob(t)
	if err := f.server.Shutdown("immediate"); err != nil {
		t.Fatal(err)
	}
	f.mustRefuse(t)
	lease.mustFail(t)
	f.takeOver(t)
	lease.examine(t)
	slot.examine(t)
	job.examine(t)
}

// leaseHeld takes token after token from a lease.
type leaseHeld struct {
	*fixture
	lease  *ratelimit.Lease
	stop   func()
	handed atomic.Int64
	failed atomic.Int64
}

const (
	leaseTokens = 1_000_000
	leaseBlock  = 50
)

var leased = ratelimit.MustDefine("leased",
	ratelimit.FixedWindow{Rate: leaseTokens, Period: never, Start: time.Unix(0, 0)})

func (f *fixture) holdLease(t *testing.T) *leaseHeld {
	t.Helper()
	h := &leaseHeld{fixture: f}
	var err error
	if h.lease, err = f.app.limiter.Lease(f.connect(t), leased.For("k"),
		ratelimit.LeaseConfig{Block: leaseBlock}); err != nil {
		t.Fatal(err)
	}
	stopping := make(chan struct{})
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for {
				select {
				case <-stopping:
					return
				case <-time.After(2 * time.Millisecond):
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				res, err := h.lease.Take(ctx, 1)
				cancel()
				switch c := classify(err); {
				case c == away, c == unknown:
					h.failed.Add(1)
				case err != nil || !res.OK:
					t.Errorf("a take from a lease: %+v, %v", res, err)
					return
				default:
					h.handed.Add(1)
				}
			}
		})
	}
	h.stop = sync.OnceFunc(func() { close(stopping); wg.Wait() })
	t.Cleanup(h.stop)
	h.await(t, &h.handed, 100)
	return h
}

// await waits until n more takes have ended so.
func (h *leaseHeld) await(t *testing.T, count *atomic.Int64, n int64) {
	t.Helper()
	start, end := count.Load(), time.Now().Add(hung)
	for count.Load() < start+n {
		if time.Now().After(end) {
			t.Fatalf("a lease has handed out %d tokens, with %d errors, and nothing more for %v",
				h.handed.Load(), h.failed.Load(), hung)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// mustFail waits until what was in hand is used up.
func (h *leaseHeld) mustFail(t *testing.T) {
	t.Helper()
	h.await(t, &h.failed, 5)
}

// examine: it goes on, and what it has handed out is gone from the database. More than that is gone
// by no more than a fetch and a block that was being given back, whose answers were lost, and what
// the lease could not give back in time at its end.
func (h *leaseHeld) examine(t *testing.T) {
	t.Helper()
	h.await(t, &h.handed, 100)
	h.stop()
	most := 2.0 * leaseBlock
	switch err := h.lease.Close(t.Context()); classify(err) {
	case granted:
	case gaveUp, unknown: // a busy machine
		most += leaseBlock
	default:
		t.Fatal(err)
	}
	state, err := h.app.limiter.Autocommit(h.pool).Value(t.Context(), leased.For("k"))
	if err != nil {
		t.Fatal(err)
	}
	handed, gone := float64(h.handed.Load()), leaseTokens-state.Value
	if gone < handed-tolerance || gone > handed+most+tolerance {
		t.Errorf("the lease has handed out %v tokens, and %v are gone", handed, gone)
	}
	summary :=
		fmt.Sprintf("faults: %s: the lease handed out %v tokens, of which the database has %v as taken; %d takes failed",
			t.Name(), handed, gone, h.failed.Load())
	t.Log(summary)
	fmt.Println(summary)
}

// slotHeld is the only slot of a key, which another process wants.
type slotHeld struct {
	*fixture
	hold   *slots.Hold
	others chan *slots.Hold // that the other process was granted
	stop   func()
}

var single = slots.MustDefine("single", 1)

func (f *fixture) holdSlot(t *testing.T) *slotHeld {
	t.Helper()
	h := &slotHeld{fixture: f, others: make(chan *slots.Hold, 1)}
	process := func() *slots.Slots {
		s, err := slots.New(f.connect(t), slots.Config{TTL: 6 * time.Second, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(context.WithoutCancel(t.Context())); err != nil {
				t.Error(err)
			}
		})
		return s
	}
	var err error
	if h.hold, err = process().Acquire(t.Context(), single.For("k")); err != nil {
		t.Fatal(err)
	}
	rival := process()
	stopping := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stopping:
				return
			case <-time.After(20 * time.Millisecond):
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			got, err := rival.TryAcquire(ctx, single.For("k"))
			cancel()
			switch c := classify(err); {
			case err == nil:
				if h.hold.Err() == nil { // asked after the grant
					t.Error("two hold the only slot")
				}
				h.others <- got
				return
			case !errors.Is(err, slots.ErrFull) && c != away && c != unknown:
				t.Errorf("TryAcquire: %v", err)
				return
			}
		}
	})
	h.stop = sync.OnceFunc(func() { close(stopping); wg.Wait() })
	t.Cleanup(h.stop)
	return h
}

// examine: the slot is held on and renewed, or lost with an error, and then another has it.
func (h *slotHeld) examine(t *testing.T) {
	t.Helper()
	until := func() (at time.Time) {
		h.admin(t, func(ctx context.Context, conn *pgx.Conn) error {
			return conn.QueryRow(ctx, `SELECT until FROM weir_slot WHERE name = 'single'`).Scan(&at)
		})
		return at
	}
	first, end := until(), time.Now().Add(hung)
	for h.hold.Err() == nil && until().Equal(first) {
		if time.Now().After(end) {
			t.Fatal("a slot is neither renewed nor lost after the takeover")
		}
		time.Sleep(50 * time.Millisecond)
	}
	outcome := "was renewed"
	switch err := h.hold.Err(); {
	case errors.Is(err, slots.ErrLost): // it took longer than TTL: a busy machine
		outcome = "was lost, and its holder told so"
	case err != nil:
		t.Fatalf("the slot: %v", err)
	}
	if err := h.hold.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case other := <-h.others:
		if other.Slots()[0].Token <= h.hold.Slots()[0].Token {
			t.Errorf("the next holder's token is %d, after %d", other.Slots()[0].Token, h.hold.Slots()[0].Token)
		}
		if err := other.Release(t.Context()); err != nil {
			t.Error(err)
		}
	case <-time.After(hung):
		t.Error("nobody gets the slot after its release")
	}
	h.stop()
	summary := fmt.Sprintf("faults: %s: the slot %s", t.Name(), outcome)
	t.Log(summary)
	fmt.Println(summary)
}

// jobReserved is reserved on the primary, and due after the takeover.
type jobReserved struct {
	*fixture
	id  int64
	due time.Time
}

// standbyWorker completes a job together with a row that says so.
type standbyWorker struct {
	river.WorkerDefaults[jobArgs]
	pool *pgxpool.Pool
}

func (w *standbyWorker) Work(ctx context.Context, job *river.Job[jobArgs]) error {
	return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO worked VALUES ($1)`, job.ID); err != nil {
			return err
		}
		_, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job)
		return err
	})
}

func (f *fixture) reserveJob(t *testing.T) *jobReserved {
	t.Helper()
	f.exec(t, `CREATE TABLE worked (job bigint NOT NULL)`)
	pool := f.connect(t)
	sched := scheduler.New(f.app.limiter, scheduler.Config{})
	config := &river.Config{
		Logger:  slog.New(slog.DiscardHandler),
		Schema:  f.name,
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 2}},
		Workers: river.NewWorkers(),
	}
	river.AddWorker(config.Workers, &standbyWorker{pool: pool})
	client, err := river.NewClient(riverpgxv5.New(pool), sched.Configure(pool, config))
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Start(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), hung)
		defer cancel()
		if err := client.StopAndCancel(ctx); err != nil {
			t.Error(err)
		}
	})
	r := &jobReserved{fixture: f}
	if err := f.app.limiter.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		// due in 5 s
		in, err := sched.Jobs(client).InsertTx(ctx, tx, jobArgs{"held"}, nil, delay.For("held").Count(6000).OrReserve())
		if err == nil {
			err = in.Err()
		}
		if err != nil {
			return err
		}
		r.id, r.due = in.Job.Job.ID, in.RunAt
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return r
}

// examine: the job is worked once, and not before its time.
func (r *jobReserved) examine(t *testing.T) {
	t.Helper()
	var state string
	var worked int
	var early bool
	for end := time.Now().Add(hung); state != "completed"; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the job that was reserved before the takeover is %s", state)
		}
		r.admin(t, func(ctx context.Context, conn *pgx.Conn) error {
			return conn.QueryRow(ctx,
				`SELECT state, (SELECT count(*) FROM worked WHERE job = id), coalesce(attempted_at < $2, false)
				FROM river_job WHERE id = $1`, r.id, r.due).Scan(&state, &worked, &early)
		})
	}
	if worked != 1 || early {
		t.Errorf("the job was worked %d times; before it was due: %v", worked, early)
	}
}
