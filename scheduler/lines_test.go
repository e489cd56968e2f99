package scheduler_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// Jobs wait in the line of the shard that their tokens were reserved in. They start at its times,
// move up when one before them in it is settled, keep their times when the limit gets other shards,
// and are put off by a pause that comes after that.
func TestJobsWaitInTheLineOfTheirShard(t *testing.T) {
	t.Parallel()
	f, sched, _ := exact(t)
	limit := ratelimit.MustDefine("ownLine",
		ratelimit.TokenBucket{Rate: 2, Period: time.Hour, Capacity: ratelimit.Tokens(2)}, ratelimit.Shards(2))
	r := limit.For("k")
	jobs := sched.Jobs(f.client)
	type waits struct {
		id    int64
		runAt time.Time
		take  ratelimit.Take
	}
	var lines [2][]waits // in each of which a token comes an hour
	// Which line a job is in depends on what the process believes of the shards. If a transaction
	// had to run again, it believes too little of one.
	for i := 0; len(lines[0]) < 4 || len(lines[1]) < 4; i++ {
		if i == 100 {
			t.Fatalf("%d and %d of %d wait, want 4 in each of two lines", len(lines[0]), len(lines[1]), i)
		}
		in := f.insertBy(t, jobs, sendArgs{i}, r.OrReserve())
		res, _ := scheduler.ReservationOf(in.Job.Job)
		if len(res.Takes) != 1 {
			t.Fatalf("job %d took from %d shards, want one", i, len(res.Takes))
		}
		if in.RunAt.IsZero() {
			continue
		}
		if d := in.Job.Job.ScheduledAt.Sub(in.RunAt); d.Abs() > time.Millisecond {
			t.Errorf("job %d is scheduled %v after the time that it was told", i, d)
		}
		at := 0
		if len(lines[0]) > 0 && !res.Takes[0].Behind(lines[0][len(lines[0])-1].take) {
			at = 1
		}
		lines[at] = append(lines[at], waits{in.Job.Job.ID, in.RunAt, res.Takes[0]})
	}

	starts := func(w waits) (at time.Time) {
		t.Helper()
		f.inTx(t, func(ctx context.Context, tx pgx.Tx) error {
			list, err := jobs.Waiting(ctx, tx, r, 100)
			for _, l := range list {
				if l.Job.ID == w.id {
					at = l.Until
				}
			}
			return err
		})
		return at
	}
	want := func(when string, line []waits, moved time.Duration) {
		t.Helper()
		for i, w := range line {
			if d := starts(w).Sub(w.runAt); (d - moved).Abs() > time.Minute {
				t.Errorf("%s: job %d of the line starts %v after the time that it was told, want %v", when, i, d, moved)
			}
		}
	}
	settle := func(w waits) {
		t.Helper()
		f.inTx(t, func(ctx context.Context, tx pgx.Tx) error {
			res, _ := scheduler.ReservationOf(f.job(t, w.id))
			_, err := f.limiter.Settle(ctx, tx, res, r.Count(0))
			return err
		})
	}
	reshard := func(n int) {
		t.Helper()
		f.inTx(t, func(ctx context.Context, tx pgx.Tx) error { return f.limiter.Reshard(ctx, tx, n, r) })
	}
	want("at first", lines[0], 0)
	settle(lines[0][0])
	want("behind work that used nothing", lines[0][1:], -time.Hour)
	want("in the other line", lines[1], 0)
	reshard(1)
	want("in other shards", lines[0][1:], -time.Hour)
	want("in other shards", lines[1], 0)
	settle(lines[1][0]) // in a row that is closed
	want("behind it", lines[1][1:], -time.Hour)
	want("not behind it", lines[0][1:], -time.Hour)
	reshard(2)
	f.inTx(t, func(ctx context.Context, tx pgx.Tx) error { return f.limiter.Pause(ctx, tx, 10*time.Hour, r) })
	want("in a pause", lines[0][1:], 9*time.Hour)
	want("in a pause", lines[1][1:], 9*time.Hour)
	f.inTx(t, func(ctx context.Context, tx pgx.Tx) error { return f.limiter.Resume(ctx, tx, r) })
	want("after it", lines[0][1:], -time.Hour)
	want("after it", lines[1][1:], -time.Hour)
}

// A job that is cancelled moves up those behind it in the line of its shard, and nobody in
// another's, also after the limit has got other shards.
func TestACancelledJobMovesUpTheLineOfItsShard(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	limit := ratelimit.MustDefine("ownCancelled",
		ratelimit.TokenBucket{Rate: 2, Period: 20 * time.Second, Capacity: ratelimit.Tokens(2)}, ratelimit.Shards(2))
	jobs := sched.Jobs(f.client)
	insert := func(n int) (id int64, runAt time.Time, take ratelimit.Take) {
		t.Helper()
		in := f.insertBy(t, jobs, sendArgs{n}, limit.For("k").OrReserve())
		res, _ := scheduler.ReservationOf(in.Job.Job)
		return in.Job.Job.ID, in.RunAt, res.Takes[0]
	}
	insert(0)
	insert(1)
	first, at, take := insert(2)
	var second, other int64 // the next in its line, and the first of the other one
	var secondAt, otherAt time.Time
	for n := 3; second == 0 || other == 0; n++ {
		switch id, runAt, next := insert(n); {
		case second == 0 && next.Behind(take):
			second, secondAt = id, runAt
		case other == 0 && !next.Behind(take):
			other, otherAt = id, runAt
		}
	}
	f.inTx(t, func(ctx context.Context, tx pgx.Tx) error { return f.limiter.Reshard(ctx, tx, 1, limit.For("k")) })
	f.cancel(t, jobs, first)
	j.client(t, sched)
	j.startsBefore(t, other, otherAt, otherAt.Add(20*time.Second))
	j.startsBefore(t, second, at, secondAt)
}
