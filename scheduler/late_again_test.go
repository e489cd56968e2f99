package scheduler_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// reserveOn inserts a job that waits for its tokens, by a client without the plugin.
func (f *fixture) reserveOn(
	t testing.TB, n int, opts *river.InsertOpts, request ratelimit.Request,
) (job *rivertype.JobRow) {
	t.Helper()
	f.inTx(t, func(ctx context.Context, tx pgx.Tx) error {
		in, err := f.jobs.InsertTx(ctx, tx, sendArgs{n}, opts, request.OrReserve())
		if err == nil {
			job, err = in.Job.Job, in.Err()
		}
		return err
	})
	return job
}

// until waits for an instant of the database's clock.
func (f *fixture) until(t testing.TB, at time.Time) {
	t.Helper()
	for d := at.Sub(f.now(t)); d > 0; d = at.Sub(f.now(t)) {
		time.Sleep(d)
	}
}

// A job that was late has paid anew. It is late once more, as nobody works its queue, and starts
// without paying a third time: neither on its own account nor with another one that is late.
func TestAJobThatIsLateTwicePaysAnewOnce(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	limit := ratelimit.MustDefine("twice",
		ratelimit.TokenBucket{Rate: 1, Period: time.Second, Capacity: ratelimit.Tokens(0)})
	const tooLate = 3200 * time.Millisecond
	var job, again *rivertype.JobRow
	started := 0
	untilInTime(t, func(t *testing.T) bool {
		job = f.reserveOn(t, started, &river.InsertOpts{Priority: 4}, limit.For(fmt.Sprint(started)).Count(6))
		f.until(t, job.ScheduledAt.Add(tooLate))
		client := j.client(t, sched, workers(1))
		eventually(t, "it has paid anew, and is put off", func() bool {
			again = f.job(t, job.ID)
			return again.State != rivertype.JobStateRunning && again.ScheduledAt.After(job.ScheduledAt.Add(time.Second))
		})
		stop(t, client)
		again = f.job(t, job.ID)
		before := started
		started = len(j.await(t, 0))
		return started == before // and not: its new time came, and it started
	})

	other := f.reserveOn(t, 100, nil, limit.For("b").Count(1))
	f.until(t, again.ScheduledAt.Add(tooLate))
	f.until(t, other.ScheduledAt.Add(tooLate))
	// Now the other one comes first, by its priority.
	f.exec(t, `UPDATE river_job SET state = 'available' WHERE state = 'scheduled'`)
	j.client(t, sched, workers(1))
	for _, s := range j.await(t, started+2) {
		if s.id == job.ID && !s.due.Equal(again.ScheduledAt) {
			t.Errorf("it was due at %v, and then at %v", again.ScheduledAt, s.due)
		}
		if s.id == other.ID && !s.due.After(other.ScheduledAt) {
			t.Errorf("the other one has not paid: it was due at %v", s.due)
		}
	}
}

// A job that is due and has not started keeps its time while rounds pass: by that it is known to
// be late.
func TestTheRoundLeavesWhatIsLateWhereItIs(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	f.exec(t, `INSERT INTO river_queue (name, created_at, updated_at) VALUES ('unworked', now(), now())`)
	j.client(t, sched)
	var jobs []*rivertype.JobRow
	for i := range 6 { // some of them before River's leader makes it available, which it does every 5 s
		jobs = append(jobs, f.reserveOn(t, i, &river.InsertOpts{Queue: "unworked"},
			wait.For(time.Now().String()).Count(1020)))
		time.Sleep(1100 * time.Millisecond)
	}
	f.roundHasPassed(t)
	for _, job := range jobs {
		if at := f.job(t, job.ID).ScheduledAt; !at.Equal(job.ScheduledAt) {
			t.Errorf("job %d was moved by %v", job.ID, at.Sub(job.ScheduledAt))
		}
	}
}

// roundHasPassed waits until a round has made a job available, earlier than River's leader would,
// which does so five seconds ahead. If the round comes that late, it waits for another one.
func (f *fixture) roundHasPassed(t testing.TB) {
	t.Helper()
	for ahead := time.Duration(0); ahead < 6*time.Second; {
		job := f.reserveOn(t, 1000, nil, wait.For(time.Now().String()).Count(1000+20_000))
		eventually(t, "a round makes the job available", func() bool {
			return f.job(t, job.ID).State != rivertype.JobStateScheduled
		})
		ahead = job.ScheduledAt.Sub(f.now(t))
	}
}

// A late job behind others that have paid since stays late until it pays, too: neither a round nor
// what another job's put-off moves along puts it off to behind these.
func TestALateJobIsNotPutOffBehindThoseWhoHavePaid(t *testing.T) {
	t.Parallel()
	limit := ratelimit.MustDefine("late behind others",
		ratelimit.TokenBucket{Rate: 1, Period: time.Second, Capacity: ratelimit.Tokens(0)})
	// late is a job in a queue that is late, behind others that have paid for ten minutes.
	late := func(t *testing.T, f *fixture, opts *river.InsertOpts) *rivertype.JobRow {
		t.Helper()
		job := f.reserveOn(t, 0, opts, limit.For("k"))
		f.until(t, job.ScheduledAt.Add(3500*time.Millisecond))
		f.inTx(t, func(ctx context.Context, tx pgx.Tx) error {
			res, err := f.limiter.RateLimit(ctx, tx, limit.For("k").Count(600).OrReserve())
			if err != nil {
				return err
			}
			taken := res.Reservation()
			return f.limiter.Renew(ctx, tx, &taken)
		})
		return job
	}
	t.Run("ByARound", func(t *testing.T) {
		t.Parallel()
		f, sched, j := exact(t)
		f.exec(t, `INSERT INTO river_queue (name, created_at, updated_at) VALUES ('unworked', now(), now())`)
		// With a leader of River's the job could be available before the first round looks at it.
		f.exec(t, `INSERT INTO river_leader (elected_at, expires_at, leader_id) VALUES (now(), now() + interval '1 h', 'nobody')`)
		job := late(t, f, &river.InsertOpts{Queue: "unworked"})
		j.client(t, sched)
		f.roundHasPassed(t)
		if at := f.job(t, job.ID).ScheduledAt; !at.Equal(job.ScheduledAt) {
			t.Errorf("it was moved by %v", at.Sub(job.ScheduledAt))
		}
	})
	t.Run("BesideAnother", func(t *testing.T) {
		t.Parallel()
		f, sched, j := exact(t)
		job := late(t, f, &river.InsertOpts{Priority: 4})
		other := f.reserveOn(t, 1, nil, limit.For("k"))
		f.exec(t, fmt.Sprintf(`UPDATE river_job SET state = 'available', scheduled_at = now() WHERE id = %d`, other.ID))
		f.exec(t, fmt.Sprintf(`UPDATE river_job SET state = 'available' WHERE id = %d`, job.ID))
		j.client(t, sched, func(cfg *river.Config) { // it fetches the other one first, and seldom
			cfg.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 1,
				FetchCooldown: 3 * time.Second, FetchPollInterval: 3 * time.Second}}
		})
		var now *rivertype.JobRow
		eventually(t, "it has paid, or was moved", func() bool {
			now = f.job(t, job.ID)
			return paidLate(now) || !now.ScheduledAt.Equal(job.ScheduledAt)
		})
		if !paidLate(now) {
			t.Errorf("it was moved by %v, and has not paid: %s", now.ScheduledAt.Sub(job.ScheduledAt), now.Metadata)
		}
		if w := woken(t, f.job(t, other.ID)); w == 0 {
			t.Error("the other one was not put off: the test shows nothing")
		}
	})
}

// A worker that puts its job back for an hour has tokens for it; no round brings it forward.
func TestASnoozeOutlivesTheRounds(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	j.work = func(context.Context, *river.Job[sendArgs]) error { return river.JobSnooze(time.Hour) }
	jobs := sched.Jobs(j.client(t, sched))
	id := f.insertBy(t, jobs, sendArgs{0}, budget.For("k").Count(100)).Job.Job.ID
	eventually(t, "it is snoozed", func() bool { return f.job(t, id).State == rivertype.JobStateScheduled })
	at := f.job(t, id).ScheduledAt
	f.roundHasPassed(t)
	f.roundHasPassed(t)
	starts := 0
	for _, s := range j.await(t, 1) {
		if s.id == id { // and none of those that show a round
			starts++
		}
	}
	if job := f.job(t, id); !job.ScheduledAt.Equal(at) || starts != 1 {
		t.Errorf("it was put back until %v, and then was due at %v, after %d starts", at,
			job.ScheduledAt, starts)
	}
}

// What a job has taken that ends a line goes to those behind it. Those whose new times are over by
// then come one after the other, and not all at once.
func TestThoseThatComeForwardComeForwardApart(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	limit := ratelimit.MustDefine("apart",
		ratelimit.TokenBucket{Rate: 10, Period: time.Second, Capacity: ratelimit.Tokens(0)})
	const n = 10
	// At once, or tokens would have come between the first one and those behind it.
	params := []scheduler.InsertManyParams{{Args: sendArgs{n},
		Requests: []ratelimit.Request{limit.For("k").Count(3000).OrReserve()}}}
	for i := range n {
		params = append(params, scheduler.InsertManyParams{Args: sendArgs{i},
			Requests: []ratelimit.Request{limit.For("k").OrReserve()}})
	}
	in, err := sched.Jobs(f.client).InsertMany(t.Context(), f.pool, params)
	if err != nil || !in.OK {
		t.Fatal(in, err)
	}
	first, all := in.Jobs[0].Job.Job, in.Jobs[1:]
	last := all[n-1].Job.Job.ScheduledAt
	f.until(t, last.Add(-300*time.Second)) // from now on each of them is due when the first one leaves
	f.cancel(t, sched.Jobs(f.client), first.ID)
	j.client(t, sched)
	var due [n]time.Time
	for _, s := range j.await(t, n) {
		due[s.n] = s.due
	}
	slices.SortFunc(due[:], time.Time.Compare)
	if d := due[n-1].Sub(due[0]); d < 880*time.Millisecond { // of 900, less what a move is not worth
		t.Errorf("all were due within %v: %v", d, due)
	}
}
