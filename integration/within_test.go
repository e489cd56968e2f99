package integration

import (
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// anyAhead draws how far ahead of its tokens a request may be granted.
func anyAhead(t *rapid.T, period time.Duration) func(ratelimit.Request) ratelimit.Request {
	within := rapid.SampledFrom([]time.Duration{0, 1, time.Microsecond, time.Millisecond,
		period / 7, period / 2, period, 5 * period / 2, 20 * period}).Draw(t, "within")
	how := rapid.SampledFrom([]string{"now", "now", "now", "now", "reserved", "reserved", "within",
		"on credit", "reserved on credit", "within on credit"}).Draw(t, "ahead")
	return func(r ratelimit.Request) ratelimit.Request {
		switch how {
		case "reserved":
			return r.OrReserve()
		case "within":
			return r.Within(within)
		case "on credit":
			return r.OnCredit()
		case "reserved on credit":
			return r.OnCredit().OrReserve()
		case "within on credit":
			return r.OnCredit().Within(within)
		}
		return r
	}
}

// What is taken from shards is taken as they were seen. If they are paused since, or for longer, it
// would not run in time.
func TestAPauseBetweenLookAndTakeIsKept(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		count, value float64
		seen, later  time.Duration // pauses, 0 for none
		ok           bool
	}{
		"none":                      {5, 1, 0, 0, true},
		"paused":                    {5, 1, 0, time.Minute, false},
		"paused, with tokens there": {5, 10, 0, time.Minute, false},
		"paused for longer":         {5, 1, 500 * time.Millisecond, time.Minute, false},
		"paused for longer, there":  {5, 10, 500 * time.Millisecond, time.Minute, false},
		"paused for as long":        {5, 1, 500 * time.Millisecond, 400 * time.Millisecond, true},
		"paused in time, there":     {5, 10, 500 * time.Millisecond, time.Millisecond, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, clock := pgtest.Pool(t), rig.Clock()
			here, there := rig.Limiter(t, ratelimit.Config{Clock: clock.Now}),
				rig.Limiter(t, ratelimit.Config{Clock: clock.Now}).Autocommit(pool)
			k := ratelimit.MustDefine("kept", ratelimit.TokenBucket{Rate: 10, Period: time.Second},
				ratelimit.Shards(5)).For("k")
			takeOK(t, first(here.Autocommit(pool).RateLimit(t.Context(), k.Count(10-tc.value))))
			pause := func(d time.Duration) {
				if d == 0 {
					return
				}
				if err := there.Pause(t.Context(), d, k); err != nil {
					t.Error(err)
				}
			}
			pause(tc.seen)
			tx := rig.Begin(t, pool, pgx.ReadCommitted)
			meddled := new(sync.Once)
			res, err := here.RateLimit(t.Context(), meddling{tx, meddled, func() {
				pause(tc.later)
			}}, k.Count(tc.count).Within(time.Second))
			if err != nil || res.OK != tc.ok {
				t.Errorf("%+v, %v, want granted %v", res, err, tc.ok)
			}
			meddled.Do(func() { t.Error("the pause was not set in between") })
			if late := res.RunAt.Sub(res.At); res.OK && late > time.Second {
				t.Errorf("granted for %v later", late)
			}
			rig.Commit(t, tx)
			want := tc.value
			if tc.ok {
				want -= tc.count
			}
			if s, err := there.Value(t.Context(), k); err != nil || s.Value != want {
				t.Errorf("%v left, %v, want %v", s.Value, err, want)
			}
		})
	}
}
