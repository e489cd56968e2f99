package integration

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

func TestAClockSetBackMintsNothingAndMovesNoRowBack(t *testing.T) {
	t.Parallel()
	for name, rule := range map[string]ratelimit.Rule{
		"bucket": ratelimit.TokenBucket{Rate: 10, Period: time.Second},
		"window": ratelimit.FixedWindow{Rate: 10, Period: time.Second},
	} {
		limit := ratelimit.MustDefine(name, rule)
		for _, w := range rig.Ways {
			t.Run(name+"/"+w.Name, func(t *testing.T) {
				t.Parallel()
				pool, clock := pgtest.Pool(t), rig.Clock()
				v := w.Verbs(t, rig.Limiter(t, ratelimit.Config{Portable: w.Portable, Clock: clock.Now}), pool)
				noon := clock.Now()
				for _, step := range []struct {
					at time.Duration
					n  float64
					ok bool
				}{
					{0, 10, true},
					{-time.Hour, 1, false}, // the clock is set back
					{0, 1, false},          // and forth again: nothing came of it
					{-time.Hour, 0, true},  // a take that is granted leaves ts where it is
					{0, 1, false},
					{time.Second, 10, true},
					{0, 1, false},
					{time.Second, 1, false},
					{2 * time.Second, 10, true},
				} {
					clock.Set(noon.Add(step.at))
					res, err := v.RateLimit(t.Context(), limit.For("k").Count(step.n))
					if err != nil || res.OK != step.ok {
						t.Fatalf("at %v: got %+v and %v, want granted %v", step.at, res, err, step.ok)
					}
				}
			})
		}
	}
}

// now() stands still for the length of a transaction. The limiter's clock does not.
func TestALaterDecisionInTheSameTransactionReadsTheClockAnew(t *testing.T) {
	t.Parallel()
	for _, level := range rig.Levels {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
			limit := ratelimit.MustDefine("anew", ratelimit.TokenBucket{Rate: 1, Period: 200 * time.Millisecond})
			tx := rig.Begin(t, pool, level)
			first, err := l.RateLimit(t.Context(), tx, limit.For("k"))
			if err != nil || !first.OK {
				t.Fatal(first, err)
			}
			granted := 1.0
			last := first
			until(t, func() bool {
				res, err := l.RateLimit(t.Context(), tx, limit.For("k"))
				if err != nil {
					t.Fatal(err)
				}
				if res.OK {
					granted++
					last = res
				}
				return granted == 4
			})
			if elapsed := last.At.Sub(first.At); elapsed < 600*time.Millisecond {
				t.Errorf("4 tokens were granted within %v: an interval was credited twice", elapsed)
			}
			rig.Commit(t, tx)
		})
	}
}

// All times of a Result are by the database's clock.
func TestDecisionsAreMadeByTheDatabasesClock(t *testing.T) {
	t.Parallel()
	limit := ratelimit.MustDefine("clock", ratelimit.TokenBucket{Rate: 1, Period: time.Hour})
	rig.EachWay(t, func(t *testing.T, v rig.Verbs, pool *pgxpool.Pool) {
		for _, r := range []ratelimit.Request{limit.For("k"), limit.For("k"), limit.For("k").OrReserve()} {
			before := databaseNow(t, pool)
			res, err := v.RateLimit(t.Context(), r)
			after := databaseNow(t, pool)
			if err != nil {
				t.Fatal(err)
			}
			if res.At.Before(before) || res.At.After(after) {
				t.Errorf("decided at %v, want from %v to %v", res.At, before, after)
			}
			for _, at := range []time.Time{res.RetryAt, res.RunAt} {
				if d := at.Sub(res.At); !at.IsZero() && (d < 59*time.Minute || d > time.Hour) {
					t.Errorf("%v is %v after the decision, want about an hour", at, d)
				}
			}
		}
	})
}

func databaseNow(t testing.TB, pool *pgxpool.Pool) (now time.Time) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), `SELECT clock_timestamp()`).Scan(&now); err != nil {
		t.Fatal(err)
	}
	return now
}

// The database's arithmetic is that of Go to the last bit: who is denied with a RetryAt is denied a
// microsecond before it and granted at it.
func TestDeniedBeforeRetryAtAndGrantedAtIt(t *testing.T) {
	t.Parallel()
	pool, clock := pgtest.Pool(t), rig.Clock()
	l := rig.Limiter(t, ratelimit.Config{Clock: clock.Now})
	noon := clock.Now()
	keys := 0
	rapid.Check(t, func(rt *rapid.T) {
		keys++
		rate := rapid.Float64Range(0.01, 1e6).Draw(rt, "rate")
		period := time.Duration(rapid.Int64Range(1, 86_400_000_000).Draw(rt, "period")) * time.Microsecond
		capacity := rapid.Float64Range(1, 1000).Draw(rt, "capacity")
		var rule ratelimit.Rule = ratelimit.TokenBucket{Rate: rate, Period: period, Capacity: &capacity}
		if rapid.Bool().Draw(rt, "window") {
			rule = ratelimit.FixedWindow{Rate: rate, Period: period, Capacity: &capacity}
		}
		limit, err := ratelimit.Define("exact", rule)
		if err != nil {
			rt.Skip(err)
		}
		r := limit.For(string(rune('a'+keys%26)) + time.Duration(keys).String())
		owed := rapid.Float64Range(0, capacity).Draw(rt, "owed")
		n := rapid.Float64Range(capacity/100, capacity).Draw(rt, "count")

		tx := rig.Begin(t, pool, pgx.ReadCommitted)
		defer func() { _ = tx.Rollback(t.Context()) }()
		take := func(at time.Time, r ratelimit.Request) ratelimit.Result {
			clock.Set(at)
			res, err := l.RateLimit(t.Context(), tx, r)
			if err != nil {
				rt.Fatal(err)
			}
			return res
		}
		if res := take(noon, r.Count(capacity)); !res.OK {
			rt.Fatal(res)
		}
		if owed > capacity/1000 {
			if res := take(noon.Add(time.Duration(keys)*time.Microsecond), r.Count(owed).OrReserve()); !res.OK {
				rt.Fatal(res)
			}
		}
		denied := take(noon.Add(time.Duration(keys+1)*time.Microsecond), r.Count(n))
		if denied.OK {
			return // the rule is fast
		}
		if !denied.RetryAt.After(denied.At) {
			rt.Fatalf("denied at %v with RetryAt %v", denied.At, denied.RetryAt)
		}
		if res := take(denied.RetryAt.Add(-time.Microsecond), r.Count(n)); res.OK {
			rt.Fatalf("granted a microsecond before RetryAt %v", denied.RetryAt)
		}
		if res := take(denied.RetryAt, r.Count(n)); !res.OK {
			rt.Fatalf("denied at RetryAt %v: %+v", denied.RetryAt, res)
		}
	})
}
