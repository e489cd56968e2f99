package scheduler_test

import (
	"testing"
	"time"

	"github.com/weir-go/weir/ratelimit"
)

// A pause is extended again and again while hundreds of jobs are due. The first ones that meet it
// move the others along, so that few are fetched to be put off, and the jobs of another key behind
// them start.
func TestAnExtendedPauseMovesWhatIsDueAlong(t *testing.T) {
	t.Parallel()
	f, sched, j := exact(t)
	const n, pauses = 300, 3
	limit := ratelimit.MustDefine("extended", ratelimit.TokenBucket{Rate: 1000, Period: time.Hour})
	jobs := sched.Jobs(f.client)
	f.insertTogether(t, jobs, n, limit.For("k"))
	pause := func(d time.Duration) {
		t.Helper()
		if err := f.limiter.Autocommit(f.pool).Pause(t.Context(), d, limit.For("k")); err != nil {
			t.Fatal(err)
		}
	}
	pause(time.Hour)
	j.client(t, sched, workers(2))
	for i := range pauses {
		other := f.insertBy(t, jobs, sendArgs{n + i}, limit.For("other")).Job.Job.ID
		eventually(t, "the job of another key has started", func() bool { return len(j.await(t, 0)) > i })
		if s := j.await(t, i+1)[i]; s.id != other {
			t.Fatalf("job %d has started in the pause", s.n)
		}
		eventually(t, "all others wait for the end of the pause", func() bool {
			return f.count(t, `state = 'scheduled' AND scheduled_at > now() + interval '50 min'`) == n
		})
		pause(time.Duration(i+2) * time.Hour)
		f.exec(t, `UPDATE river_job SET state = 'available', scheduled_at = now() WHERE state = 'scheduled'`)
	}
	eventually(t, "all wait for the end of the last pause", func() bool {
		return f.count(t, `state = 'scheduled' AND scheduled_at > now() + interval '50 min'`) == n
	})
	var fetched int
	if err := f.pool.QueryRow(t.Context(),
		`SELECT coalesce(sum((metadata->>'snoozes')::int), 0) FROM river_job`).Scan(&fetched); err != nil {
		t.Fatal(err)
	}
	if most := (pauses + 1) * n / 2; fetched > most || fetched == 0 {
		t.Errorf("jobs were fetched to be put off %d times, want at most %d", fetched, most)
	}
	t.Logf("put off at their starts: %d of %d", fetched, (pauses+1)*n)
}
