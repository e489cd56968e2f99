package scheduler_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// oneWorker has the other jobs be due while one is put off.
func oneWorker(cfg *river.Config) {
	cfg.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 1}}
}

// A function that panics for one job fails that job's attempt, and nothing else: it is called for
// other jobs than the one that starts, where River recovers nothing.
func TestAPanicOfRequestsIsThatOfItsJob(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	limit := ratelimit.MustDefine("panics",
		ratelimit.TokenBucket{Rate: 1, Period: time.Hour, Capacity: ratelimit.Tokens(1)})
	j.limited(func(n int) []ratelimit.Request {
		if n == 15 {
			panic("no requests for this one")
		}
		return []ratelimit.Request{limit.Global()}
	})
	f.enqueue(t, upTo(20)...)
	j.client(t, sched, oneWorker)
	eventually(t, "the others wait, and it has failed", func() bool {
		var waiting, failed int
		if err := f.pool.QueryRow(t.Context(), `SELECT
			count(*) FILTER (WHERE state = 'scheduled' AND scheduled_at > now() + interval '10 min'),
			count(*) FILTER (WHERE args->>'n' = '15' AND cardinality(errors) > 0)
			FROM river_job`).Scan(&waiting, &failed); err != nil {
			t.Fatal(err)
		}
		return waiting == 18 && failed == 1
	})
	if s := j.await(t, 1); len(s) != 1 {
		t.Errorf("%d jobs have started, want one", len(s))
	}
}

// Somebody who holds the balance of one key holds up the jobs of that key, and has no attempt fail.
func TestAHeldBalanceHoldsUpNoOtherKey(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	limit := ratelimit.MustDefine("held", ratelimit.TokenBucket{Rate: 10, Period: time.Second})
	j.limited(func(n int) []ratelimit.Request { return []ratelimit.Request{limit.For(keyOf(n))} })
	if err := f.limiter.Autocommit(f.pool).Consume(t.Context(), limit.For("0")); err != nil {
		t.Fatal(err)
	}
	tx := f.hold(t, limit.For("0"))
	f.enqueue(t, 0, 1, 100, 200) // keys 0, 0, 1, 2
	j.client(t, sched)
	for _, s := range j.await(t, 2) {
		if s.n < 100 {
			t.Errorf("job %d has started, whose key is held", s.n)
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, s := range j.await(t, 4) {
		if job := f.job(t, s.id); s.attempt != 1 || len(job.Errors) > 0 {
			t.Errorf("job %d started at attempt %d, after %v", s.n, s.attempt, job.Errors)
		}
	}
}

// If somebody holds the balances of many keys, a job of another key still starts in time.
func TestManyHeldBalancesTakeNoAttemptsTime(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	limit := ratelimit.MustDefine("heldMany", ratelimit.TokenBucket{Rate: 10, Period: time.Second})
	j.limited(func(n int) []ratelimit.Request { return []ratelimit.Request{limit.For(keyOf(n))} })
	const keys = 16
	var requests []ratelimit.Request
	var jobs []int
	for k := range keys {
		requests, jobs = append(requests, limit.For(fmt.Sprint(k))), append(jobs, 100*k)
	}
	if err := f.limiter.Autocommit(f.pool).Consume(t.Context(), requests...); err != nil {
		t.Fatal(err)
	}
	tx := f.hold(t, requests[0])
	if _, err := tx.Exec(t.Context(), `UPDATE weir_balance SET value = value WHERE name = 'heldMany'`); err != nil {
		t.Fatal(err)
	}
	f.enqueue(t, append(jobs, 100*keys)...)
	j.client(t, sched, func(c *river.Config) { c.JobTimeout = 16 * time.Second }) // 2 s for each key are more
	if s := j.await(t, 1)[0]; s.n != 100*keys || s.attempt != 1 || len(f.job(t, s.id).Errors) > 0 {
		t.Errorf("job %d has started, at attempt %d, after %v", s.n, s.attempt, f.job(t, s.id).Errors)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, s := range j.await(t, keys+1) {
		if job := f.job(t, s.id); s.attempt != 1 || len(job.Errors) > 0 {
			t.Errorf("job %d started at attempt %d, after %v", s.n, s.attempt, job.Errors)
		}
	}
}

// Somebody who holds the balance of one late job holds up no late jobs of other keys: neither when
// they come to workers together, nor when the one whose balance is held is in the queue.
func TestAHeldBalanceHoldsUpNoLateJobOfAnotherKey(t *testing.T) {
	t.Parallel()
	for name, most := range map[string]int{"AtWorkers": 20, "InTheQueue": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, sched, j := exact(t)
			limit := ratelimit.MustDefine("heldLate",
				ratelimit.TokenBucket{Rate: 10, Period: time.Second, Capacity: ratelimit.Tokens(0)})
			var due time.Time
			for n, key := range []string{"held", "held", "a", "b"} {
				opts := &river.InsertOpts{Priority: 2}
				if key != "held" {
					opts.Priority = 1
				}
				due = f.reserveOn(t, n, opts, limit.For(key)).ScheduledAt
			}
			tx := f.hold(t, limit.For("held"))
			f.until(t, due.Add(3200*time.Millisecond))
			f.exec(t, `UPDATE river_job SET state = 'available' WHERE state = 'scheduled'`)
			j.client(t, sched, workers(most))
			for _, s := range j.await(t, 2) {
				if job := f.ended(t, s.id); s.n < 2 || !paidLate(job) {
					t.Errorf("job %d has started: %s, want 2 and 3, which have paid anew", s.n, job.Metadata)
				}
			}
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, s := range j.await(t, 4) {
				if job := f.job(t, s.id); s.attempt != 1 || len(job.Errors) > 0 {
					t.Errorf("job %d started at attempt %d, after %v", s.n, s.attempt, job.Errors)
				}
			}
		})
	}
}

// A late job whose balance is held for so long that it is put off is as late as before: when its turn
// comes, it pays anew.
func TestALateJobThatIsPutOffPaysAnew(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	limit := ratelimit.MustDefine("heldLong",
		ratelimit.TokenBucket{Rate: 10, Period: time.Second, Capacity: ratelimit.Tokens(0)})
	job := f.reserveOn(t, 0, nil, limit.For("held"))
	tx := f.hold(t, limit.For("held"))
	f.until(t, job.ScheduledAt.Add(3200*time.Millisecond))
	j.client(t, sched)
	eventually(t, "it is put off", func() bool {
		now := f.job(t, job.ID)
		return now.State != rivertype.JobStateRunning && now.ScheduledAt.After(job.ScheduledAt.Add(time.Second))
	})
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if job := f.ended(t, j.await(t, 1)[0].id); !paidLate(job) {
		t.Errorf("it has started, and did not pay anew: %s", job.Metadata)
	}
}

// A late job whose ticket says what it took, and not by which reservation, keeps no other
// from paying anew.
func TestALateJobWithoutAReservationHoldsUpNothing(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	limit := ratelimit.MustDefine("noReservation",
		ratelimit.TokenBucket{Rate: 10, Period: time.Second, Capacity: ratelimit.Tokens(0)})
	odd := f.reserveOn(t, 0, nil, limit.For("a"))
	due := f.reserveOn(t, 1, nil, limit.For("b")).ScheduledAt
	if _, err := f.pool.Exec(t.Context(), `UPDATE river_job SET metadata = jsonb_set(metadata, '{weir,more}',
		to_jsonb(regexp_replace(metadata->'weir'->>'more', '"id":"[^"]*"',
			'"id":"00000000-0000-0000-0000-000000000000"'))) WHERE id = $1`, odd.ID); err != nil {
		t.Fatal(err)
	}
	f.until(t, due.Add(3200*time.Millisecond))
	f.exec(t, `UPDATE river_job SET state = 'available' WHERE state = 'scheduled'`)
	j.client(t, sched)
	for _, s := range j.await(t, 2) {
		if job := f.ended(t, s.id); !paidLate(job) {
			t.Errorf("job %d has started, and did not pay anew: %s", s.n, job.Metadata)
		}
	}
}

// What a newer release has written stays as it is, whatever becomes of the attempt.
func TestATicketOfANewerReleaseStays(t *testing.T) {
	t.Parallel()
	const n = 20 // some of which are moved without having come to the worker
	const newer = `{"weir": {"more": "{\"v\":2,\"new\":1}"}}`
	limit := ratelimit.MustDefine("newer",
		ratelimit.TokenBucket{Rate: 1, Period: time.Hour, Capacity: ratelimit.Tokens(1), MaxReserved: ratelimit.Tokens(100)})
	for name, c := range map[string]struct {
		taken float64 // before
		limit bool
		work  error
	}{
		"Reserved": {1, true, nil},
		"Denied":   {101, true, nil},
		"Paused":   {0, false, &scheduler.PauseError{For: time.Hour, Requests: []ratelimit.Request{limit.For("pause")}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, sched, j := exact(t)
			if c.limit {
				j.limited(func(int) []ratelimit.Request { return []ratelimit.Request{limit.Global()} })
			}
			if c.work != nil {
				j.work = func(context.Context, *river.Job[sendArgs]) error { return c.work }
			}
			if c.taken > 0 {
				r := limit.Global().Count(c.taken).OrReserve()
				if _, err := f.limiter.Autocommit(f.pool).RateLimit(t.Context(), r); err != nil {
					t.Fatal(err)
				}
			}
			f.enqueue(t, upTo(n)...)
			if _, err := f.pool.Exec(t.Context(), `UPDATE river_job SET metadata = $1::text::jsonb`, newer); err != nil {
				t.Fatal(err)
			}
			j.client(t, sched, oneWorker)
			eventually(t, "all are put off", func() bool {
				var off int
				if err := f.pool.QueryRow(t.Context(), `SELECT count(*) FROM river_job
					WHERE state = 'scheduled' AND scheduled_at > now() + interval '10 min'`).Scan(&off); err != nil {
					t.Fatal(err)
				}
				return off == n
			})
			for id := range int64(n) {
				var same bool
				if err := f.pool.QueryRow(t.Context(), `SELECT metadata->'weir' = $2::text::jsonb->'weir'
					FROM river_job WHERE id = $1`, id+1, newer).Scan(&same); err != nil || !same {
					t.Errorf("job %d has lost what was written: %s, %v", id+1, f.job(t, id+1).Metadata, err)
				}
				if job := f.job(t, id+1); job.State != rivertype.JobStateScheduled || len(job.Errors) > 0 {
					t.Errorf("job %d is %s: %v", id+1, job.State, job.Errors)
				}
			}
			if c.limit { // nothing was taken that nobody would remember
				if got := f.left(t, limit.Global()); got < 1-c.taken-0.01 {
					t.Errorf("%v left, want %v", got, 1-c.taken)
				}
			}
		})
	}
}
