package scheduler_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
)

// What is reserved of a window starts all over it, in its order, and in none but its own.
func TestWindowReservationsAreSpread(t *testing.T) {
	t.Parallel()
	for name, bunch := range map[string]bool{"Spread": false, "Bunch": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setUp(t, scheduler.Config{})
			jobs := scheduler.New(f.limiter, scheduler.Config{Jitter: -1, Bunch: bunch}).Jobs(f.client)
			start := f.now(t).Truncate(time.Second)
			limit := ratelimit.MustDefine("window"+name, ratelimit.FixedWindow{Rate: 10, Period: time.Hour, Start: start})
			f.insertBy(t, jobs, sendArgs{0}, limit.For("k").Count(10)) // the current one
			per := map[time.Duration]int{}
			var last time.Time
			for i := range 30 {
				in := f.insertBy(t, jobs, sendArgs{i}, limit.For("k").OrReserve())
				at := in.Job.Job.ScheduledAt
				if at.Before(in.RunAt) || !at.Before(in.RunAt.Add(time.Hour)) || at.Before(last) {
					t.Errorf("job %d is for %v, of the window from %v, after one for %v", i, at, in.RunAt, last)
				}
				if bunch && !at.Equal(in.RunAt) {
					t.Errorf("job %d is for %v, want the window's start, %v", i, at, in.RunAt)
				}
				if d := at.Sub(last); !bunch && i > 0 && d != 6*time.Minute {
					t.Errorf("job %d comes %v after the one before", i, d)
				}
				last = at
				per[at.Sub(start).Truncate(time.Hour)]++
			}
			for w, n := range per {
				if n != 10 {
					t.Errorf("%d jobs in the window that begins after %v", n, w)
				}
			}
			f.inRC(t, func(tx pgx.Tx) error {
				waiting, err := jobs.Waiting(t.Context(), tx, limit.For("k"), 100)
				if len(waiting) != 30 {
					t.Errorf("%d wait", len(waiting))
				}
				for _, w := range waiting {
					if !w.Until.Equal(w.Job.ScheduledAt) {
						t.Errorf("job %d is for %v, and by its limit for %v", w.Job.ID, w.Job.ScheduledAt, w.Until)
					}
				}
				return err
			})
		})
	}
}

// With jitter, too, work stays in the window that has its tokens.
func TestJitterStaysInTheWindow(t *testing.T) {
	t.Parallel()
	f := setUp(t, scheduler.Config{})
	jobs := scheduler.New(f.limiter, scheduler.Config{Jitter: time.Hour}).Jobs(f.client)
	limit := ratelimit.MustDefine("jittered", ratelimit.FixedWindow{Rate: 20, Period: time.Minute})
	f.insertBy(t, jobs, sendArgs{0}, limit.For("k").Count(20))
	for i := range 300 {
		in := f.insertBy(t, jobs, sendArgs{i}, limit.For("k").OrReserve())
		if in.RunAt.IsZero() && i < 20 { // a new window began after the first
			continue
		}
		if at := in.Job.Job.ScheduledAt; at.Before(in.RunAt) || !at.Before(in.RunAt.Add(time.Minute)) {
			t.Errorf("job %d is for %v, of the window from %v", i, at, in.RunAt)
		}
	}
}
