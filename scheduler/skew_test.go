package scheduler_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/scheduler"
	"github.com/weir-go/weir/schema"
)

// elsewhen returns a pool on a server of its own whose clock differs from this program's.
func elsewhen(t *testing.T, by string) *pgxpool.Pool {
	t.Helper()
	pgtest.OneServer(t, "the test cannot set the clocks of its nodes")
	_, pool := pgtest.Own(t, pgtest.Faketime(t, by))
	if err := schema.Migrate(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	return pool
}

// A program whose clock is half a minute ahead of the database's, or behind it, starts its jobs as
// any other: what a pause or a limit puts back, too, though River's own snoozes go by the program's
// clock.
func TestClocksThatDisagreeChangeNothing(t *testing.T) {
	t.Parallel()
	for _, skew := range []string{"+30s", "-30s"} {
		t.Run(skew, func(t *testing.T) {
			t.Parallel()
			f := setUpOn(t, elsewhen(t, skew), scheduler.Config{})
			if d := time.Until(f.now(t)).Abs(); d < 25*time.Second {
				t.Fatalf("the clocks differ by %v", d)
			}

			sched := scheduler.New(f.limiter, scheduler.Config{Jitter: -1})
			limit := ratelimit.MustDefine("skew",
				ratelimit.TokenBucket{Rate: 4, Period: time.Second, Capacity: ratelimit.Tokens(1)})
			j := newJournal(f)
			j.limited(func(n int) []ratelimit.Request {
				if n < 100 {
					return nil
				}
				return []ratelimit.Request{limit.Global()}
			})
			jobs := sched.Jobs(j.client(t, sched))
			due := map[int64]time.Time{}
			for i := range 20 {
				job := f.reserve(t, jobs, i, time.Duration(1+rand.IntN(3500))*time.Millisecond)
				due[job.ID] = job.ScheduledAt
			}
			past := time.Now() // by both clocks: the client's and the server's, which River's fetch goes by
			if at := f.now(t); at.Before(past) {
				past = at
			}
			var reserved []start
			var places []time.Time
			limited := 0
			for len(places) < 4 && limited < 80 { // a slow machine charges jobs no faster than tokens come
				var more []river.InsertManyParams
				for range 8 {
					more = append(more, river.InsertManyParams{Args: sendArgs{100 + limited},
						InsertOpts: &river.InsertOpts{ScheduledAt: past}})
					limited++
				}
				if _, err := f.client.InsertMany(t.Context(), more); err != nil {
					t.Fatal(err)
				}
				reserved, places = nil, nil
				for _, s := range j.await(t, 20+limited) {
					if s.n < 100 {
						reserved = append(reserved, s)
					} else if s.takes[0].Ahead() {
						places = append(places, s.place())
					}
				}
			}
			late := punctual(t, reserved, due)
			t.Logf("p50 %v, latest %v", late[10], late[19])
			slices.SortFunc(places, time.Time.Compare)
			anew := len(f.paidAnew(t)) > 0 // they go ahead of others, whose takes do not tell
			for i := range len(places) - 1 {
				if d := places[i+1].Sub(places[i]); d < 250*time.Millisecond-time.Microsecond && !anew {
					t.Errorf("two places are %v apart", d)
				}
			}
			if len(places) < 4 {
				t.Errorf("%d of %d jobs had to wait", len(places), limited)
			}
		})
	}
}
