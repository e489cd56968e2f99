package integration

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// runsAt is when the last part of a reservation may run by now.
func runsAt(t testing.TB, pool *pgxpool.Pool, r ratelimit.Reservation) (last time.Time) {
	t.Helper()
	states, _, err := rig.Limiter(t, ratelimit.Config{}).Lines(t.Context(), pool, r.Takes...)
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range states {
		if run, _ := r.Takes[i].RunAt(s); run.After(last) {
			last = run
		}
	}
	return last
}

// waiters reserves until n reservations wait, of one count each, and returns those.
func waiters(t *testing.T, v rig.Verbs, r ratelimit.Request, n int) (all []ratelimit.Result) {
	t.Helper()
	for len(all) < n {
		if res := takeOK(t, first(v.RateLimit(t.Context(), r.OrReserve()))); !res.RunAt.IsZero() {
			all = append(all, res)
		}
	}
	return all
}

// slow is a limit whose lines move by two tokens an hour for each of four shards.
func slow(name string) ratelimit.Limit {
	return ratelimit.MustDefine(name, ratelimit.TokenBucket{Rate: 8, Period: time.Hour}, ratelimit.Shards(4))
}

// wantMoved checks that each of the reservations runs so much later than it was told.
func wantMoved(t testing.TB, pool *pgxpool.Pool, what string, all []ratelimit.Result, by time.Duration) {
	t.Helper()
	for i, res := range all {
		if d := runsAt(t, pool, res.Reservation()).Sub(res.RunAt); (d - by).Abs() > time.Millisecond {
			t.Errorf("%s: number %d runs %v later than it was told, want %v", what, i, d, by)
		}
	}
}

// Reservations wait in the rows of the layout that they were made in, and a change of layout leaves
// them their times. A pause after it puts them off as well, and its end brings them forward again.
func TestThoseWhoWaitArePausedAfterAChangeOfLayout(t *testing.T) {
	t.Parallel()
	for kind, rule := range map[string]ratelimit.Rule{
		"bucket": ratelimit.TokenBucket{Rate: 8, Period: time.Hour},
		"window": ratelimit.FixedWindow{Rate: 8, Period: time.Hour, Start: time.Now().Truncate(time.Minute)},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t)
			v := rig.Limiter(t, ratelimit.Config{}).Autocommit(pool)
			r := ratelimit.MustDefine("paused", rule, ratelimit.Shards(2)).For("k")
			all := waiters(t, v, r, 6)
			for _, n := range []int{4, 8} {
				reshard(t, pool, nil, n, r)
				wantMoved(t, pool, "after the change", all, 0)
			}
			last := takeOK(t, first(v.RateLimit(t.Context(), r.Count(8).OrReserve()))) // in the present rows
			all = append(all, last)
			for range 2 { // the second changes nothing
				if err := v.Pause(t.Context(), 2*time.Hour, r); err != nil {
					t.Fatal(err)
				}
			}
			off := runsAt(t, pool, all[0].Reservation()).Sub(all[0].RunAt)
			if kind == "window" && off != 2*time.Hour || off < 2*time.Hour || off > 2*time.Hour+time.Minute {
				t.Errorf("put off by %v, want the pause", off)
			}
			for i, res := range all[:6] {
				if d := runsAt(t, pool, res.Reservation()).Sub(res.RunAt); (d - off).Abs() > time.Millisecond {
					t.Errorf("number %d is put off by %v, and the first by %v", i, d, off)
				}
			}
			if err := v.Resume(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			for i, res := range all {
				if d := runsAt(t, pool, res.Reservation()).Sub(res.RunAt); d < 0 || d > time.Minute {
					t.Errorf("number %d is late by %v after the end of the pause", i, d)
				}
			}
		})
	}
}

// A settlement in front of those who wait in a row of a former layout moves them up, and a charge
// does not put them off.
func TestALineOfAFormerLayoutMovesUp(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	v := rig.Limiter(t, ratelimit.Config{}).Autocommit(pool)
	for shards, step := range map[int]time.Duration{1: time.Hour / 8, 4: time.Hour / 2} {
		r := ratelimit.MustDefine(fmt.Sprint("up", shards),
			ratelimit.TokenBucket{Rate: 8, Period: time.Hour}, ratelimit.Shards(shards)).For("k")
		all := waiters(t, v, r, 16)
		reshard(t, pool, nil, 8, r)
		var behind []ratelimit.Result
		for _, res := range all[1:] {
			if res.Reservation().Takes[0].Behind(all[0].Reservation().Takes[0]) {
				behind = append(behind, res)
			}
		}
		if len(behind) < 2 {
			t.Fatalf("%d shards: %d wait behind the first", shards, len(behind))
		}
		settle := func(res ratelimit.Result, used float64) {
			t.Helper()
			s, err := v.Value(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			if ok, err := v.Settle(t.Context(), res.Reservation(), r.Count(used)); err != nil || !ok {
				t.Fatal(ok, err)
			}
			if after, err := v.Value(t.Context(), r); err != nil || math.Abs(after.Value-s.Value-1+used) > 0.1 {
				t.Errorf("%d shards: %v, %v, after a settlement of 1 for %v in %v", shards,
					after.Value, err, used, s.Value)
			}
		}
		settle(all[0], 0)
		wantMoved(t, pool, "after what was not used", behind, -step)
		settle(behind[0], 3)
		wantMoved(t, pool, "after an excess", behind[1:], -step)
	}
}

// Renew charges where the tokens are now, whatever layout a reservation was made in and whatever
// the process knows.
func TestRenewFollowsAChangeOfLayout(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	rule := ratelimit.TokenBucket{Rate: 8, Period: rig.Never}
	for _, from := range []int{1, 4} {
		for _, to := range []int{1, 2, 8} {
			l := rig.Limiter(t, ratelimit.Config{})
			v := l.Autocommit(pool)
			r := ratelimit.MustDefine("renewed", rule, ratelimit.Shards(from)).
				For(string(rune('a'+from)) + string(rune('a'+to)))
			a, b := takeOK(t, first(v.RateLimit(t.Context(), r.Count(3)))),
				takeOK(t, first(v.RateLimit(t.Context(), r.Count(2))))
			reshard(t, pool, nil, to, r)
			wantLeft(t, v, r, 3)
			for _, l := range []*ratelimit.Limiter{l, rig.Limiter(t, ratelimit.Config{})} {
				again := []ratelimit.Reservation{a.Reservation().Again(), b.Reservation().Again()}
				if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
					return l.Renew(t.Context(), tx, &again[0], &again[1])
				}); err != nil {
					t.Fatal(err)
				}
				wantLeft(t, v, r, -2)
				for _, r := range again {
					if ok, err := v.Release(t.Context(), r); err != nil || !ok {
						t.Fatal(ok, err)
					}
				}
				wantLeft(t, v, r, 3)
			}
		}
	}
}

// Prune keeps the rows of former layouts as long as somebody waits in them, and no longer.
func TestPruneKeepsTheRowsInWhichSomebodyWaits(t *testing.T) {
	t.Parallel()
	pool, c := pgtest.Pool(t), rig.Clock()
	l := rig.Limiter(t, ratelimit.Config{Clock: c.Now})
	v := l.Autocommit(pool)
	r := slow("kept").For("k")
	all := waiters(t, v, r, 8)
	reshard(t, pool, c.Now, 2, r)
	pruned(t, l, pool, ratelimit.PruneConfig{})
	other := rig.Limiter(t, ratelimit.Config{Clock: c.Now}).Autocommit(pool) // does not know of the former rows
	if err := other.Pause(t.Context(), time.Hour, r); err != nil {
		t.Fatal(err)
	}
	c.Add(time.Hour)
	pruned(t, l, pool, ratelimit.PruneConfig{})
	for i, res := range all {
		states, _, err := l.Lines(t.Context(), pool, res.Reservation().Takes...)
		if err != nil {
			t.Fatal(err)
		}
		if run, _ := res.Reservation().Takes[0].RunAt(states[0]); run.Sub(res.RunAt) != time.Hour {
			t.Errorf("number %d runs %v later, want the pause of an hour", i, run.Sub(res.RunAt))
		}
	}
	c.Add(2 * time.Hour) // all lines have ended
	c.Add(24 * 31 * time.Hour)
	pruned(t, l, pool, ratelimit.PruneConfig{})
	if n := rowsOf(t, pool, "weir_balance"); n != 0 {
		t.Errorf("%d rows are left of an idle key", n)
	}
}

// A reset by a process that does not know of a change of shards yet leaves the former rows what they
// say of the work that waits in them.
func TestAResetBehindAChangeOfShardsForgetsNobodyWhoWaits(t *testing.T) {
	t.Parallel()
	pool, c := pgtest.Pool(t), rig.Clock()
	l := rig.Limiter(t, ratelimit.Config{Clock: c.Now})
	v := l.Autocommit(pool)
	r := slow("reset").For("k")
	all := waiters(t, v, r, 40) // five hours of work
	reshard(t, pool, c.Now, 2, r)
	if err := v.ResetRateLimit(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	c.Add(2 * time.Hour)
	pruned(t, l, pool, ratelimit.PruneConfig{})
	other := rig.Limiter(t, ratelimit.Config{Clock: c.Now}).Autocommit(pool)
	if err := other.Pause(t.Context(), time.Hour, r); err != nil {
		t.Fatal(err)
	}
	waited := 0
	for i, res := range all {
		if res.RunAt.Before(c.Now()) {
			continue
		}
		waited++
		if run := runsAt(t, pool, res.Reservation()); run.Sub(res.RunAt) != time.Hour {
			t.Errorf("number %d runs %v later, want the pause of an hour", i, run.Sub(res.RunAt))
		}
	}
	if waited == 0 {
		t.Error("nobody waits")
	}
}

// A Pause and settlements of what waits in former rows lock rows in one order.
func TestPausesAndSettlementsOfFormerLayoutsDoNotDeadlock(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	l := rig.Limiter(t, ratelimit.Config{})
	v := l.Autocommit(pool)
	r := slow("order").For("k")
	all := waiters(t, v, r, 12)
	reshard(t, pool, nil, 8, r) // to fewer, and the next call would make more again: see Reshard for deadlocks
	done := make(chan error, 1)
	go func() {
		for _, res := range all {
			if _, err := v.Settle(context.WithoutCancel(t.Context()), res.Reservation(), r.Count(0)); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for i := range 12 {
		err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			if i%2 == 0 {
				return l.Pause(t.Context(), tx, time.Minute, r)
			}
			return l.Resume(t.Context(), tx, r)
		})
		if err != nil {
			t.Error(err)
		}
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Lines that become one may end at different times. What would be granted before the last of them
// has ended would come on top of it: so the new one is paused until then.
func TestMergedLinesWaitForTheLastOfThem(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	v := rig.Limiter(t, ratelimit.Config{}).Autocommit(pool)
	r := ratelimit.MustDefine("merged", ratelimit.TokenBucket{Rate: 2, Period: time.Hour,
		Capacity: ratelimit.Tokens(10)}, ratelimit.Shards(2)).For("k")
	var taken []ratelimit.Result
	for range 3 {
		taken = append(taken, takeOK(t, first(v.RateLimit(t.Context(), r.Count(5).OrReserve()))))
	}
	last := taken[2].Reservation().Takes[0]
	full := taken[0] // of the other shard
	if last.Behind(taken[0].Reservation().Takes[0]) {
		full = taken[1]
	}
	if err := v.GiveBack(t.Context(), full); err != nil {
		t.Fatal(err)
	}
	reshard(t, pool, nil, 1, r)
	ends, _ := last.RunAt(ratelimit.State{})
	res, err := v.RateLimit(t.Context(), r)
	if err != nil || res.OK || res.RetryAt.Sub(ends).Abs() > time.Minute {
		t.Errorf("%+v, %v, want it denied until %v, when the line of 5 ends", res, err, ends)
	}
	s, err := v.Value(t.Context(), r)
	if err != nil || s.PausedUntil.Sub(ends).Abs() > time.Minute || s.Value < 4.9 || s.Value > 5.1 {
		t.Errorf("%+v, %v, want the 5 that there are then, and a pause until %v", s, err, ends)
	}
}
