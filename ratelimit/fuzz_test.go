package ratelimit_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/weir-go/weir/ratelimit"
)

// FuzzDecide decides on whatever there is: nothing panics, no NaN gets out, nothing is granted
// below the floor, and a denied request is granted at RetryAt and not a microsecond before.
func FuzzDecide(f *testing.F) {
	day := int64(24 * time.Hour / us)
	f.Add(false, 10.0, int64(60e6), uint8(0), 0.0, 0.0, int64(0), 0.0, t0.UnixMicro(), t0.UnixMicro()+5, 1.0, false)
	f.Add(true, 10.0, int64(100e3), uint8(4), 0.0, 0.0, t0.UnixMicro(), -7.5, t0.UnixMicro(),
		t0.UnixMicro()+333, 2.0, true)
	f.Add(false, 1.0/3, day, uint8(3), 20.0, 5.0, int64(0), -4.9, t0.UnixMicro()+1e6, t0.UnixMicro(), 0.1, true)
	f.Add(true, 3.0, int64(333e3), uint8(7), 0.0, 0.0, -day*365*1000, 0.0, int64(0), int64(-1), 0.0, false)
	f.Add(false, 1e9, int64(1), uint8(1), 1e15, 0.0, int64(0), -1e300, t0.UnixMicro(), t0.UnixMicro(), 1e10, false)
	f.Add(false, 5e-324, int64(1), uint8(0), 0.0, 0.0, int64(0), math.Inf(-1), t0.UnixMicro(),
		t0.UnixMicro(), 5e-324, true)
	f.Add(true, float64(1<<53), int64(9e15), uint8(0), 0.0, 0.0, int64(0), math.NaN(),
		int64(math.MinInt64), int64(math.MaxInt64), 1.0, true)

	first := time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
	last := time.Date(9000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
	end := time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)

	f.Fuzz(func(t *testing.T, window bool, rate float64, period int64, set uint8, capacity,
		reserved float64, start int64,
		value float64, ts, now int64, n float64, reserve bool,
	) {
		if period > math.MaxInt64/1000 || period < math.MinInt64/1000 {
			t.Skip("no Duration")
		}
		r := terms{rate: rate, capacity: rate, period: time.Duration(period) * us}
		var c, m *float64
		if set&1 != 0 {
			c = &capacity
		}
		if set&2 != 0 {
			m = &reserved
		}
		var rule ratelimit.Rule = ratelimit.TokenBucket{Rate: rate, Period: r.period, Capacity: c, MaxReserved: m}
		if window {
			w := ratelimit.FixedWindow{Rate: rate, Period: r.period, Capacity: c, MaxReserved: m}
			if set&4 != 0 {
				w.Start = time.UnixMicro(start)
			}
			rule = w
		}
		l, err := ratelimit.Define("limit", rule)
		if err != nil {
			if !errors.Is(err, ratelimit.ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		req := ask(l, n, reserve)
		s, at := ratelimit.State{Value: value, TS: time.UnixMicro(ts)}, time.UnixMicro(now)
		d, err := ratelimit.Decide(req, s, at)
		if err != nil {
			if !errors.Is(err, ratelimit.ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		most := rate
		if c != nil {
			most = capacity
		}
		switch {
		case math.IsNaN(value) && d.OK && !s.TS.IsZero():
			t.Fatalf("granted from NaN: %+v", d)
		case math.IsNaN(d.State.Value) && !math.IsNaN(value):
			t.Fatalf("NaN: %+v", d)
		case d.State.Value > most:
			t.Fatalf("%+v: above the capacity of %v", d, most)
		case d.OK && d.State.Value < 0 && !reserve:
			t.Fatalf("granted into debt: %+v", d)
		case d.OK && m != nil && d.State.Value < -reserved:
			t.Fatalf("granted beyond MaxReserved: %+v", d)
		case d.OK != d.RetryAt.IsZero():
			t.Fatalf("granted and RetryAt, or denied without: %+v", d)
		case d.OK && (d.State.Value < 0) == d.RunAt.IsZero():
			t.Fatalf("RunAt without a debt, or a debt without: %+v", d)
		case !d.OK && !d.RunAt.IsZero():
			t.Fatalf("denied, with a RunAt: %+v", d)
		}
		if math.IsNaN(value) || min(ts, now) < first || max(ts, now) > last {
			return // no row is like that
		}
		if d.OK {
			if !d.RunAt.IsZero() && d.RunAt.Add(r.period).Before(end) {
				exact(t, ask(l, 0, false), d.State, d.RunAt)
			}
			return
		}
		if !d.RetryAt.After(at) {
			t.Fatalf("RetryAt in the past: %+v", d)
		}
		if d.RetryAt.Add(r.period).Before(end) { // else the end of time has cut it off
			exact(t, req, s, d.RetryAt)
		}
	})
}

func exact(t *testing.T, r ratelimit.Request, s ratelimit.State, at time.Time) {
	t.Helper()
	if !decide(t, r, s, at).OK {
		t.Fatalf("%+v: denied at %v", s, at)
	}
	if decide(t, r, s, at.Add(-us)).OK {
		t.Fatalf("%+v: granted a microsecond before %v", s, at)
	}
}

// FuzzDefine defines limits by arbitrary names and numbers, and uses those that were accepted.
func FuzzDefine(f *testing.F) {
	f.Add("sendMessage", "user:7", 10.0, int64(time.Minute), 20.0, 5.0, 1.0)
	f.Add("", "", 0.0, int64(0), 0.0, 0.0, 0.0)
	f.Add("a\x00", "\xff", -1.0, int64(-1), -1.0, -1.0, -1.0)
	f.Add("größe", "日本", math.NaN(), int64(1001), math.Inf(1), math.Inf(-1), math.NaN())
	f.Add("x", "y", float64(1<<53), int64(math.MaxInt64), float64(1<<53), 5e-324, 1e300)
	f.Fuzz(func(t *testing.T, name, key string, rate float64, period int64, capacity, reserved, n float64) {
		p := time.Duration(period)
		for _, rule := range []ratelimit.Rule{
			ratelimit.TokenBucket{Rate: rate, Period: p},
			ratelimit.TokenBucket{Rate: rate, Period: p, Capacity: &capacity, MaxReserved: &reserved},
			ratelimit.FixedWindow{Rate: rate, Period: p},
			ratelimit.FixedWindow{Rate: rate, Period: p, Capacity: &capacity, MaxReserved: &reserved, Start: t0.Add(p)},
		} {
			l, err := ratelimit.Define(name, rule)
			if err != nil {
				if !errors.Is(err, ratelimit.ErrInvalid) || err.Error() == "" {
					t.Fatal(err)
				}
				continue
			}
			for _, r := range []ratelimit.Request{
				l.Global().Count(n), l.For(key).Count(n), l.For(key).Count(n).OrReserve(), l.For(key),
			} {
				d, err := ratelimit.Decide(r, ratelimit.State{}, t0)
				if err != nil {
					if !errors.Is(err, ratelimit.ErrInvalid) || err.Error() == "" {
						t.Fatal(err)
					}
					continue
				}
				if !d.OK { // unused, a limit grants all that it ever grants without a debt
					t.Fatalf("%+v: denied at first use: %+v", rule, d)
				}
			}
		}
	})
}
