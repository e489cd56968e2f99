package scheduler_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/ratelimit"
)

// The jobs of a limit with shards wait in one line, at the pace of the whole limit: a pause puts
// all of them off, and what one of them did not use brings forward those behind it.
func TestJobsOfALimitWithShardsWaitInOneLine(t *testing.T) {
	t.Parallel()
	untilInTime(t, waitInOneLine)
}

func waitInOneLine(t *testing.T) bool {
	t.Helper()
	f, sched, j := exact(t)
	limit := ratelimit.MustDefine("sharedLine", ratelimit.TokenBucket{Rate: 10, Period: time.Second,
		Capacity: ratelimit.Tokens(8)}, ratelimit.Shards(4))
	j.work = j.settles(func(n int) ratelimit.Request {
		if n == 1 {
			return limit.For("k").Count(0) // it has not used its 8
		}
		return limit.For("k").Count(8)
	})
	jobs := sched.Jobs(f.client) // which works none: the pause comes first
	const n = 5
	var first time.Time
	inTime := true
	f.inTx(t, func(ctx context.Context, tx pgx.Tx) error {
		for i := range n {
			in, err := jobs.InsertTx(ctx, tx, sendArgs{i}, nil, limit.For("k").Count(8).OrReserve())
			if err != nil {
				return err
			}
			if i == 0 {
				if first = in.At; !in.RunAt.IsZero() {
					t.Fatalf("a full limit has reserved: %+v", in.Result)
				}
				continue
			}
			want := first.Add(time.Duration(i) * 800 * time.Millisecond)
			if !in.At.Before(want) { // its tokens were there
				inTime = false
				return nil
			}
			if d := in.RunAt.Sub(want); d < -time.Millisecond || d > 10*time.Millisecond {
				t.Errorf("job %d runs %v after its turn", i, d)
			}
		}
		return nil
	})
	if !inTime {
		return false
	}
	const pause = 500 * time.Millisecond
	f.inTx(t, func(ctx context.Context, tx pgx.Tx) error { return f.limiter.Pause(ctx, tx, pause, limit.For("k")) })
	j.client(t, sched)
	starts := j.await(t, n)
	due := make([]time.Time, n)
	for _, s := range starts {
		due[s.n] = s.at
	}
	if d := due[1].Sub(first); d < 1250*time.Millisecond {
		t.Errorf("the second started after %v: a pause of %v was not kept", d, pause)
	}
	// Those behind the second come 0.8 s earlier for what it gave back, and are late by the pause.
	late := max(0, due[1].Sub(first)-1300*time.Millisecond) // the second, which gives back
	d := due[4].Sub(first)
	if d < 2850*time.Millisecond {
		t.Errorf("the last started after %v, want 2.9 s", d)
	}
	f.wantLeft(t, limit.For("other"), 8)
	return d <= 3600*time.Millisecond+late || t.Failed()
}

// Cancelled work gives back to all shards, and the line moves up.
func TestAJobOfALimitWithShardsIsCancelled(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	limit := ratelimit.MustDefine("sharedAndLeft", ratelimit.TokenBucket{Rate: 1,
		Period: time.Second, Capacity: ratelimit.Tokens(4)}, ratelimit.Shards(3))
	jobs := sched.Jobs(f.client)
	f.insertBy(t, jobs, sendArgs{0}, limit.For("k").Count(4))
	second := f.insertBy(t, jobs, sendArgs{1}, limit.For("k").Count(60).OrReserve())
	third := f.insertBy(t, jobs, sendArgs{2}, limit.For("k").Count(4).OrReserve())
	from := f.now(t)
	before := f.left(t, limit.For("k"))
	f.cancel(t, jobs, second.Job.Job.ID)
	d := f.left(t, limit.For("k")) - before
	if flowed := f.now(t).Sub(from).Seconds(); d < 60 || d > 60+flowed+0.01 {
		t.Errorf("%v came back, want 60 and at most the %v that have flowed in", d, flowed)
	}
	j.client(t, sched)
	at := third.Job.Job.ScheduledAt
	j.startsBefore(t, third.Job.Job.ID, at.Add(-time.Minute), at)
}
