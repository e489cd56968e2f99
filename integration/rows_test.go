package integration

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-go/weir/internal/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

// FuzzRows meets rows as another release, another rule, a wrong clock or a hand at psql may have left them: whatever the
// schema lets in is decided on as [ratelimit.Decide] says, a denial tells the truth, and a reset mends it.
func FuzzRows(f *testing.F) {
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC).UnixMicro()
	year := int64(365 * 24 * time.Hour / time.Microsecond)
	type row struct {
		value          float64
		ts             int64
		capacity, rate float64
		period         int64
		windowed       bool
		origin         int64
	}
	for _, r := range []row{
		{4, noon - 1e6, 10, 10, 60e6, false, 0},                    // sound
		{-3, noon + 30e6, 10, 10, 60e6, false, 0},                  // reserved ahead, and ahead of the clock
		{25, noon - 1, 25, 5, 1e6, false, 0},                       // by a larger rule
		{7, noon, 10, 10, 60e6, true, noon - 30e6},                 // by a rule of the other kind
		{1 << 53, noon, 10, 10, 60e6, false, 0},                    // reset
		{math.Inf(-1), noon, 1, 1, 1, false, 0},                    // closed for good
		{-1e300, noon - year, 1, 1, 1, false, 0},                   // owes what nobody can
		{1.7e308, noon - year, 1e15, 1e15, 1, true, 0},             // has what nobody can
		{1, noon + 5000*year, 10, 10, 60e6, true, -60 * year},      // by a clock gone wild
		{-48, noon - 1900*year - 12345677, 10, 10, 60e6, false, 0}, // from before microseconds are exact
		{0.1 + 0.2, -1 << 55, 0, 5e-324, math.MaxInt64, false, 0},
		{math.Inf(1), noon, 1, 1, 1, false, 0}, // what the schema keeps out
		{math.NaN(), noon, math.NaN(), 0, 0, false, 0},
	} {
		for _, window := range []bool{false, true} {
			f.Add(window, 10.0, int64(60e6), 10.0, 5.0, int64(0), r.value, r.ts, r.capacity, r.rate, r.period, r.windowed, r.origin, noon, 3.0, window)
			f.Add(window, 1.0/3, int64(7), 2.5, 0.0, noon, r.value, r.ts, r.capacity, r.rate, r.period, r.windowed, r.origin, noon+1, 0.1, !window)
		}
	}

	pool, clock := pgtest.Pool(f), newClock()
	ways := []verbs{
		limiter(f, ratelimit.Config{Clock: clock.now}).Autocommit(pool),
		limiter(f, ratelimit.Config{Clock: clock.now, Portable: true}).Autocommit(pool),
	}
	f.Fuzz(func(t *testing.T, window bool, rate float64, period int64, capacity, reserved float64, start int64,
		value float64, ts int64, rowCapacity, rowRate float64, rowPeriod int64, windowed bool, origin int64,
		now int64, n float64, reserve bool,
	) {
		if period > math.MaxInt64/1000 || period < math.MinInt64/1000 {
			return // no Duration
		}
		var rule ratelimit.Rule = ratelimit.TokenBucket{Rate: rate, Period: micros(period), Capacity: &capacity, MaxReserved: &reserved}
		if window {
			rule = ratelimit.FixedWindow{Rate: rate, Period: micros(period), Capacity: &capacity, MaxReserved: &reserved, Start: time.UnixMicro(start)}
		}
		limit, err := ratelimit.Define("limit", rule)
		if err != nil {
			return
		}
		ask := limit.For("k").Count(n)
		if reserve {
			ask = ask.OrReserve()
		}
		at := time.UnixMicro(now)
		if at.UTC().Year() < 1 || at.UTC().Year() > 9000 {
			return // no time for a clock
		}
		want, err := ratelimit.Decide(ask, ratelimit.State{Value: value, TS: time.UnixMicro(ts)}, at)
		predicted := err == nil // else the row is none that Go's times can hold
		for i, v := range ways {
			clock.set(at)
			var from any
			if windowed {
				from = time.UnixMicro(origin)
			}
			_, err := pool.Exec(t.Context(), `INSERT INTO weir_balance AS b (name, key, value, ts, capacity, rate, period, origin)
				VALUES ('limit', 'k', $1, $2, $3, $4, $5, $6) ON CONFLICT (name, key, shard) DO UPDATE SET value = excluded.value, ts = excluded.ts,
				capacity = excluded.capacity, rate = excluded.rate, period = excluded.period, origin = excluded.origin`,
				value, time.UnixMicro(ts), rowCapacity, rowRate, rowPeriod, from)
			if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) && (pg.Code == "23514" || pg.Code == "22008") {
				return // the schema keeps it out, or there is no such time
			}
			if err != nil {
				t.Fatal(err)
			}

			checked, err := v.CheckRateLimit(t.Context(), ask)
			if errors.Is(err, ratelimit.ErrInvalid) {
				return // the request is wrong, not the row
			}
			if err != nil {
				t.Fatalf("way %d: check: %v", i, err)
			}
			res, err := v.RateLimit(t.Context(), ask)
			if err != nil {
				t.Fatalf("way %d: take: %v", i, err)
			}
			if res.OK != checked.OK || !res.RunAt.Equal(checked.RunAt) || !res.RetryAt.Equal(checked.RetryAt) {
				t.Fatalf("way %d: %+v, and its check said %+v", i, res, checked)
			}
			if o := res.Outcomes[0]; predicted && (o.OK != want.OK || !o.RunAt.Equal(want.RunAt) || !o.RetryAt.Equal(want.RetryAt) ||
				math.Float64bits(o.Value) != math.Float64bits(want.State.Value)) {
				t.Fatalf("way %d: %+v, want %+v", i, o, want)
			}
			if o := res.Outcomes[0]; o.Value > capacity || res.OK && o.Value < -reserved || res.OK == res.RetryAt.After(at) {
				t.Fatalf("way %d: %+v of a capacity of %v, and %v reserved", i, res, capacity, reserved)
			}
			end := time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
			if !res.OK && res.RetryAt.Add(micros(period)).Before(end) { // else the end of time has cut it off
				clock.set(res.RetryAt.Add(-time.Microsecond))
				if r, err := v.CheckRateLimit(t.Context(), ask); err != nil || r.OK {
					t.Fatalf("way %d: %+v, but just before then %+v and %v", i, res, r, err)
				}
				clock.set(res.RetryAt)
				if res, err = v.RateLimit(t.Context(), ask); err != nil || !res.OK {
					t.Fatalf("way %d: at RetryAt %v: %+v and %v", i, clock.now(), res, err)
				}
			}
			if err := v.GiveBack(t.Context(), res); err != nil {
				t.Fatalf("way %d: give back: %v", i, err)
			}
			if s, err := v.Value(t.Context(), ask); err != nil || s.Value > capacity {
				t.Fatalf("way %d: a value of %v of %v, and %v", i, s.Value, capacity, err)
			}
			if err := v.ResetRateLimit(t.Context(), ask); err != nil {
				t.Fatalf("way %d: reset: %v", i, err)
			}
			if s, err := v.Value(t.Context(), ask); err != nil || s.Value != capacity {
				t.Fatalf("way %d: a value of %v of %v after a reset, and %v", i, s.Value, capacity, err)
			}
		}
	})
}
