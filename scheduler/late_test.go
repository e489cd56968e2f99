package scheduler_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-go/weir/internal/jobs/ticket"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// After an outage, what is late starts at the rate of its limit, not at once; it pays for its new
// time and for nothing else, and callers that come then stand behind.
func TestWhatIsLateIsPacedAnew(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ clients, shards int }{
		"OneClient": {1, 1}, "ThreeClients": {3, 1}, "OtherShardsMeanwhile": {1, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clients := c.clients
			f, sched, j := exact(t)
			const n, rate, capacity = 30, 10.0, 5.0
			limit := ratelimit.MustDefine("late", ratelimit.TokenBucket{Rate: rate,
				Period: time.Second, Capacity: ratelimit.Tokens(capacity)})
			jobs := sched.Jobs(f.client) // which works none
			var reserved [n]bool         // the first were granted at once
			var was [n]time.Time         // when they were due, by their rows
			var last time.Time
			for i, in := range f.insertTogether(t, jobs, n, limit.For("k").OrReserve()) {
				reserved[i], was[i], last = !in.RunAt.IsZero(), in.Job.Job.ScheduledAt, in.RunAt
			}
			time.Sleep(last.Sub(f.now(t)) + 3500*time.Millisecond) // the outage: all are more than three seconds late
			if c.shards > 1 {
				f.inTx(t, func(ctx context.Context, tx pgx.Tx) error {
					return f.limiter.Reshard(ctx, tx, c.shards, limit.For("k"))
				})
			}
			// When each has its tokens, as its line stands when it starts: what another client pays
			// for later goes before those that still wait.
			var tokens [n]atomic.Pointer[time.Time]
			j.work = func(ctx context.Context, job *river.Job[sendArgs]) error {
				r, _ := scheduler.ReservationOf(job.JobRow)
				states, _, err := f.limiter.Lines(ctx, f.pool, r.Takes...)
				if err != nil {
					return err
				}
				var last time.Time
				for i, k := range r.Takes {
					if at, _ := k.RunAt(states[i]); at.After(last) {
						last = at
					}
				}
				tokens[job.Args.N].Store(&last)
				return nil
			}
			noTokens := newListener("could not take its tokens") // within two seconds
			for range clients {
				j.client(t, sched, func(c *river.Config) { c.Logger = slog.New(noTokens) })
			}
			starts := j.await(t, n)
			late := starts[:0:0]
			for _, s := range starts {
				if reserved[s.n] {
					late = append(late, s)
				}
			}
			for _, s := range late {
				if job := f.ended(t, s.id); !paidLate(job) {
					t.Errorf("job %d has not paid for its new time: %s", s.n, job.Metadata)
				}
			}
			paid := f.paidAnew(t)
			at := func(s start) time.Time { // when it was due at last
				if has := *tokens[s.n].Load(); !has.After(s.at) {
					return has
				}
				return ticket.Latest(s.place(), s.due) // others have paid while it started
			}
			slack := 500 * time.Millisecond // that a busy machine may be late by; more by what it shows
			for _, s := range late {
				slack = max(slack, s.at.Sub(at(s)))
			}
			// A job whose time had come, but that had not started when others paid, has let its token
			// flow by, for one more of them.
			passedBy := 0
			for _, s := range late {
				othersPaid := func(from, to time.Time) bool {
					return slices.ContainsFunc(late, func(o start) bool {
						p := paid[o.id]
						return p.After(paid[s.id]) && p.After(from) && p.Before(to)
					})
				}
				from := f.ended(t, s.id).AttemptedAt.Add(-slack)
				if tokens[s.n].Load().After(s.at) && !othersPaid(from, s.at.Add(slack)) {
					t.Errorf("job %d started at %v, and has its tokens at %v", s.n, s.at, tokens[s.n].Load())
				}
				if othersPaid(s.place(), s.at) {
					passedBy++
				}
			}
			slices.SortFunc(late, func(a, b start) int { return a.at.Compare(b.at) })
			for i, from := range late {
				for k, to := range late[i:] {
					if most := capacity + rate*to.at.Sub(from.at).Seconds() +
						float64(c.shards+passedBy); float64(k+1) > most+slack.Seconds()*rate {
						t.Errorf("%d started within %v", k+1, to.at.Sub(from.at))
					}
				}
			}
			// The times at which they were due show no more, give or take 20 ms: rounds omit small moves.
			slices.SortFunc(late, func(a, b start) int { return at(a).Compare(at(b)) })
			for i, from := range late {
				for k, to := range late[i:] {
					d := at(to).Sub(at(from))
					if most := capacity + rate*d.Seconds() + float64(c.shards-1+passedBy); float64(k+1) > most+0.02*rate {
						t.Errorf("%d were due within %v, and %d were passed by", k+1, d, passedBy)
					}
				}
			}
			slices.SortFunc(late, func(a, b start) int { return a.n - b.n })
			passed := 0
			for i := range late[1:] {
				if late[i+1].due.Before(late[i].due) {
					passed++
				}
			}
			t.Logf("%d were due before the one before them: those at a worker and those in the "+
				"queue may pass each other",
				passed)
			payments := map[time.Time]bool{}
			for _, p := range paid {
				payments[p] = true
			}
			for _, s := range late {
				// When it pays, and if others that were as late have paid before it since: at this
				// client, or at each of the others, if these are slow. Jobs whose workers are slow
				// come to pay one after the other.
				most := max(2, clients, len(payments))
				slow := pgtest.Citus() && noTokens.hasHeard() // that puts it back once more
				if w := woken(t, f.job(t, s.id)); w > most && !slow {
					t.Errorf("job %d was put back %d times", s.n, w)
				}
			}
		})
	}
}

// More of them than pay at a time do not start in the time of those that have paid before, however
// long they stay in the queue behind these.
func TestMoreThanAThousandThatAreLateArePacedAnew(t *testing.T) {
	t.Parallel()
	rig.Large(t)
	f, sched, j := exact(t)
	const n, rate = 1500, 100.0
	limit := ratelimit.MustDefine("lateThousand", ratelimit.TokenBucket{Rate: rate, Period: time.Second,
		Capacity: ratelimit.Tokens(0)})
	jobs := sched.Jobs(f.client) // which works none
	var params []scheduler.InsertManyParams
	for i := range n {
		params = append(params, scheduler.InsertManyParams{
			Args: sendArgs{i}, Requests: []ratelimit.Request{limit.For("k").OrReserve()}})
	}
	err := pgx.BeginFunc(t.Context(), f.pool, func(tx pgx.Tx) error {
		_, err := jobs.InsertManyTx(t.Context(), tx, params)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Duration((n/rate + 3.5) * float64(time.Second))) // the outage
	began := f.now(t)
	paid := func() int { return f.count(t, `metadata::text LIKE '%\\"late\\":true%'`) }
	j.client(t, sched, func(cfg *river.Config) { // it fetches one job at a time, and seldom
		cfg.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 1,
			FetchCooldown: 2 * time.Second, FetchPollInterval: 2 * time.Second}}
	})
	eventually(t, "the first has paid, with a thousand behind it", func() bool { return paid() > 1000 })
	time.Sleep(1500 * time.Millisecond) // for a round, and for what the first has put off beside it
	for range 2 {
		j.client(t, sched, func(cfg *river.Config) {
			cfg.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 20}}
		})
	}
	starts := j.await(t, n)
	from, to := starts[0].at, starts[0].at
	for _, s := range starts {
		for _, at := range []time.Time{s.at, s.place()} { // when its new tokens came, if it starts later
			if at.After(began) && at.Before(from) {
				from = at
			}
		}
		if s.at.After(to) {
			to = s.at
		}
	}
	if took := to.Sub(from).Seconds(); took < n/rate-0.5 {
		t.Errorf("%d jobs started within %.1f s, at a rate of %v a second", n, took, rate)
	}
	eventually(t, "all are completed", func() bool {
		return f.count(t, `state = 'completed'`) == n
	})
	if got := paid(); got != n {
		t.Errorf("%d jobs have paid for their new times, want %v", got, n)
	}
}

// Tokens that were there at once were taken for good: a late job does not take them again.
func TestALateJobPaysOnceForWhatWasThere(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	limit := ratelimit.MustDefine("sec",
		ratelimit.TokenBucket{Rate: 10, Period: time.Second, Capacity: ratelimit.Tokens(2)})
	j.work = j.settles(func(int) ratelimit.Request { return budget.For("k").Count(20) })
	jobs := sched.Jobs(f.client) // which works none
	const n = 6
	for i := range n {
		f.insertBy(t, jobs, sendArgs{i}, limit.For("k").OrReserve(), budget.For("k").Count(20))
	}
	f.wantLeft(t, budget.For("k"), 1000-n*20)
	time.Sleep(5 * time.Second)
	j.client(t, sched)
	j.await(t, n)
	eventually(t, "all are settled", func() bool { return f.settlements(t) == n })
	f.wantLeft(t, budget.For("k"), 1000-n*20)
}

// A queue whose workers were all busy, too.
func TestWhatABackedUpQueueHasMadeLateIsPacedAnew(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	limit := ratelimit.MustDefine("backedUp",
		ratelimit.TokenBucket{Rate: 2, Period: time.Second, Capacity: ratelimit.Tokens(1)})
	j.work = func(ctx context.Context, job *river.Job[sendArgs]) error {
		if job.Args.N == 0 {
			select {
			case <-time.After(7 * time.Second):
			case <-ctx.Done():
			}
		}
		return nil
	}
	jobs := sched.Jobs(j.client(t, sched, func(c *river.Config) {
		c.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 1}}
	}))
	f.insertTogether(t, jobs, 7, limit.For("k").OrReserve())
	starts := j.await(t, 7)
	// When the worker became free there was one token, and five more came within 2.5 s. The test
	// compares the jobs' places in line, because the first one may start late.
	free := starts[0].at.Add(6900 * time.Millisecond)
	for _, s := range starts[1:] {
		if s.place().Before(free) || s.at.Before(s.place()) {
			t.Errorf("job %d started at %v, with a token of %v; the worker was free at %v", s.n, s.at,
				s.place(), free)
		}
	}
	if d := starts[6].place().Sub(starts[1].place()); d < 2400*time.Millisecond {
		t.Errorf("six have their tokens within %v", d)
	}
	for i := 2; i < 7; i++ {
		if starts[i].n < starts[i-1].n {
			t.Errorf("%d started before %d", starts[i-1].n, starts[i].n)
		}
	}
}

// A charge beyond a reservation puts off a job that waits behind it by as much.
func TestAChargePutsAJobOffByAsMuch(t *testing.T) {
	t.Parallel()
	for _, charge := range []float64{5, 20, 80, 320} { // tokens, and so ms
		t.Run(fmt.Sprint(charge), func(t *testing.T) {
			t.Parallel()
			f, sched, j := exact(t)
			jobs := sched.Jobs(j.client(t, sched))
			a, tries := f.limiter.Autocommit(f.pool), 0
			untilInTime(t, func(t *testing.T) bool {
				tries++
				k := wait.For(fmt.Sprint("k", tries)).Count(1000)
				first, err := a.RateLimit(t.Context(), k)
				if err != nil || !first.OK {
					t.Fatal(first, err)
				}
				if more, err := a.RateLimit(t.Context(), k.OrReserve()); err != nil || !more.OK {
					t.Fatal(more, err)
				}
				due := f.insertBy(t, jobs, sendArgs{0}, k.OrReserve()).Job.Job.ScheduledAt
				if ok, err := a.Settle(t.Context(), first.Reservation(), k.Count(1000+charge)); err != nil || !ok {
					t.Fatal(ok, err)
				}
				inTime := f.now(t).Before(due) // else it may have started before it was charged
				due = due.Add(time.Duration(charge) * time.Millisecond)
				if s := j.await(t, tries)[tries-1]; inTime && s.at.Before(due.Add(-time.Microsecond)) {
					t.Errorf("charged %v: started %v after it was due, by its row %v", charge,
						s.at.Sub(due), s.due.Sub(due))
				}
				return inTime
			})
		})
	}
}

// ended waits for a job that has started, and returns it: River writes what an attempt has noted
// together with its end.
func (f *fixture) ended(t testing.TB, id int64) *rivertype.JobRow {
	t.Helper()
	var job *rivertype.JobRow
	eventually(t, "a job that has started is completed", func() bool {
		job = f.job(t, id)
		return job.State == rivertype.JobStateCompleted
	})
	return job
}

// paidLate reports whether a job was so late that it has paid anew.
func paidLate(job *rivertype.JobRow) bool {
	return strings.Contains(string(job.Metadata), `\"late\":true`)
}
