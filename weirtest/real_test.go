package weirtest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/weirtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// verbs are what the fake has of the real one.
type verbs interface {
	ratelimit.Verbs
	Wait(ctx context.Context, requests ...ratelimit.Request) (ratelimit.Result, error)
	Do(ctx context.Context, fn func(context.Context, func(...ratelimit.Request)) error,
		requests ...ratelimit.Request) error
}

var _ = []verbs{(*ratelimit.Autocommit)(nil), (*ratelimit.Coalesced)(nil), (*weirtest.Limiter)(nil)}

// told is what a Result says, but for Delay: it matters only by its differences, and depends on
// whether a key has a row, which a call that another limit has denied may leave or not.
func told(res ratelimit.Result, err error) string {
	s := fmt.Sprintf("%v %v %v %v %s %q %v", res.OK, res.RunAt, res.RetryAt, res.At, res.Limit, res.Key, class(err))
	for _, o := range res.Outcomes {
		s += fmt.Sprintf("; %s %q %v %.6f %v %v %v %v %v %v %v", o.Limit, o.Key, o.OK, o.Value,
			o.Capacity, o.Rate, o.Period, o.WindowEnds, o.RunAt, o.RetryAt, o.PacedAt)
	}
	for _, t := range res.Reservation().Takes {
		s += fmt.Sprintf("; took %v of %s %q", t.Count, t.Limit, t.Key)
	}
	return s
}

func class(err error) error {
	for _, is := range []error{ratelimit.ErrNeverGranted, ratelimit.ErrInvalid, ratelimit.ErrDenied} {
		if errors.Is(err, is) {
			return is
		}
	}
	return err
}

// waits is for how long the work of a reservation still waits for a limit and key.
func waits(r ratelimit.Reservation, l ratelimit.Limit, key string, s ratelimit.State, now time.Time) (told string) {
	for _, take := range r.Takes {
		if take.Limit == l.Name() && take.Key == key {
			runAt, pacedAt := take.RunAt(s)
			told += fmt.Sprint("; waits ", max(0, runAt.Sub(now)), max(0, pacedAt.Sub(now)))
		}
	}
	return told
}

// Whatever is asked, in any order, the fake says what the real one says.
func TestTheFakeDoesWhatTheRealOneDoes(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		clock := new(weirtest.Clock)
		l, err := ratelimit.New(ratelimit.Config{Citus: pgtest.Citus(), Clock: clock.Now})
		if err != nil {
			t.Fatal(err)
		}
		both := []verbs{l.Autocommit(pool), &weirtest.Limiter{Clock: clock}}
		ctx := t.Context()
		limits := []ratelimit.Limit{
			// Of a period of 2^20 microseconds no fraction is rounded: the fake brings balances up
			// to now where a row stays as it is.
			ratelimit.MustDefine(fmt.Sprint("bucket", run), ratelimit.TokenBucket{Rate: 4,
				Period: 1 << 20 * time.Microsecond, MaxReserved: ratelimit.Tokens(8)},
				ratelimit.SettleWithin(4*time.Second)),
			ratelimit.MustDefine(fmt.Sprint("window", run), ratelimit.FixedWindow{Rate: 4,
				Period: time.Second, MaxReserved: ratelimit.Tokens(8)}),
			ratelimit.MustDefine(fmt.Sprint("window", run), ratelimit.FixedWindow{Rate: 4,
				Period: time.Second, MaxReserved: ratelimit.Tokens(8)}, ratelimit.Shadow()),
		}
		request := rapid.Custom(func(rt *rapid.T) ratelimit.Request {
			l := rapid.SampledFrom(limits).Draw(rt, "limit")
			r := l.For(rapid.SampledFrom([]string{"a", "a", "a", "b"}).Draw(rt, "key")).
				Count(rapid.SampledFrom([]float64{1, 1, 1, 0, 0.5, 2, 4, 5, -1}).Draw(rt, "count"))
			switch rapid.IntRange(0, 9).Draw(rt, "ahead") {
			case 6:
				r = r.Leave(1)
			case 7:
				r = r.OnCredit()
			case 8:
				r = r.OrReserve()
			case 9:
				r = r.Within(time.Second)
			}
			return r
		})
		some := rapid.OneOf(rapid.SliceOfN(request, 1, 1), rapid.SliceOfN(request, 2, 3))
		compare := func(rt *rapid.T, what string,
			do func(verbs) (ratelimit.Result, error)) (results []ratelimit.Result) {
			var all []string
			for _, v := range both {
				res, err := do(v)
				results, all = append(results, res), append(all, told(res, err))
			}
			if all[0] != all[1] {
				rt.Fatalf("%s\nreal %s\nfake %s", what, all[0], all[1])
			}
			return results
		}
		var takes [][]ratelimit.Result
		settle := func(rt *rapid.T, release bool) {
			if len(takes) == 0 {
				rt.Skip()
			}
			results := rapid.SampledFrom(takes).Draw(rt, "take") // perhaps once more
			var used []ratelimit.Request
			for _, o := range results[0].Outcomes {
				for _, l := range limits {
					if l.Name() == o.Limit && rapid.IntRange(0, 3).Draw(rt, "named") > 0 {
						used = append(used, l.For(o.Key).Count(rapid.SampledFrom(
							[]float64{0, 0, 0.5, 1, 2, 3, 6}).Draw(rt, "used")))
					}
				}
			}
			if rapid.IntRange(0, 9).Draw(rt, "wrong") == 9 {
				used = append(used, request.Draw(rt, "wrongly used"))
			}
			var all []string
			for i, v := range both {
				r := results[i].Reservation()
				if len(r.Takes) > 0 {
					r = throughJSON(t, r)
				}
				var settled bool
				var err error
				if release {
					settled, err = v.Release(ctx, r)
				} else {
					settled, err = v.Settle(ctx, r, used...)
				}
				all = append(all, fmt.Sprint(settled, class(err)))
			}
			if all[0] != all[1] {
				rt.Fatalf("settle %v with %v, or release %v\nreal %s\nfake %s",
					results[0].Reservation(), used, release, all[0], all[1])
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"take": func(rt *rapid.T) {
				requests := some.Draw(rt, "requests")
				results := compare(rt, fmt.Sprint("RateLimit ", requests), func(v verbs) (ratelimit.Result, error) {
					return v.RateLimit(ctx, requests...)
				})
				if results[0].OK {
					takes = append(takes, results)
				}
			},
			"check": func(rt *rapid.T) {
				requests := some.Draw(rt, "requests")
				compare(rt, fmt.Sprint("CheckRateLimit ", requests), func(v verbs) (ratelimit.Result, error) {
					return v.CheckRateLimit(ctx, requests...)
				})
			},
			"reset": func(rt *rapid.T) {
				r := request.Draw(rt, "request").Count(1)
				compare(rt, fmt.Sprint("ResetRateLimit ", r), func(v verbs) (ratelimit.Result, error) {
					return ratelimit.Result{}, v.ResetRateLimit(ctx, r)
				})
				takes = nil
			},
			"pause": func(rt *rapid.T) {
				r, d := request.Draw(rt, "request").Count(1),
					time.Duration(rapid.IntRange(0, 2500).Draw(rt, "d"))*time.Millisecond
				compare(rt, fmt.Sprint("Pause ", d, r), func(v verbs) (ratelimit.Result, error) {
					return ratelimit.Result{}, v.Pause(ctx, d, r)
				})
			},
			"resume": func(rt *rapid.T) {
				r := request.Draw(rt, "request").Count(1)
				compare(rt, fmt.Sprint("Resume ", r), func(v verbs) (ratelimit.Result, error) {
					return ratelimit.Result{}, v.Resume(ctx, r)
				})
			},
			"give back": func(rt *rapid.T) {
				if len(takes) == 0 {
					rt.Skip()
				}
				i := rapid.IntRange(0, len(takes)-1).Draw(rt, "take")
				results := takes[i]
				takes = slices.Delete(takes, i, i+1)
				for i, v := range both {
					if err := v.GiveBack(ctx, results[i]); err != nil {
						rt.Fatal(err)
					}
				}
			},
			"reset key": func(rt *rapid.T) {
				key := rapid.SampledFrom([]string{"a", "b", "of nobody", ""}).Draw(rt, "key")
				compare(rt, fmt.Sprintf("ResetKey %q", key), func(v verbs) (ratelimit.Result, error) {
					return ratelimit.Result{}, v.ResetKey(ctx, key)
				})
			},
			"settle":  func(rt *rapid.T) { settle(rt, false) },
			"release": func(rt *rapid.T) { settle(rt, true) },
			"do": func(rt *rapid.T) { // what would have to wait is denied, as nobody moves the clock
				requests := some.Draw(rt, "requests")
				for i, r := range requests {
					requests[i] = r.Within(0)
				}
				used := rapid.SliceOfN(request, 0, 2).Draw(rt, "used")
				requests = append(requests, used...)
				for i := len(requests) - len(used); i < len(requests); i++ {
					requests[i] = requests[i].Count(1).Within(0)
				}
				compare(rt, fmt.Sprint("Do ", requests, " used ", used), func(v verbs) (ratelimit.Result, error) {
					return ratelimit.Result{}, v.Do(ctx,
						func(_ context.Context, report func(...ratelimit.Request)) error {
							report(used...)
							return nil
						}, requests...)
				})
			},
			"time": func(rt *rapid.T) {
				clock.Add(time.Duration(rapid.Int64Range(0, 1_500_000).Draw(rt, "us")) * time.Microsecond)
			},
			"": func(rt *rapid.T) {
				for _, limit := range limits {
					for _, key := range []string{"a", "b"} {
						var all []string
						var states []ratelimit.State
						for _, v := range both {
							s, err := v.Value(ctx, limit.For(key))
							states = append(states, s)
							all = append(all, fmt.Sprintf("%.6f %v %v %.6f %v", s.Value, s.TS,
								s.PausedUntil, s.Moved, err))
						}
						for _, results := range takes {
							for i, res := range results {
								all[i] += waits(res.Reservation(), limit, key, states[i], clock.Now())
							}
						}
						if all[0] != all[1] {
							rt.Fatalf("%s %s\nreal %s\nfake %s", limit.Name(), key, all[0], all[1])
						}
					}
				}
			},
		})
	})
}

// By the clock of the process whoever would have to wait for too long does not begin to.
func TestTheFakeDeniesAWaitForLongerThanItMayLast(t *testing.T) {
	t.Parallel()
	limit := ratelimit.MustDefine("limit",
		ratelimit.TokenBucket{Rate: 1, Period: time.Hour, MaxReserved: ratelimit.Tokens(9)})
	window := ratelimit.MustDefine("window",
		ratelimit.FixedWindow{Rate: 10, Period: time.Hour, MaxReserved: ratelimit.Tokens(20)})
	l, err := ratelimit.New(ratelimit.Config{Citus: pgtest.Citus()})
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range map[string]interface {
		verbs
		Wait(ctx context.Context, requests ...ratelimit.Request) (ratelimit.Result, error)
	}{"real": l.Autocommit(pgtest.Pool(t)), "fake": &weirtest.Limiter{}} {
		weirtest.Drain(t, v, limit.For("k"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		most := 59*time.Minute + time.Millisecond // rounded
		if res, err := v.Wait(ctx, limit.For("k")); !errors.Is(err, ratelimit.ErrDenied) ||
			res.RetryAfter() < 58*time.Minute || res.RetryAfter() > most {
			t.Errorf("%s: %s", name, weirtest.Describe(res, err))
		}
		if res, err := v.Wait(ctx, limit.For("k").Count(2)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %s", name, weirtest.Describe(res, err))
		}
		// Its window may begin within the minute, and mostly does not: nobody waits to see.
		if res, err := v.Wait(ctx, window.For("k").Count(15)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %s", name, weirtest.Describe(res, err))
		}
		if s, err := v.Value(t.Context(), limit.For("k")); err != nil || s.Value < 0 {
			t.Errorf("%s has %v left (%v)", name, s.Value, err)
		}
	}
}
