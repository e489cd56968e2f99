package integration

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// A merged shard is paused until the last of the lines that it was made of ends. What puts these
// lines off puts off that end, too, and a Resume does not bring it forward.
func TestMergedShardsStayPausedAsLongAsTheirLines(t *testing.T) {
	t.Parallel()
	bucket := ratelimit.TokenBucket{Rate: 2, Period: time.Hour, Capacity: ratelimit.Tokens(10)}
	window := ratelimit.FixedWindow{Rate: 2, Period: time.Hour, Capacity: ratelimit.Tokens(10),
		Start: time.Now().Truncate(time.Minute)}
	for name, c := range map[string]struct {
		rule   ratelimit.Rule
		forgot bool // who pauses and resumes knows nothing of the shards
	}{
		"Bucket":                   {bucket, false},
		"Window":                   {window, false},
		"BucketOfAnUnknownLayout":  {bucket, true},
		"AWindowOfAnUnknownLayout": {window, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t)
			v := rig.Limiter(t, ratelimit.Config{}).Autocommit(pool)
			small := ratelimit.MustDefine("paused while merged", c.rule).For("k")
			r := ratelimit.MustDefine("paused while merged", c.rule, ratelimit.Shards(2)).For("k")
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
			if d := ends.Sub(runs[0]).Abs(); d > time.Hour {
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
			who := func() (ratelimit.Verbs, ratelimit.Request) {
				if c.forgot {
					return rig.Limiter(t, ratelimit.Config{}).Autocommit(pool), small
				}
				return v, r
			}
			pause := func(d time.Duration) func() error {
				return func() error {
					v, r := who()
					return v.Pause(t.Context(), d, r)
				}
			}
			resume := func() error {
				v, r := who()
				return v.Resume(t.Context(), r)
			}
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
				ends, runs = stand()
				reshard(t, pool, nil, n, r)
				now, at := stand()
				for i := range at {
					if d := at[i].Sub(runs[i]); d.Abs() > time.Millisecond || now.Before(ends.Add(-time.Millisecond)) {
						t.Errorf("Reshard to %d: number %d is moved by %v, and the shard is paused until %v, before until %v",
							n, i, d, now, ends)
					}
				}
				ends, runs, was = now, at, now // it may wait for its own line, too
			}
			step("Pause after further changes", 2*time.Hour, pause(2*time.Hour))
			step("Resume", 0, resume)
		})
	}
}

// A row of a former layout that was pruned comes back, closed and without a pause, when somebody
// settles what was taken from it. The limit is resumed all the same.
func TestAClosedRowThatComesBackKeepsNoLimitPaused(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	v := rig.Limiter(t, ratelimit.Config{}).Autocommit(pool)
	r := ratelimit.MustDefine("comes back", ratelimit.TokenBucket{Rate: 8, Period: time.Hour},
		ratelimit.Shards(2)).For("k")
	taken := takeOK(t, first(v.RateLimit(t.Context(), r.Count(2))))
	reshard(t, pool, nil, 1, r)
	rig.Exec(t, pool, `DELETE FROM weir_balance WHERE shard > 0 AND value = '-Infinity'`)
	pausedFor := func() time.Duration {
		t.Helper()
		s, err := v.Value(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if s.PausedUntil.IsZero() {
			return 0
		}
		return s.PausedUntil.Sub(databaseNow(t, pool))
	}
	if err := v.Pause(t.Context(), time.Hour, r); err != nil {
		t.Fatal(err)
	}
	if ok, err := v.Settle(t.Context(), taken.Reservation(), r.Count(1)); err != nil || !ok {
		t.Fatal(ok, err)
	}
	if err := v.Pause(t.Context(), time.Hour, r); err != nil {
		t.Fatal(err)
	}
	if d := pausedFor(); d > time.Hour || d < 30*time.Minute {
		t.Errorf("paused for %v, want an hour: pauses do not add up", d)
	}
	if err := v.Resume(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if d := pausedFor(); d != 0 {
		t.Errorf("paused for %v after Resume", d)
	}
}

// A transaction that changes a layout then finds the rows of the new one, also for a limit that its
// program defines without shards.
func TestRowsAreChangedInTheTransactionThatHasChangedTheirLayout(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	l := rig.Limiter(t, ratelimit.Config{})
	r := ratelimit.MustDefine("changed", ratelimit.TokenBucket{Rate: 8, Period: rig.Century}).For("k")
	for name, change := range map[string]func(v ratelimit.Verbs) error{
		"Pause":          func(v ratelimit.Verbs) error { return v.Pause(t.Context(), time.Hour, r) },
		"Resume":         func(v ratelimit.Verbs) error { return v.Resume(t.Context(), r) },
		"ResetRateLimit": func(v ratelimit.Verbs) error { return v.ResetRateLimit(t.Context(), r) },
	} {
		for _, n := range []int{4, 1} {
			takeOK(t, first(l.Autocommit(pool).RateLimit(t.Context(), r)))
			err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
				if err := l.Reshard(t.Context(), tx, n, r); err != nil {
					return err
				}
				return change(l.In(tx))
			})
			if err != nil {
				t.Errorf("%s after Reshard to %d: %v", name, n, err)
			}
			if err := l.Autocommit(pool).Resume(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			if err := l.Autocommit(pool).ResetRateLimit(t.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
	}
}
