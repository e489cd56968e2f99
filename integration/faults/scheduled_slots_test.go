package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/slots"
)

// Jobs of three keys run two at a time.
const (
	slotted   kind = "slotted"       // a client that hands slots on
	slotless  kind = "slotless"      // one whose jobs run without any
	slotsLast      = 5 * time.Second // a machine that stands still for two seconds loses none
	slotKeys       = 3
	slotsEach      = 2
)

var pair = slots.MustDefine("pair", slotsEach)

type slottedArgs struct {
	ID  string `json:"id"`
	Key int    `json:"key"`
}

func (slottedArgs) Kind() string { return "slotted_work" }

func slotOf(job *river.Job[slottedArgs]) []slots.Request {
	return []slots.Request{pair.For(fmt.Sprint(job.Args.Key))}
}

// slottedWorker notes jobs that run while as many others of their key do. Of each key there are as
// many advisory locks as slots. The server frees those of a killed process at once, long before its
// slots come back.
type slottedWorker struct {
	river.WorkerDefaults[slottedArgs]
	w *dueWorker
}

func (l *slottedWorker) Work(ctx context.Context, job *river.Job[slottedArgs]) error {
	conn, err := l.w.pool.Acquire(ctx)
	if err != nil {
		l.w.tell(utterance{Lapse: &lapse{job.ID, job.Attempt, classify(err), err.Error()}})
		return err
	}
	defer conn.Release()
	alone := false
	for i := 0; i < slotsEach && !alone && err == nil; i++ {
		err = conn.QueryRow(ctx, `SELECT pg_try_advisory_lock(hashtext(current_schema() || $1), $2)`,
			fmt.Sprint(job.Args.Key), i).
			Scan(&alone)
	}
	if err == nil && !alone {
		_, err = conn.Exec(ctx, `INSERT INTO crowd VALUES ($1, $2)`, job.ID, l.w.name)
	}
	if err != nil {
		l.w.tell(utterance{Lapse: &lapse{job.ID, job.Attempt, classify(err), err.Error()}})
		l.hangUp(context.WithoutCancel(ctx), conn)
		return err
	}
	err = l.w.Work(ctx, &river.Job[dueArgs]{JobRow: job.JobRow, Args: dueArgs{ID: job.Args.ID}})
	if _, failed := conn.Exec(context.WithoutCancel(ctx), `SELECT pg_advisory_unlock_all()`); failed != nil {
		_ = conn.Conn().Close(context.WithoutCancel(ctx))
	}
	return err
}

// hangUp closes a connection, and waits until the server has freed its locks: otherwise the next
// job that gets the slot could find them held.
func (l *slottedWorker) hangUp(ctx context.Context, conn *pgxpool.Conn) {
	backend := conn.Conn().PgConn().PID()
	_ = conn.Conn().Close(ctx)
	conn.Release()
	for n := 1; n > 0; time.Sleep(2 * time.Millisecond) {
		if l.w.pool.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity WHERE pid = $1`,
			backend).Scan(&n) != nil {
			return // the server is away, with all locks
		}
	}
}

func newSlotted(t *testing.T) *shift {
	t.Helper()
	s := newShift(t)
	s.exec(t, `CREATE TABLE crowd (job bigint NOT NULL, worker text NOT NULL)`)
	s.kinds, s.slots = []kind{slotted, slotted, slotted}, true
	s.put = func(ctx context.Context, tx pgx.Tx, id string) (*rivertype.JobRow, error) {
		in, err := s.client.InsertTx(ctx, tx, slottedArgs{id, rand.N(slotKeys)}, nil)
		if err != nil {
			return nil, err
		}
		return in.Job, nil
	}
	return s
}

// crowds says where more jobs of a key ran at once than it has slots.
func (s *shift) crowds(t *testing.T) (violations []string) {
	t.Helper()
	if n := s.count(t, `SELECT count(*) FROM crowd`); n > 0 {
		violations = append(violations, fmt.Sprintf("%d jobs ran beside %d others of their key", n, slotsEach))
	}
	s.exec(t, `TRUNCATE crowd`)
	return violations
}

// handed counts jobs that were handed a slot.
func (s *shift) handed(t *testing.T) int {
	t.Helper()
	return s.count(t, `SELECT count(*) FROM river_job WHERE metadata ? 'weir_slot'`)
}

// Clients are killed in the middle of jobs that hold slots, and of handing them on.
func TestSlotsOfJobsWhenWorkersAreKilled(t *testing.T) {
	t.Parallel()
	s := newSlotted(t)
	s.more = s.crowds
	handed := 0
	s.run(t, fault{rounds: 1}, func() bool { return s.kills > 0 && handed > 0 }, func(t *testing.T) {
		for range 2 {
			h := s.any()
			if rand.N(3) > 0 {
				s.busy(t, h)
			}
			s.fire(h)
			s.hire(t, slotted)
			s.callers.await(t, granted, 20+rand.N(30))
		}
		handed += s.handed(t)
	})
}

// A client stands still for longer than its slots last, which go to others' jobs, and then goes on.
// What it was at runs beside these, so nobody counts here how many jobs run at once.
func TestSlotsOfJobsWhenClientsAreFrozen(t *testing.T) {
	t.Parallel()
	rig.Large(t)
	s := newSlotted(t)
	handed := 0
	s.run(t, fault{rounds: 1}, func() bool { return handed > 0 }, func(t *testing.T) {
		h := s.any()
		s.busy(t, h)
		signal(t, h, syscall.SIGSTOP)
		time.Sleep(slotsLast + time.Second)
		signal(t, h, syscall.SIGCONT)
		s.callers.await(t, granted, 20)
		handed += s.handed(t)
	})
}

func TestSlotsOfJobsWhenTheServerIsKilledAndShutDown(t *testing.T) {
	t.Parallel()
	rig.Large(t)
	ours(t)
	s := newSlotted(t)
	s.server, s.more = true, s.crowds
	x := fault{rounds: 1, hits: []class{away}, allowed: []class{unknown}}
	s.run(t, x, func() bool { return s.outages > 0 }, s.restarts)
}

// The audit finds jobs that run without a slot. Their client asks for none. It runs as many at a
// time as there are slots, but of whatever keys.
func TestTheAuditFindsJobsThatRunWithoutASlot(t *testing.T) {
	t.Parallel()
	rig.Large(t)
	s := newSlotted(t)
	for range 100 {
		s.once(t.Context(), wish{})
	}
	s.hire(t, slotless)
	s.settled(t)
	if v := s.crowds(t); len(v) != 1 {
		t.Errorf("violations: %q", v)
	}
}
