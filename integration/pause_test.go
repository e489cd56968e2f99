package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/weirtest"
)

// pausing is one limit and key with a clock that is set, to be told in seconds after rig.Noon.
type pausing struct {
	t     *testing.T
	l     *ratelimit.Limiter
	pool  *pgxpool.Pool
	v     rig.Verbs
	clock *weirtest.Clock
	r     ratelimit.Request
}

func (p pausing) at(seconds float64) pausing {
	p.clock.Set(rig.Noon.Add(time.Duration(seconds * float64(time.Second))))
	return p
}

func (p pausing) pause(seconds float64) {
	p.t.Helper()
	if err := p.v.Pause(p.t.Context(), time.Duration(seconds*float64(time.Second)), p.r); err != nil {
		p.t.Fatal(err)
	}
}

func (p pausing) resume() {
	p.t.Helper()
	if err := p.v.Resume(p.t.Context(), p.r); err != nil {
		p.t.Fatal(err)
	}
}

func seconds(t time.Time) float64 { return t.Sub(rig.Noon).Seconds() }

func (p pausing) check(
	verb string, res ratelimit.Result, err error, ok bool, value, when, delay float64,
) ratelimit.Result {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
	if o := res.Outcomes[0]; res.OK != ok || o.Value != value || o.Delay.Seconds() != delay {
		p.t.Errorf("%s at %v: %+v, want granted %v, %v left, a delay of %v", verb,
			seconds(p.clock.Now()), res, ok, value, delay)
	}
	at := res.RetryAt
	if res.OK {
		at = res.RunAt
	}
	if when == 0 && !at.IsZero() || when != 0 && seconds(at) != when {
		p.t.Errorf("%s at %v: until %v, want %v", verb, seconds(p.clock.Now()), seconds(at), when)
	}
	return res
}

// take also holds the take against the check before it. when is RunAt or RetryAt, 0 if granted now.
func (p pausing) take(n float64, reserve, ok bool, value, when, delay float64) ratelimit.Result {
	p.t.Helper()
	r := p.r.Count(n)
	if reserve {
		r = r.OrReserve()
	}
	res, err := p.v.CheckRateLimit(p.t.Context(), r)
	p.check("check", res, err, ok, value, when, delay)
	res, err = p.v.RateLimit(p.t.Context(), r)
	return p.check("take", res, err, ok, value, when, delay)
}

// pausedEachWay runs the test by each way of calling, for one rule.
func pausedEachWay(t *testing.T, rule ratelimit.Rule, test func(p pausing)) {
	limit := ratelimit.MustDefine("paused", rule)
	for _, w := range rig.Ways {
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			c := weirtest.NewClock(rig.Noon)
			l, pool := rig.Limiter(t, ratelimit.Config{Portable: w.Portable, Clock: c.Now}), pgtest.Pool(t)
			test(pausing{t, l, pool, w.Verbs(t, l, pool), c, limit.For("k")})
		})
	}
}

var (
	oneASecond = ratelimit.TokenBucket{Rate: 8, Period: 8 * time.Second, MaxReserved: ratelimit.Tokens(8)}
	tenAMinute = ratelimit.FixedWindow{Rate: 10, Period: time.Minute, Start: rig.Noon}
)

// What a bucket had is there when the pause is over, and no more; what was owed is repaid that much
// later.
func TestTimeStandsStillForAPausedBucket(t *testing.T) {
	t.Parallel()
	pausedEachWay(t, oneASecond, func(p pausing) {
		p.at(0).take(8, false, true, 0, 0, 0)
		p.at(2).take(4, true, true, -2, 4, 0) // reserved before the pause
		p.at(3).pause(10)
		p.at(3).take(1, false, false, -1, 15, 10)
		p.at(12.5).take(0, false, false, -1, 14, 10)
		p.at(13).take(1, false, false, -1, 15, 10)
		p.at(14).take(0, false, true, 0, 0, 10) // four seconds after it was reserved, and ten of the pause
		p.at(15).take(1, false, true, 0, 0, 10)
	})
}

// A window that a pause reaches into goes on with what the one that it began in had left.
func TestTimeStandsStillForAPausedWindow(t *testing.T) {
	t.Parallel()
	pausedEachWay(t, tenAMinute, func(p pausing) {
		p.at(50).take(13, true, true, -3, 60, 0)
		p.at(55).pause(100) // to 155: two windows begin
		p.at(130).take(0, false, false, -3, 180, 120)
		p.at(155).take(1, false, false, -3, 180, 120)
		p.at(179).take(1, true, true, -4, 180, 120)
		p.at(180).take(6, false, true, 0, 0, 120)
		p.at(185).pause(10) // within a window
		p.at(194).take(0, false, false, 0, 195, 120)
		p.at(195).take(0, false, true, 0, 0, 120)
		p.at(240).take(10, false, true, 0, 0, 120)
	})
}

// The longer of two pauses counts, and each second of both together once.
func TestALongerPauseExtendsAShorterOne(t *testing.T) {
	t.Parallel()
	pausedEachWay(t, oneASecond, func(p pausing) {
		p.at(0).take(8, false, true, 0, 0, 0)
		p.at(1).pause(10)
		p.at(5).pause(2) // shorter
		p.at(5).take(1, false, false, 1, 11, 10)
		p.at(6).pause(10)
		p.at(11).take(1, false, false, 1, 16, 15)
		p.at(17).take(1, false, true, 1, 0, 15)
		p.at(20).pause(5) // another
		p.at(24).take(4, false, false, 4, 25, 20)
		p.at(25).take(4, false, true, 0, 0, 20)
	})
}

func TestResumeEndsAPauseEarly(t *testing.T) {
	t.Parallel()
	t.Run("Bucket", func(t *testing.T) {
		t.Parallel()
		pausedEachWay(t, oneASecond, func(p pausing) {
			p.resume() // there is not even a row
			p.at(0).take(8, false, true, 0, 0, 0)
			p.resume() // no pause
			p.at(1).pause(100)
			p.at(3).take(2, true, true, -1, 102, 100)
			p.at(4).resume()
			p.at(4).take(0, false, false, -1, 5, 3)
			p.at(5).take(0, false, true, 0, 0, 3)
			p.at(6).pause(4)
			p.at(11).resume() // it is over
			p.at(11).take(2, false, true, 0, 0, 7)
		})
	})
	t.Run("Window", func(t *testing.T) {
		t.Parallel()
		pausedEachWay(t, tenAMinute, func(p pausing) {
			p.at(30).take(15, true, true, -5, 60, 0)
			p.at(50).pause(300) // to 350: five windows begin
			p.at(50).take(1, true, true, -6, 360, 300)
			p.at(130).resume() // two have
			p.at(130).take(1, false, false, -6, 180, 120)
			p.at(180).take(4, false, true, 0, 0, 120)
		})
	})
}

// Else a clock that is set back in a pause would credit an interval twice.
func TestResumeByAClockSetBackMintsNothing(t *testing.T) {
	t.Parallel()
	pausedEachWay(t, oneASecond, func(p pausing) {
		p.at(100).take(8, false, true, 0, 0, 0)
		p.at(100).pause(10)
		p.at(50).resume()
		p.at(50).take(1, false, false, 0, 101, 0)
		p.at(100).take(1, false, false, 0, 101, 0)
		p.at(101).take(1, false, true, 0, 0, 0)
	})
}

func TestReservationsAreGrantedDuringAPauseForAfterIt(t *testing.T) {
	t.Parallel()
	pausedEachWay(t, oneASecond, func(p pausing) {
		p.at(0).take(6, false, true, 2, 0, 0)
		p.at(0).pause(10)
		res := p.at(4).take(1, true, true, 1, 10, 10) // of what is there
		if seconds(res.At) != 4 || seconds(res.Outcomes[0].PacedAt) != 10 {
			p.t.Errorf("decided at %v, which is not the clock: %+v", seconds(res.At), res)
		}
		p.at(5).take(0, true, true, 1, 10, 10)
		p.at(5).take(4, true, true, -3, 13, 10)
		p.at(6).take(6, true, false, -3, 11, 10) // nine would be owed
		p.at(11).take(6, true, true, -8, 19, 10)
	})
}

func TestAPauseBeforeTheFirstUse(t *testing.T) {
	t.Parallel()
	for name, rule := range map[string]ratelimit.Rule{"Bucket": oneASecond, "Window": tenAMinute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pausedEachWay(t, rule, func(p pausing) {
				capacity := rig.NumbersOf(rule).Capacity
				p.at(10).pause(60)
				p.at(69).take(1, false, false, capacity, 70, 60)
				p.at(69).take(1, true, true, capacity-1, 70, 60)
				p.at(70).take(capacity-1, false, true, 0, 0, 60)
			})
		})
	}
}

// A balance that has no row is put off by as many windows as one that has. Else what was taken from
// a window that ended before looks as if it were of the present one.
func TestAPauseOfABalanceWithoutARowIsOneOfWholeWindows(t *testing.T) {
	t.Parallel()
	for _, prune := range []bool{true, false} {
		t.Run(fmt.Sprint("pruned ", prune), func(t *testing.T) {
			t.Parallel()
			pausedEachWay(t, tenAMinute, func(p pausing) {
				early := p.at(10).take(10, false, true, 0, 0, 0)
				if p.at(70); prune {
					if done := pruned(p.t, p.l, p.pool, ratelimit.PruneConfig{}); done.Deleted != 1 {
						p.t.Fatalf("%+v", done)
					}
				}
				p.pause(130) // to 200: two windows begin
				p.at(199).take(1, true, true, 9, 200, 120)
				p.at(199).resume()
				p.at(199).take(1, false, true, 8, 0, 120)
				if err := p.v.GiveBack(p.t.Context(), early); err != nil {
					p.t.Fatal(err)
				}
				p.at(200).take(0, false, true, 8, 0, 120)
			})
		})
	}
}

// A pause by windows of another length is no whole number of the take's: what it lacks is not given
// back in part.
func TestATakeIsNotOfThePresentWindowByAPauseOfOtherWindows(t *testing.T) {
	t.Parallel()
	pausedEachWay(t, tenAMinute, func(p pausing) {
		res := p.at(10).take(10, false, true, 0, 0, 0)
		own := p.r
		p.r = own.Rule(ratelimit.FixedWindow{Rate: 10, Period: 45 * time.Second, Start: rig.Noon})
		p.at(12).pause(40) // to 52: one of 45 s begins, and none of a minute
		p.r = own
		p.at(70).take(9, false, true, 1, 0, 45)
		if err := p.v.GiveBack(p.t.Context(), res); err != nil {
			p.t.Fatal(err)
		}
		p.at(70).take(0, false, true, 1, 0, 45)
	})
}

// A reset refills, and tokens are given back, while the pause goes on; also to a window that began
// before it.
func TestAPauseOutlivesAResetAndAGivingBack(t *testing.T) {
	t.Parallel()
	pausedEachWay(t, tenAMinute, func(p pausing) {
		res := p.at(50).take(4, false, true, 6, 0, 0)
		lost := p.at(50).take(1, false, true, 5, 0, 0)
		p.at(55).pause(100)
		if err := p.at(60).v.GiveBack(p.t.Context(), res); err != nil {
			p.t.Fatal(err)
		}
		p.at(130).take(0, false, false, 9, 155, 120)
		again := p.at(130).take(2, true, true, 7, 155, 120)
		if err := p.at(156).v.GiveBack(p.t.Context(), again); err != nil {
			p.t.Fatal(err)
		}
		p.at(160).take(9, false, true, 0, 0, 120)
		p.at(180).take(10, false, true, 0, 0, 120)
		if err := p.v.GiveBack(p.t.Context(), lost); err != nil {
			p.t.Fatal(err)
		}
		p.at(180).take(0, false, true, 0, 0, 120)

		p.at(190).pause(30)
		if err := p.at(200).v.ResetRateLimit(p.t.Context(), p.r); err != nil {
			p.t.Fatal(err)
		}
		p.at(200).take(1, false, false, 10, 220, 120)
		if s, err := p.v.Value(p.t.Context(), p.r); err != nil || s.Value != 10 ||
			seconds(s.PausedUntil) != 220 || s.Delay != 2*time.Minute {
			p.t.Errorf("%+v and %v", s, err)
		}
		p.at(220).take(10, false, true, 0, 0, 120)
		if s, err := p.v.Value(p.t.Context(), p.r); err != nil || !s.PausedUntil.IsZero() {
			p.t.Errorf("%+v and %v, when the pause is over", s, err)
		}
	})
}

// RetryAt is exact, be it the end of the pause or later; a remembered denial does not outlive a
// pause that is ended.
func TestDeniedInAPauseUntilExactlyRetryAt(t *testing.T) {
	t.Parallel()
	pausedEachWay(t, ratelimit.TokenBucket{Rate: 3, Period: 7 * time.Second}, func(p pausing) {
		p.at(0).take(2, false, true, 1, 0, 0)
		p.pause(12.345678)
		for _, n := range []float64{0, 1, 1.7, 3} {
			denied, err := p.at(5).v.RateLimit(p.t.Context(), p.r.Count(n))
			if err != nil || denied.OK || seconds(denied.RetryAt) < 12.345678 {
				p.t.Fatal(denied, err)
			}
			p.clock.Set(denied.RetryAt.Add(-time.Microsecond))
			if res, err := p.v.RateLimit(p.t.Context(), p.r.Count(n)); err != nil || res.OK {
				p.t.Errorf("%v: a microsecond before %v: %+v and %v", n, denied.RetryAt, res, err)
			}
			p.clock.Set(denied.RetryAt)
			if res, err := p.v.CheckRateLimit(p.t.Context(), p.r.Count(n)); err != nil || !res.OK {
				p.t.Errorf("%v: at %v: %+v and %v", n, denied.RetryAt, res, err)
			}
		}
		p.at(6).resume()
		if res, err := p.v.RateLimit(p.t.Context(), p.r.Count(1)); err != nil || !res.OK {
			p.t.Errorf("denied after its pause was ended: %+v and %v", res, err)
		}
	})
}

func TestOnePausedLimitOfSeveralDeniesTheCall(t *testing.T) {
	t.Parallel()
	open, shut := ratelimit.MustDefine("open", oneASecond), ratelimit.MustDefine("shut", oneASecond)
	for _, w := range rig.Ways {
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			c := weirtest.NewClock(rig.Noon)
			v := w.Verbs(t, rig.Limiter(t, ratelimit.Config{Portable: w.Portable, Clock: c.Now}), pgtest.Pool(t))
			if err := v.Pause(t.Context(), time.Minute, shut.For("k"), shut.For("other")); err != nil {
				t.Fatal(err)
			}
			for range 3 { // unexpected, and expected
				res, err := v.RateLimit(t.Context(), open.For("k").Count(3), shut.For("k"))
				if err != nil || res.OK || seconds(res.RetryAt) != 60 || res.Limit != "shut" ||
					!res.Outcomes[0].OK || res.Outcomes[1].OK {
					t.Fatalf("%+v and %v", res, err)
				}
			}
			res, err := v.RateLimit(t.Context(), open.For("k").Count(3).OrReserve(), shut.For("k").OrReserve())
			if err != nil || !res.OK || seconds(res.RunAt) != 60 || res.Limit != "shut" ||
				res.Outcomes[0].Value != 5 || !res.Outcomes[0].PacedAt.IsZero() {
				t.Fatalf("%+v and %v", res, err)
			}
			if err := v.GiveBack(t.Context(), res); err != nil {
				t.Fatal(err)
			}
			if s, err := v.Value(t.Context(), open.For("k")); err != nil || s.Value != 8 {
				t.Errorf("%+v and %v, want all given back", s, err)
			}
		})
	}
}
