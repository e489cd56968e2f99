package scheduler_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// River adds the duration of a snooze to the program's clock. By the row, a job is put off until
// the instant of the database's clock that it waits for all the same.
func TestAPutOffGoesByTheDatabasesClock(t *testing.T) {
	t.Parallel()
	pool := elsewhen(t, "+10m")
	f := setUpOn(t, pool, scheduler.Config{})
	if d := time.Until(f.now(t)).Abs(); d < 9*time.Minute {
		t.Fatalf("the clocks differ by %v", d)
	}
	sched, j := scheduler.New(f.limiter, scheduler.Config{Jitter: -1}), newJournal(f)
	id := f.insertBy(t, f.jobs, sendArgs{0}, budget.For("k")).Job.Job.ID
	from := f.now(t)
	if err := f.limiter.Autocommit(f.pool).Pause(t.Context(), time.Hour, budget.For("k")); err != nil {
		t.Fatal(err)
	}
	to := f.now(t)
	j.client(t, sched)
	eventually(t, "it is put off", func() bool { return f.job(t, id).State == rivertype.JobStateScheduled })
	const slow = 2 * time.Minute // from the reckoning of the duration to the write of the row
	if at := f.job(t, id).ScheduledAt; at.Before(from.Add(time.Hour-time.Second)) || at.After(to.Add(time.Hour+slow)) {
		t.Errorf("a pause until %v has put it off until %v", to.Add(time.Hour), at)
	}
}

// An attempt whose client was killed has begun, though its ticket does not say so: what it took is
// not given back when the job is cancelled, in a transaction or by others.
func TestACancelledJobWhoseClientWasKilledKeepsWhatItTook(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	insert := func(n int) int64 {
		return f.insertBy(t, f.jobs, sendArgs{n}, budget.For("k").Count(100)).Job.Job.ID
	}
	ours, others := insert(0), insert(1)
	// As River's rescuer leaves them.
	f.exec(t,
		`UPDATE river_job SET state = 'retryable', attempt = 1, attempted_by = '{killed}', attempted_at = now() - interval '1 hour',
		scheduled_at = now() + interval '1 hour'`)
	f.cancel(t, f.jobs, ours)
	f.wantLeft(t, budget.For("k"), 800)
	waits := insert(2)
	for _, id := range []int64{others, waits} {
		if _, err := f.client.JobCancel(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	j.client(t, sched)
	eventually(t, "the last one gives back what it took", func() bool {
		return f.settlements(t) > 0 && f.left(t, budget.For("k")) > 799
	})
	f.wantLeft(t, budget.For("k"), 800)
	if n := f.settlements(t); n != 1 {
		t.Errorf("%d gave back what they took", n)
	}
}

// The jobs of a backlog get their places in River's order, with reservations and without. Those
// that a worker has fetched meanwhile may pass them.
func TestABacklogKeepsItsOrder(t *testing.T) {
	t.Parallel()
	for name, rule := range map[string]ratelimit.TokenBucket{
		"Unbounded":   {Rate: 10, Period: time.Hour},
		"MaxReserved": {Rate: 10, Period: time.Hour, MaxReserved: ratelimit.Tokens(15)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			untilInTime(t, func(t *testing.T) bool {
				f, sched, j := exact(t)
				limit := ratelimit.MustDefine("ordered"+name, rule)
				j.limited(func(int) []ratelimit.Request { return []ratelimit.Request{limit.Global()} })
				f.enqueue(t, upTo(200)...)
				j.client(t, sched, workers(2))
				eventually(t, "the backlog is out of the way", func() bool {
					return f.count(t, `state IN ('available', 'running') AND scheduled_at <= now()`) == 0
				})
				rows, err := f.pool.Query(t.Context(), `SELECT id, scheduled_at FROM river_job
					WHERE state IN ('available', 'scheduled') AND attempted_by IS NULL ORDER BY id`)
				if err != nil {
					t.Fatal(err)
				}
				type place struct {
					ID int64
					At time.Time
				}
				places, err := pgx.CollectRows(rows, pgx.RowToStructByPos[place])
				if err != nil {
					t.Fatal(err)
				}
				for i := 1; i < len(places); i++ {
					if places[i].At.Before(places[i-1].At) {
						t.Fatalf("job %d is due %v before job %d", places[i].ID,
							places[i-1].At.Sub(places[i].At), places[i-1].ID)
					}
				}
				return len(places) >= 20 // that were placed together, or the test shows little
			})
		})
	}
}

// A job that has its place, and whose time has come, keeps it when others of its kind are placed.
func TestABacklogLeavesPlacesAlone(t *testing.T) {
	t.Parallel()
	untilInTime(t, leavesPlacesAlone)
}

// untilInTime tries again where the machine was too slow to set up what a test is about. Each try
// ends its clients and closes its pool before the next one: with those of ten tries, many tests
// together would have more connections than the server.
func untilInTime(t *testing.T, inTime func(t *testing.T) bool) {
	t.Helper()
	for n := range 10 {
		done := false
		try := func(t *testing.T) { done = inTime(t) }
		if !t.Run(fmt.Sprint("Try", n+1), try) || done {
			return
		}
	}
	t.Fatal("this machine is too slow for the test")
}

func leavesPlacesAlone(t *testing.T) bool {
	t.Helper()
	f, sched, j := exact(t)
	slow := ratelimit.MustDefine("placed",
		ratelimit.TokenBucket{Rate: 1, Period: 6 * time.Second, Capacity: ratelimit.Tokens(1)})
	const busy = 100 // from this number on jobs are not limited, and wait to be let go
	j.limited(func(n int) []ratelimit.Request {
		if n >= busy {
			return nil
		}
		return []ratelimit.Request{slow.Global(), budget.Global()}
	})
	letGo := make(chan struct{})
	j.work = func(ctx context.Context, job *river.Job[sendArgs]) error {
		if job.Args.N >= busy {
			select {
			case <-letGo:
			case <-ctx.Done():
			}
		}
		return nil
	}
	insert := func(n, priority int) int64 {
		t.Helper()
		job, err := f.client.Insert(t.Context(), sendArgs{n}, &river.InsertOpts{Priority: priority})
		if err != nil {
			t.Fatal(err)
		}
		return job.Job.ID
	}
	// putOff waits until a worker has put a job off. It reports false if the job was moved before.
	putOff := func(id int64) bool {
		t.Helper()
		eventually(t, "it is put off", func() bool {
			return f.count(t, `id = $1 AND state <> 'running' AND
				(attempted_by IS NOT NULL OR scheduled_at > now())`, id) == 1
		})
		return len(f.job(t, id).AttemptedBy) > 0
	}
	j.client(t, sched, workers(1))
	insert(0, 1) // takes the token
	j.await(t, 1)
	placed := insert(1, 4)
	putOff(placed)
	insert(busy, 1)
	if s := j.await(t, 2)[1]; s.n != busy {
		letGo <- struct{}{}
		return false // its time came before the worker was busy
	}
	eventually(t, "its time has come", func() bool { return f.count(t, `id = $1 AND `+fetchable, placed) == 1 })
	at := f.job(t, placed).ScheduledAt
	next := insert(2, 1)
	insert(busy+1, 2)
	letGo <- struct{}{}
	byItself := putOff(next) // and with it the backlog is placed
	j.await(t, 3)
	if !byItself { // but by what the first put-off has begun, seconds ago
		letGo <- struct{}{}
		return false
	}
	time.Sleep(time.Second)
	if job := f.job(t, placed); !job.ScheduledAt.Equal(at) {
		t.Errorf("it was moved by %v", job.ScheduledAt.Sub(at))
	}
	f.wantLeft(t, budget.Global(), 997)
	letGo <- struct{}{}
	j.await(t, 5)
	return true
}

// A job whose insert is committed only after it is due is waited for: River is notified then.
func TestRiverIsNotifiedOfWhatIsCommittedLate(t *testing.T) {
	t.Parallel()
	f, sched, _ := exact(t)
	client, err := river.NewClient(riverpgxv5.New(f.pool), sched.Configure(f.pool, &river.Config{Logger: quiet()}))
	if err != nil {
		t.Fatal(err)
	}
	connect := func() *pgx.Conn {
		conn, err := pgx.ConnectConfig(t.Context(), f.pool.Config().ConnConfig)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close(context.Background()) })
		return conn
	}
	inserts, hears := connect(), connect()
	var name string
	if err := hears.QueryRow(t.Context(), `SELECT current_schema()`).Scan(&name); err != nil {
		t.Fatal(err)
	}
	if _, err := hears.Exec(t.Context(), `LISTEN `+pgx.Identifier{name + ".river_insert"}.Sanitize()); err != nil {
		t.Fatal(err)
	}
	heard := func() bool { // of the waker: the insert notifies as well
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		for {
			n, err := hears.WaitForNotification(ctx)
			if err != nil {
				return false
			}
			if n.PID != inserts.PgConn().PID() {
				return true
			}
		}
	}
	for n := range 5 { // the waker gives up after two seconds: on a slow machine it may have
		err := pgx.BeginFunc(t.Context(), inserts, func(tx pgx.Tx) error {
			in, err := sched.Jobs(client).InsertTx(t.Context(), tx, sendArgs{n}, nil,
				wait.For(fmt.Sprint("late", n)).Count(1050).OrReserve())
			if err == nil {
				f.until(t, in.Job.Job.ScheduledAt.Add(200*time.Millisecond))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if heard() {
			return
		}
	}
	t.Error("River was not notified once of five jobs")
}

// What comes back to a limit with shards moves its line by all of it, though each shard gets a
// part.
func TestALineOfShardsMovesByWhatComesBackToAllOfThem(t *testing.T) {
	t.Parallel()
	f, sched, _ := exact(t)
	limit := ratelimit.MustDefine("partly", ratelimit.TokenBucket{Rate: 8, Period: time.Hour,
		Capacity: ratelimit.Tokens(8)}, ratelimit.Shards(4))
	a, k := f.limiter.Autocommit(f.pool), limit.For("k").Count(8)
	taken, err := a.RateLimit(t.Context(), k)
	if err != nil || !taken.OK {
		t.Fatal(taken, err)
	}
	first, second := f.reserveOn(t, 0, nil, k), f.reserveOn(t, 1, nil, k)
	if ok, err := a.Settle(t.Context(), taken.Reservation(), limit.For("k").Count(0)); err != nil || !ok {
		t.Fatal(ok, err)
	}
	f.inRC(t, func(tx pgx.Tx) error {
		waiting, err := sched.Jobs(f.client).Waiting(t.Context(), tx, limit.For("k"), 10)
		if err == nil && (len(waiting) != 1 || waiting[0].Job.ID != second.ID) {
			t.Errorf("%v", waiting)
		}
		for _, w := range waiting {
			if d := w.Until.Sub(first.ScheduledAt); d.Abs() > time.Minute {
				t.Errorf("it waits until %v after the one before it was due", d)
			}
		}
		return err
	})
}

// Jobs whose calls were refused start apart, whether the pause ends by itself or is ended.
func TestThoseThatMetAPauseStartApart(t *testing.T) {
	t.Parallel()
	for name, pause := range map[string]time.Duration{"ItEnds": 2 * time.Second, "ItIsEnded": time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, _, j := exact(t)
			sched := scheduler.New(f.limiter, scheduler.Config{}) // with jitter
			const n = 10
			var calls atomic.Int64
			j.work = func(context.Context, *river.Job[sendArgs]) error {
				if calls.Add(1) > n {
					return nil
				}
				for calls.Load() < n { // all of them meet it
					time.Sleep(time.Millisecond)
				}
				return &scheduler.PauseError{For: pause, Requests: []ratelimit.Request{budget.For("k")}}
			}
			var together []scheduler.InsertManyParams // whose tokens are there at the same instant
			for i := range n {
				together = append(together, scheduler.InsertManyParams{Args: sendArgs{i},
					Requests: []ratelimit.Request{budget.For("k")}})
			}
			if in, err := f.jobs.InsertMany(t.Context(), f.pool, together); err != nil || !in.OK {
				t.Fatal(in, err)
			}
			j.client(t, sched)
			if pause == time.Hour {
				eventually(t, "all are put off", func() bool { return f.count(t, `state = 'scheduled'`) == n })
				if err := f.limiter.Autocommit(f.pool).Resume(t.Context(), budget.For("k")); err != nil {
					t.Fatal(err)
				}
			}
			due := map[time.Duration]bool{}
			starts := j.await(t, 2*n)[n:]
			for _, s := range starts {
				due[s.due.Sub(starts[0].due).Truncate(time.Millisecond)] = true
			}
			if len(due) < n/2 {
				t.Errorf("%d jobs were due at %d different times", n, len(due))
			}
		})
	}
}

// A gap stands where its job stood when it left, with the gaps closed that were there by then: a
// small job behind two gaps, of which the first is larger than what is between them, moves up by
// both.
func TestASmallJobMovesUpByTwoGaps(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	k := ratelimit.MustDefine("gaps",
		ratelimit.TokenBucket{Rate: 1, Period: time.Second, Capacity: ratelimit.Tokens(0)}).For("k")
	large := f.reserveOn(t, 0, nil, k.Count(60))
	stays := f.reserveOn(t, 1, nil, k.Count(6))
	second := f.reserveOn(t, 2, nil, k.Count(60))
	last := f.reserveOn(t, 3, nil, k.Count(3))
	jobs := sched.Jobs(f.client)
	f.cancel(t, jobs, large.ID)
	f.cancel(t, jobs, second.ID)
	j.client(t, sched)
	j.startsBefore(t, last.ID, last.ScheduledAt.Add(-2*time.Minute), last.ScheduledAt.Add(-time.Minute))
	j.startsBefore(t, stays.ID, stays.ScheduledAt.Add(-time.Minute), stays.ScheduledAt)
}

// Newer releases of River do not count an attempt that a stop has interrupted. It has paid all the
// same, as its ticket says, and the next one pays, too.
func TestAnInterruptedAttemptThatIsNotCountedHasPaid(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	j.work = func(ctx context.Context, _ *river.Job[sendArgs]) error {
		if len(j.await(t, 1)) == 1 {
			<-ctx.Done()
		}
		return ctx.Err()
	}
	id := f.insertBy(t, f.jobs, sendArgs{0}, budget.For("k").Count(100)).Job.Job.ID
	client := j.client(t, sched)
	j.await(t, 1)
	stop(t, client)
	f.exec(t, `UPDATE river_job SET attempt = 0`)
	j.client(t, sched)
	f.completedOf(t, id)
	n := f.fetched(t, id) // twice, or once more by the client that was stopped
	if n < 2 {
		t.Errorf("it was fetched %v times", n)
	}
	f.wantLeft(t, budget.For("k"), 1000-100*n)
}
