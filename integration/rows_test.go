package integration

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// FuzzRows meets rows as another release, another rule, a wrong clock or a hand at psql may have
// left them: whatever the schema lets in is decided on as [ratelimit.Decide] says, a denial tells
// the truth, and a reset mends it.
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
		paused         bool
		until, delay   int64
	}
	for _, r := range []row{
		// sound
		{value: 4, ts: noon - 1e6, capacity: 10, rate: 10, period: 60e6},
		// ahead of the clock
		{value: -3, ts: noon + 30e6, capacity: 10, rate: 10, period: 60e6},
		// by a larger rule
		{value: 25, ts: noon - 1, capacity: 25, rate: 5, period: 1e6},
		// of the other kind
		{value: 7, ts: noon, capacity: 10, rate: 10, period: 60e6, windowed: true, origin: noon - 30e6},
		// reset
		{value: 1 << 53, ts: noon, capacity: 10, rate: 10, period: 60e6},
		// closed for good
		{value: math.Inf(-1), ts: noon, capacity: 1, rate: 1, period: 1},
		// owes what nobody can
		{value: -1e300, ts: noon - year, capacity: 1, rate: 1, period: 1},
		// has what nobody can
		{value: 1.7e308, ts: noon - year, capacity: 1e15, rate: 1e15, period: 1, windowed: true},
		// by a clock gone wild
		{value: 1, ts: noon + 5000*year, capacity: 10, rate: 10, period: 60e6, windowed: true, origin: -60 * year},
		// before microseconds are exact
		{value: -48, ts: noon - 1900*year - 12345677, capacity: 10, rate: 10, period: 60e6},
		// paused
		{value: 4, ts: noon - 1e6, capacity: 10, rate: 10, period: 60e6, paused: true, until: noon + 90e6, delay: 5},
		// paused until just now
		{value: -3, ts: noon - 80e6, capacity: 10, rate: 10, period: 60e6, paused: true, until: noon - 7},
		// and ahead of the clock
		{value: 4, ts: noon + 90e6, capacity: 10, rate: 10, period: 60e6, paused: true, until: noon + 3},
		{value: -4, ts: noon, capacity: 10, rate: 10, period: 60e6, paused: true, until: noon + 7000*year, delay: -5},
		{value: 4, ts: noon, capacity: 10, rate: 10, period: 60e6, paused: true, until: noon + 20_000*year},
		{value: 0.1 + 0.2, ts: -1 << 55, capacity: 0, rate: 5e-324, period: math.MaxInt64},
		{value: math.Inf(1), ts: noon, capacity: 1, rate: 1, period: 1}, // no numbers
		{value: math.NaN(), ts: noon, capacity: math.NaN()},
	} {
		for _, window := range []bool{false, true} {
			f.Add(window, 10.0, int64(60e6), 10.0, 5.0, int64(0), r.value, r.ts, r.capacity, r.rate,
				r.period, r.windowed, r.origin,
				r.paused, r.until, r.delay, noon, 3.0, window)
			f.Add(window, 1.0/3, int64(7), 2.5, 0.0, noon, r.value, r.ts, r.capacity, r.rate,
				r.period, r.windowed, r.origin,
				r.paused, r.until, r.delay, noon+1, 0.1, !window)
		}
	}

	pool, clock := pgtest.Pool(f), rig.Clock()
	ways := []rig.Verbs{
		rig.Limiter(f, ratelimit.Config{Clock: clock.Now}).Autocommit(pool),
		rig.Limiter(f, ratelimit.Config{Clock: clock.Now, Portable: true}).Autocommit(pool),
	}
	f.Fuzz(func(t *testing.T, window bool, rate float64, period int64, capacity, reserved float64, start int64,
		value float64, ts int64, rowCapacity, rowRate float64, rowPeriod int64, windowed bool, origin int64,
		paused bool, until, delay, now int64, n float64, reserve bool,
	) {
		if period > math.MaxInt64/1000 || period < math.MinInt64/1000 ||
			delay > math.MaxInt64/1000 || delay < math.MinInt64/1000 {
			return // no Duration
		}
		var rule ratelimit.Rule = ratelimit.TokenBucket{Rate: rate, Period: rig.Micros(period),
			Capacity: &capacity, MaxReserved: &reserved}
		if window {
			rule = ratelimit.FixedWindow{Rate: rate, Period: rig.Micros(period), Capacity: &capacity,
				MaxReserved: &reserved, Start: time.UnixMicro(start)}
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
		state := ratelimit.State{Value: value, TS: time.UnixMicro(ts), Delay: rig.Micros(delay)}
		if paused {
			state.PausedUntil = time.UnixMicro(until)
		}
		want, err := ratelimit.Decide(ask, state, at)
		predicted := err == nil // else the row is none that Go's times can hold
		for i, v := range ways {
			clock.Set(at)
			var from, to any
			if windowed {
				from = time.UnixMicro(origin)
			}
			if paused {
				to = time.UnixMicro(until)
			}
			_, err := pool.Exec(t.Context(),
				`INSERT INTO weir_balance AS b (name, key, value, ts, capacity, rate, period, origin, paused_until, delay)
				VALUES ('limit', 'k', $1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (name, key, shard) DO UPDATE SET value = excluded.value, ts = excluded.ts,
				capacity = excluded.capacity, rate = excluded.rate, period = excluded.period, origin = excluded.origin,
				paused_until = excluded.paused_until, delay = excluded.delay`,
				value, time.UnixMicro(ts), rowCapacity, rowRate, rowPeriod, from, to, delay)
			if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) && pg.Code == "22008" {
				return // there is no such time
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
			if o := checked.Outcomes[0]; res.OK != checked.OK || !res.RunAt.Equal(checked.RunAt) ||
				!res.RetryAt.Equal(checked.RetryAt) ||
				!o.PacedAt.Equal(res.Outcomes[0].PacedAt) || o.Delay != rig.Micros(delay) ||
				res.Outcomes[0].Delay != o.Delay {
				t.Fatalf("way %d: %+v, and its check said %+v", i, res, checked)
			}
			if o := res.Outcomes[0]; predicted &&
				(o.OK != want.OK || !o.RunAt.Equal(want.RunAt) || !o.RetryAt.Equal(want.RetryAt) ||
					!o.PacedAt.Equal(want.PacedAt) || math.Float64bits(o.Value) != math.Float64bits(want.State.Value)) {
				t.Fatalf("way %d: %+v, want %+v", i, o, want)
			}
			if o := res.Outcomes[0]; o.Value > capacity || res.OK && o.Value < -reserved ||
				res.OK == res.RetryAt.After(at) {
				t.Fatalf("way %d: %+v of a capacity of %v, and %v reserved", i, res, capacity, reserved)
			}
			end := time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
			if !res.OK && res.RetryAt.Add(rig.Micros(period)).Before(end) { // else the end of time has cut it off
				clock.Set(res.RetryAt.Add(-time.Microsecond))
				if r, err := v.CheckRateLimit(t.Context(), ask); err != nil || r.OK {
					t.Fatalf("way %d: %+v, but just before then %+v and %v", i, res, r, err)
				}
				clock.Set(res.RetryAt)
				if res, err = v.RateLimit(t.Context(), ask); err != nil || !res.OK {
					t.Fatalf("way %d: at RetryAt %v: %+v and %v", i, clock.Now(), res, err)
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
			if time.UnixMicro(until).UTC().Year() > 9999 {
				continue
			}
			if err := v.Resume(t.Context(), ask); err != nil {
				t.Fatalf("way %d: resume: %v", i, err)
			}
			if s, err := v.Value(t.Context(), ask); err != nil || s.Value != capacity || !s.PausedUntil.IsZero() {
				t.Fatalf("way %d: %+v after a pause, and %v", i, s, err)
			}
		}
	})
}
