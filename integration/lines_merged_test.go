package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

// A merged shard is paused until the last of the lines that it was made of ends. What puts these
// lines off puts off that end, too, and a Resume does not bring it forward.
func TestMergedShardsStayPausedAsLongAsTheirLines(t *testing.T) {
	t.Parallel()
	for kind, rule := range map[string]ratelimit.Rule{
		"bucket": ratelimit.TokenBucket{Rate: 2, Period: time.Hour, Capacity: ratelimit.Tokens(10)},
		"window": ratelimit.FixedWindow{Rate: 2, Period: time.Hour, Capacity: ratelimit.Tokens(10),
			Start: time.Now().Truncate(time.Hour)},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t)
			v := limiter(t, ratelimit.Config{}).Autocommit(pool)
			r := ratelimit.MustDefine("paused while merged", rule, ratelimit.Shards(2)).For("k")
			var taken []ratelimit.Result
			for range 3 {
				taken = append(taken, takeOK(t, first(v.RateLimit(t.Context(), r.Count(5).OrReserve()))))
			}
			waits := []ratelimit.Reservation{taken[2].Reservation()} // behind 5 in one of the shards
			reshard(t, pool, nil, 1, r)

			// where the row and those who wait stand
			stand := func() (ends time.Time, runs []time.Time) {
				t.Helper()
				s, err := v.Value(t.Context(), r)
				if err != nil {
					t.Fatal(err)
				}
				for _, res := range waits {
					runs = append(runs, runsAt(t, pool, res))
				}
				return s.PausedUntil, runs
			}
			ends, runs := stand()
			if d := ends.Sub(runs[0]).Abs(); d > time.Minute && kind == "bucket" || d > time.Hour {
				t.Fatalf("the shard is paused until %v, and its line ends at %v", ends, runs[0])
			}
			was := ends
			together := func(what string, by time.Duration) {
				t.Helper()
				now, at := stand()
				for i := range at {
					if d := now.Sub(at[i]) - ends.Sub(runs[i]); d.Abs() > time.Millisecond {
						t.Errorf("%s: the shard is moved %v later than number %d, which waits", what, d, i)
					}
				}
				if d := now.Sub(was) - by; d < -time.Millisecond || d > time.Minute {
					t.Errorf("%s: the shard is paused for %v more, want %v", what, now.Sub(was), by)
				}
			}
			step := func(what string, by time.Duration, do func() error) {
				t.Helper()
				if err := do(); err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				together(what, by)
			}
			pause := func(d time.Duration) func() error {
				return func() error { return v.Pause(t.Context(), d, r) }
			}
			resume := func() error { return v.Resume(t.Context(), r) }
			step("Resume without a pause", 0, resume)
			step("Pause", 2*time.Hour, pause(2*time.Hour))
			step("the same once more", 2*time.Hour, pause(2*time.Hour))
			step("a longer one", 3*time.Hour, pause(3*time.Hour))
			step("a shorter one", 3*time.Hour, pause(time.Hour))
			step("Resume", 0, resume)

			// Behind the merge, and then in a row that is closed while it is paused for it.
			waits = append(waits, takeOK(t, first(v.RateLimit(t.Context(), r.Count(8).OrReserve()))).Reservation())
			ends, runs = stand()
			step("Pause, with work in the shard", 2*time.Hour, pause(2*time.Hour))
			step("Resume", 0, resume)
			for _, n := range []int{2, 1} {
				reshard(t, pool, nil, n, r)
				together(fmt.Sprint("Reshard to ", n), 0)
			}
			step("Pause after further changes", 2*time.Hour, pause(2*time.Hour))
			step("Resume", 0, resume)
		})
	}
}
