package ratelimit_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-go/weir/ratelimit"
)

var (
	nan = math.NaN()
	inf = math.Inf(1)
	tok = ratelimit.Tokens[float64]
)

const (
	most    = 1 << 53
	forever = time.Duration(math.MaxInt64)
)

// Each message names the limit, the field, its value, and what would be right.
func TestBadRulesAreRefused(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		rule  ratelimit.Rule
		field string
		text  string
	}{
		{ratelimit.TokenBucket{Period: sec}, "Rate", "0"},
		{ratelimit.TokenBucket{Rate: -1, Period: sec}, "Rate", "-1"},
		{ratelimit.TokenBucket{Rate: math.Copysign(0, -1), Period: sec}, "Rate", "-0"},
		{ratelimit.TokenBucket{Rate: nan, Period: sec}, "Rate", "NaN"},
		{ratelimit.TokenBucket{Rate: inf, Period: sec}, "Rate", "+Inf"},
		{ratelimit.TokenBucket{Rate: -inf, Period: sec}, "Rate", "-Inf"},
		{ratelimit.TokenBucket{Rate: most + 2, Period: sec}, "Rate", "9.007199254740994e+15"},
		{ratelimit.TokenBucket{Rate: 1}, "Period", "0s"},
		{ratelimit.TokenBucket{Rate: 1, Period: -sec}, "Period", "-1s"},
		{ratelimit.TokenBucket{Rate: 1, Period: 1}, "Period", "1ns"},
		{ratelimit.TokenBucket{Rate: 1, Period: 999}, "Period", "999ns"},
		{ratelimit.TokenBucket{Rate: 1, Period: sec + 1}, "Period", "1.000000001s"},
		{ratelimit.TokenBucket{Rate: 1, Period: forever}, "Period", "2562047h47m16.854775807s"},
		{ratelimit.TokenBucket{Rate: 1, Period: math.MinInt64}, "Period", "-2562047h47m16.854775808s"},
		{ratelimit.TokenBucket{Rate: 1, Period: sec, Capacity: tok(-1)}, "Capacity", "-1"},
		{ratelimit.TokenBucket{Rate: 1, Period: sec, Capacity: tok(nan)}, "Capacity", "NaN"},
		{ratelimit.TokenBucket{Rate: 1, Period: sec, Capacity: tok(inf)}, "Capacity", "+Inf"},
		{ratelimit.TokenBucket{Rate: 1e9, Period: sec, Capacity: tok(most + 2)}, "Capacity", "9.007199254740994e+15"},
		{ratelimit.TokenBucket{Rate: 1, Period: 24 * time.Hour, Capacity: tok(1_826_213)}, "Capacity", "1.826213e+06"},
		{ratelimit.TokenBucket{Rate: 1, Period: forever - 807, Capacity: tok(18)}, "Capacity", "18"},
		{ratelimit.TokenBucket{Rate: 5e-324, Period: sec, Capacity: tok(1)}, "Capacity", "1"},
		{ratelimit.TokenBucket{Rate: 1, Period: sec, MaxReserved: tok(-1)}, "MaxReserved", "-1"},
		{ratelimit.TokenBucket{Rate: 1, Period: sec, MaxReserved: tok(nan)}, "MaxReserved", "NaN"},
		{ratelimit.TokenBucket{Rate: 1, Period: sec, MaxReserved: tok(inf)}, "MaxReserved", "+Inf"},
		{ratelimit.TokenBucket{Rate: 1e9, Period: sec, MaxReserved: tok(most + 2)}, "MaxReserved", "9.007199254740994e+15"},
		{ratelimit.TokenBucket{Rate: 1, Period: 24 * time.Hour, MaxReserved: tok(365_243)}, "MaxReserved", "365243"},
		{ratelimit.FixedWindow{Period: sec}, "Rate", "0"},
		{ratelimit.FixedWindow{Rate: nan, Period: sec}, "Rate", "NaN"},
		{ratelimit.FixedWindow{Rate: 1, Period: 999}, "Period", "999ns"},
		{ratelimit.FixedWindow{Rate: 1, Period: sec, Capacity: tok(-0.5)}, "Capacity", "-0.5"},
		{ratelimit.FixedWindow{Rate: 1, Period: forever - 807, Capacity: tok(17.5)}, "Capacity", "17.5"},
		{ratelimit.FixedWindow{Rate: 1, Period: sec, MaxReserved: tok(nan)}, "MaxReserved", "NaN"},
		{ratelimit.FixedWindow{
			Rate: 1, Period: sec, Start: time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC),
		}, "Start", "10000-01-01 00:00:00 +0000 UTC"},
		{ratelimit.FixedWindow{
			Rate: 1, Period: sec, Start: time.Date(-1, 1, 1, 0, 0, 0, 0, time.UTC),
		}, "Start", "-0001-01-01 00:00:00 +0000 UTC"},
		{ratelimit.FixedWindow{Rate: 1, Period: sec, Start: time.Unix(1<<62, 0)}, "Start", ""},
		{nil, "rule", "<nil>"},
	} {
		// As the limit's own rule, and as the rule of one call.
		_, own := ratelimit.Define("messages", tc.rule)
		good := ratelimit.MustDefine("messages", ratelimit.TokenBucket{Rate: 1, Period: sec})
		_, perCall := ratelimit.Decide(good.For("key").Rule(tc.rule), ratelimit.State{}, t0)
		if tc.rule == nil {
			perCall = own // no rule for the call means the limit's
		}
		for _, err := range []error{own, perCall} {
			var invalid *ratelimit.InvalidError
			if !errors.As(err, &invalid) || !errors.Is(err, ratelimit.ErrInvalid) ||
				errors.Is(err, ratelimit.ErrNeverGranted) {
				t.Errorf("%+v: %v", tc.rule, err)
				continue
			}
			prefix := `ratelimit: limit "messages": ` + tc.field + " is " + tc.text
			if invalid.Limit != "messages" || invalid.Field != tc.field || invalid.Want == "" ||
				!strings.HasPrefix(err.Error(), prefix) {
				t.Errorf("%+v: %v, want %q...", tc.rule, err, prefix)
			}
		}
	}
}

func TestExtremeRulesThatAreAccepted(t *testing.T) {
	t.Parallel()
	for _, rule := range []ratelimit.Rule{
		ratelimit.TokenBucket{Rate: most, Period: us},
		ratelimit.TokenBucket{Rate: most, Period: us, Capacity: tok(most), MaxReserved: tok(most)},
		ratelimit.TokenBucket{Rate: 5e-324, Period: us},
		ratelimit.TokenBucket{Rate: 1, Period: forever - 807},
		ratelimit.TokenBucket{Rate: 1, Period: sec, Capacity: tok(0), MaxReserved: tok(0)},
		ratelimit.TokenBucket{Rate: 1, Period: 24 * time.Hour, Capacity: tok(1_826_212), MaxReserved: tok(365_242)},
		ratelimit.FixedWindow{Rate: most, Period: us, Start: time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)},
		ratelimit.FixedWindow{Rate: 1, Period: forever - 807, Start: time.Date(1, 1, 2, 0, 0, 0, 0, time.UTC)},
		ratelimit.FixedWindow{Rate: 1, Period: forever - 807},
		&ratelimit.TokenBucket{Rate: 1, Period: sec},
		&ratelimit.FixedWindow{Rate: 1, Period: sec},
	} {
		l := define(t, rule)
		for _, reserve := range []bool{false, true} {
			for _, n := range []float64{0, 1, 100} {
				d, err := ratelimit.Decide(ask(l, n, reserve), ratelimit.State{Value: 0.25, TS: t0}, t0)
				if err == nil && (math.IsNaN(d.State.Value) || d.RetryAt.Before(t0) && !d.OK) {
					t.Errorf("%+v, %v: %+v", rule, n, d)
				}
				if err != nil && !errors.Is(err, ratelimit.ErrInvalid) {
					t.Errorf("%+v, %v: %v", rule, n, err)
				}
			}
		}
	}
}

// A pointer to a rule is a Rule as well; one to nothing is none.
func TestNilPointerToARuleIsRefused(t *testing.T) {
	t.Parallel()
	for _, rule := range []ratelimit.Rule{(*ratelimit.TokenBucket)(nil), (*ratelimit.FixedWindow)(nil)} {
		func() {
			defer func() {
				if r := recover(); r != nil {
					t.Errorf("Define with %T(nil) panics: %v", rule, r)
				}
			}()
			if _, err := ratelimit.Define("limit", rule); !errors.Is(err, ratelimit.ErrInvalid) {
				t.Errorf("%T(nil): %v", rule, err)
			}
		}()
	}
}

// What was defined does not change with the numbers that it was defined from.
func TestDefinitionKeepsItsNumbers(t *testing.T) {
	t.Parallel()
	capacity := 5.0
	l := define(t, ratelimit.TokenBucket{Rate: 1, Period: sec, Capacity: &capacity})
	capacity = 1000
	if d := decide(t, l.For("key").Count(2), ratelimit.State{}, t0); d.State.Value != 3 {
		t.Errorf("%+v, want 3 left", d)
	}
}

// No number whatever makes a rule that is accepted and then decides on NaN, or gives more than its
// capacity.
func TestNoRuleLetsNaNIn(t *testing.T) {
	check(t, func(t *rapid.T) {
		number := rapid.OneOf(
			rapid.SampledFrom([]float64{nan, inf, -inf, 0, math.Copysign(0, -1), -1, 5e-324,
				math.MaxFloat64, most, most + 2, 1e-300, 1}),
			rapid.Float64())
		capacity, reserved := number.Draw(t, "capacity"), number.Draw(t, "reserved")
		rate, period := number.Draw(t, "rate"), time.Duration(rapid.Int64().Draw(t, "period"))
		period -= period % us
		rules := []ratelimit.Rule{
			ratelimit.TokenBucket{Rate: rate, Period: period, Capacity: &capacity, MaxReserved: &reserved},
			ratelimit.FixedWindow{Rate: rate, Period: period, Capacity: &capacity, MaxReserved: &reserved},
			ratelimit.TokenBucket{Rate: rate, Period: period, MaxReserved: &reserved},
			ratelimit.FixedWindow{Rate: rate, Period: period, Capacity: &capacity},
			ratelimit.TokenBucket{Rate: rate, Period: period},
		}
		n := number.Draw(t, "count")
		for _, rule := range rules {
			l, err := ratelimit.Define("limit", rule)
			if err != nil {
				continue
			}
			for _, s := range []ratelimit.State{{}, {Value: 0, TS: t0.Add(-period)},
				{Value: -1, TS: t0}, {Value: most, TS: t0}} {
				d, err := ratelimit.Decide(ask(l, n, rapid.Bool().Draw(t, "reserve")), s, t0)
				if err != nil {
					if !errors.Is(err, ratelimit.ErrInvalid) {
						t.Fatal(err)
					}
					continue
				}
				if !(n >= 0) || math.IsNaN(d.State.Value) || math.IsInf(d.State.Value, 0) || d.State.Value > most {
					t.Fatalf("%+v, count %v, %+v: %+v", rule, n, s, d)
				}
			}
		}
	})
}
