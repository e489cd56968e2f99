package scheduler_test

import (
	"context"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/weir-go/weir/ratelimit"
)

// version is a row version of a job that an UPDATE has written.
type version struct {
	states   string // before and after: "available running"
	from, to time.Time
	queue    string
}

func (v version) moved() bool { return !v.from.Equal(v.to) }

// noteVersions has the row versions of all jobs noted from now on.
func (f *fixture) noteVersions(t testing.TB) {
	t.Helper()
	f.exec(t, `CREATE TABLE version (n bigserial, job bigint, states text, was timestamptz, due timestamptz, queue text);
		CREATE FUNCTION note_version() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$ BEGIN
			INSERT INTO version (job, states, was, due, queue)
			VALUES (NEW.id, OLD.state || ' ' || NEW.state, OLD.scheduled_at, NEW.scheduled_at, NEW.queue);
			RETURN NULL;
		END $$;
		CREATE TRIGGER note_version AFTER UPDATE ON river_job FOR EACH ROW EXECUTE FUNCTION note_version()`)
}

// versions are those that were noted, of each job in their order.
func (f *fixture) versions(t testing.TB) map[int64][]version {
	t.Helper()
	rows, err := f.pool.Query(t.Context(), `SELECT job, states, was, due, queue FROM version ORDER BY n`)
	if err != nil {
		t.Fatal(err)
	}
	all := map[int64][]version{}
	var id int64
	var v version
	_, err = pgx.ForEachRow(rows, []any{&id, &v.states, &v.from, &v.to, &v.queue}, func() error {
		all[id] = append(all[id], v)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// tooLate are the jobs that a slow machine has started three seconds late, so that they have paid
// anew.
func tooLate(starts []start, due map[int64]time.Time) map[int64]bool {
	late := map[int64]bool{}
	for _, s := range starts {
		if at, ok := due[s.id]; ok && s.at.Sub(at) > 2900*time.Millisecond {
			late[s.id] = true
		}
	}
	return late
}

// states are the states of a job's row versions.
func states(of []version) string {
	var all []string
	for _, v := range of {
		all = append(all, v.states)
	}
	return strings.Join(all, ", ")
}

// A job is fetched and completed. With its tokens at hand it costs nothing else, and neither does a
// reservation that is kept.
func TestAJobThatNeedNotWaitCostsNoMoreRowVersions(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	const each = 10
	limit := ratelimit.MustDefine("enough", ratelimit.TokenBucket{Rate: 1000, Period: time.Hour})
	j.limited(func(n int) []ratelimit.Request {
		if n < each {
			return nil
		}
		return []ratelimit.Request{limit.For("k")}
	})
	f.noteVersions(t)
	noTokens := newListener("could not take its tokens") // within two seconds
	jobs := sched.Jobs(j.client(t, sched, func(c *river.Config) { c.Logger = slog.New(noTokens) }))
	f.enqueue(t, upTo(2*each)...) // plain ones, and those of a limited worker
	f.insertTogether(t, jobs, each, limit.For("k"))
	due := map[int64]time.Time{}
	for n := range each {
		job := f.reserve(t, jobs, n, time.Second)
		due[job.ID] = job.ScheduledAt
	}
	starts := j.await(t, 4*each)
	late := tooLate(starts, due)
	for _, s := range starts {
		late[s.id] = late[s.id] || s.n >= each && noTokens.hasHeard()
	}
	f.completed(t, 4*each)
	all := f.versions(t)
	for id, of := range all {
		if got := states(of); got != "available running, running completed" && !late[id] {
			t.Errorf("job %d: %s", id, got)
		}
	}
	if len(all) != 4*each {
		t.Errorf("%d jobs were fetched, want %d", len(all), 4*each)
	}
}

// A job that is late, and so is spaced anew, costs at most two row versions more than another one of
// River's, and two more for each other client: those that come to workers together may pay one after
// the other, and put off what has paid before. Each client has one worker, and so one such job.
func TestALateJobCostsTwoRowVersionsMore(t *testing.T) {
	t.Parallel()
	for name, clients := range map[string]int{"OneClient": 1, "ThreeClients": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, sched, j := exact(t)
			const n = 40
			limit := ratelimit.MustDefine("spaced",
				ratelimit.TokenBucket{Rate: 40, Period: time.Second, Capacity: ratelimit.Tokens(0)})
			// Nobody works until all are late, and then all clients begin at once.
			f.exec(t, `INSERT INTO river_queue (name, created_at, updated_at, paused_at)
				VALUES ('default', now(), now(), now())`)
			all := f.insertTogether(t, sched.Jobs(f.client), n, limit.For("k").OrReserve())
			f.exec(t, `UPDATE river_job SET state = 'available'`) // else they are promoted one day
			f.noteVersions(t)
			var client *river.Client[pgx.Tx]
			for range clients {
				client = j.client(t, sched, workers(1))
			}
			f.until(t, all[n-1].Job.Job.ScheduledAt.Add(3200*time.Millisecond))
			if err := client.QueueResume(t.Context(), river.QueueDefault, nil); err != nil {
				t.Fatal(err)
			}
			j.await(t, n)
			f.completed(t, n)
			most := 0
			for id, of := range f.versions(t) {
				more := len(of) - 2 // it is fetched and completed
				most = max(most, more)
				if putOffs := woken(t, f.job(t, id)); more > 2*clients || putOffs > clients {
					t.Errorf("job %d was put off %d times: %s", id, putOffs, states(of))
				}
			}
			t.Logf("at most %d row versions more", most)
			if paid := f.count(t, `metadata::text LIKE '%\\"late\\":true%'`); paid != n {
				t.Errorf("%d of %d jobs were spaced anew", paid, n)
			}
		})
	}
}

// More is due than the workers can do: the jobs stay where they are until a worker is free.
func TestOverloadedWorkersPutNothingBack(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	const n = 100
	limit := ratelimit.MustDefine("over",
		ratelimit.TokenBucket{Rate: 1000, Period: time.Second, Capacity: ratelimit.Tokens(0)})
	jobs := sched.Jobs(j.client(t, sched, workers(2)))
	open := make(chan struct{})
	j.work = func(ctx context.Context, job *river.Job[sendArgs]) error {
		select {
		case <-open:
		case <-ctx.Done():
		}
		return nil
	}
	f.noteVersions(t)
	due, last := map[int64]time.Time{}, time.Time{}
	for _, in := range f.insertTogether(t, jobs, n, limit.For("k").OrReserve()) {
		last = in.Job.Job.ScheduledAt
		due[in.Job.Job.ID] = last
	}
	j.await(t, 2)
	f.until(t, last.Add(time.Second)) // a round passes, or two
	close(open)
	late := tooLate(j.await(t, n), due)
	f.completed(t, n)
	for id, of := range f.versions(t) {
		if got := states(of); got != "available running, running completed" && !late[id] {
			t.Errorf("job %d: %s", id, got)
		}
	}
}

// The row of a job is in the states that the package page lists, and always in its queue. Only
// moves and put-offs change its scheduled_at.
func TestTheRowOfAJobIsAsThePackagePageSays(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	limit := ratelimit.MustDefine("states", ratelimit.TokenBucket{Rate: 100, Period: time.Hour})
	jobs := sched.Jobs(f.client)
	f.noteVersions(t)
	far := f.reserveOn(t, 0, nil, wait.For("far").Count(3000))
	granted := f.insertBy(t, jobs, sendArgs{1}, limit.For("k")).Job.Job.ID
	cancelled := f.insertBy(t, jobs, sendArgs{2}, limit.For("k")).Job.Job.ID
	f.cancel(t, jobs, cancelled)
	if err := f.limiter.Autocommit(f.pool).Pause(t.Context(), time.Second, limit.For("k")); err != nil {
		t.Fatal(err)
	}
	near := f.reserve(t, sched.Jobs(j.client(t, sched)), 3, 500*time.Millisecond)
	due := map[int64]time.Time{far.ID: far.ScheduledAt, near.ID: near.ScheduledAt}
	late := tooLate(j.await(t, 3), due)
	eventually(t, "three are completed", func() bool { return f.count(t, `state = 'completed'`) == 3 })
	want := map[int64]string{
		far.ID:    `^scheduled available, available running, running completed$`,
		near.ID:   `^available running, running completed$`,
		cancelled: `^available cancelled, cancelled cancelled$`,
		granted: `^(available running, running (available|scheduled, scheduled available), )*` +
			`available running, running completed$`,
	}
	for id, of := range f.versions(t) {
		if late[id] {
			continue
		}
		if got := states(of); !regexp.MustCompile(want[id]).MatchString(got) {
			t.Errorf("job %d was %s", id, got)
		}
		for _, v := range of {
			putOff := v.states == "running available" || v.states == "running scheduled"
			if v.queue != river.QueueDefault || v.moved() && !putOff {
				t.Errorf("job %d: %+v", id, v)
			}
		}
	}
}

// Metadata is anybody's. A job that loses its ticket is as River has it: it starts when it is due.
func TestAJobWhoseMetadataIsReplacedStartsWhenItIsDue(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	due := map[int64]time.Time{}
	for n := range 5 {
		job := f.reserve(t, sched.Jobs(f.client), n, time.Second+time.Duration(n)*100*time.Millisecond)
		due[job.ID] = job.ScheduledAt
	}
	f.exec(t, `UPDATE river_job SET metadata = '{"mine": 1}'`)
	j.client(t, sched)
	punctual(t, j.await(t, len(due)), due)
	f.completed(t, len(due))
	if n := f.count(t, `metadata = '{"mine": 1}'`); n != len(due) {
		t.Errorf("%d of %d jobs have kept their metadata", n, len(due))
	}
}
