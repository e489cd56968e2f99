package ratelimit

import (
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-go/weir/internal/limits/algebra"
)

// noon is a round instant well after the epoch, in microseconds.
var noon = time.Date(2024, 3, 1, 12, 0, 0, 0, time.UTC).UnixMicro()

// anyAlgebra draws compiled rules, with periods short enough to walk through microsecond by
// microsecond.
func anyAlgebra(t *rapid.T) algebra.Rule {
	rate := rapid.OneOf(rapid.SampledFrom([]float64{1, 3, 7, 10, 0.1, 1.0 / 3}),
		rapid.Float64Range(0.01, 100)).Draw(t, "rate")
	capacity, debt := rate*rapid.Float64Range(0, 5).Draw(t, "capacity/rate"),
		rate*rapid.Float64Range(0, 5).Draw(t, "debt/rate")
	period := time.Duration(rapid.Int64Range(1, 200).Draw(t, "period")) * time.Microsecond
	var rule Rule = TokenBucket{Rate: rate, Period: period, Capacity: &capacity, MaxReserved: &debt}
	if rapid.Bool().Draw(t, "window") {
		start := time.UnixMicro(noon + rapid.Int64Range(-1e15, 1e15).Draw(t, "start"))
		rule = FixedWindow{Rate: rate, Period: period, Capacity: &capacity, MaxReserved: &debt, Start: start}
	}
	a, err := rule.compile()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// The first instant found by looking at each.
func TestEarliestIsTheFirstOfAllMicroseconds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a := anyAlgebra(t)
		reserve := rapid.Bool().Draw(t, "reserve")
		floor := a.Floor(reserve)
		n := rapid.Float64Range(0, 1).Draw(t, "n") * (a.Capacity - floor)
		if a.Capacity-n < floor {
			t.Skip("rounded up to what is never granted")
		}
		value := rapid.Float64Range(-a.Debt, a.Capacity).Draw(t, "value")
		ts := noon + rapid.Int64Range(-300, 300).Draw(t, "ts")
		got := a.Earliest(value, ts, noon, n, floor)
		want := noon
		for a.Refilled(value, ts, want)-n < floor {
			want++
		}
		if got != want {
			t.Fatalf("%+v: %v of %v at %d: earliest %d, want %d", a, n, value, ts, got-noon, want-noon)
		}
	})
}

// The answer to a denied call holds for the row that is in the database, not for a balance that was
// computed on the way: the denial has not written it. In floating point the two differ in some per
// cent of all cases.
func TestRetryAtIsExactForTheStoredRow(t *testing.T) {
	t.Parallel()
	capacity := 500.0
	for _, rule := range []Rule{
		TokenBucket{Rate: 10, Period: time.Minute},
		TokenBucket{Rate: 7, Period: time.Second, Capacity: &capacity},
		TokenBucket{Rate: 1.0 / 3, Period: 110 * time.Millisecond, Capacity: &capacity},
		TokenBucket{Rate: 40_000, Period: time.Minute},
		TokenBucket{Rate: 100, Period: 24 * time.Hour, Capacity: &capacity},
		FixedWindow{Rate: 0.1, Period: time.Second, Capacity: &capacity},
		FixedWindow{Rate: 1.0 / 3, Period: 333 * time.Millisecond, Capacity: &capacity},
		FixedWindow{Rate: 7, Period: time.Hour, Capacity: &capacity},
	} {
		l := MustDefine("limit", rule)
		random := rand.New(rand.NewPCG(1, 2))
		denied, late, early := 0, 0, 0
		for range 20_000 {
			r := l.For("key").Count(math.Ceil(random.Float64()*l.def.rule.Capacity*8) / 8)
			r.count = min(r.count, l.def.rule.Capacity)
			if random.IntN(2) == 0 {
				r = r.OrReserve()
			}
			c, err := r.resolve()
			if err != nil {
				t.Fatal(err)
			}
			// Whole eighths of a token, as real counts leave: then the answer often lies on a
			// microsecond exactly.
			b := algebra.Balance{Exists: true, Value: math.Floor((random.Float64()*2-1)*c.Capacity*8) / 8,
				TS: noon, PausedUntil: algebra.Open}
			if c.Reserve {
				c.Debt = c.Capacity / 2
			}
			now := noon + random.Int64N(3*c.Period)
			d := c.Decide(b, now)
			if d.OK {
				continue
			}
			denied++
			at := d.RetryAt
			if !c.Decide(b, at).OK {
				late++
			}
			if at <= now || c.Decide(b, at-1).OK {
				early++
			}
		}
		if late+early > 0 || denied < 2000 {
			t.Errorf("%+v: of %d denied calls %d are denied again at RetryAt, and %d would have been granted before",
				rule, denied, late, early)
		}
	}
}

// Each operation rounds by itself and in the order of the statements' text: a product that was
// fused into a sum, or a rate that was divided first, would differ from Postgres in the last bit.
func TestRefillRoundsAfterEachOperationInTheOrderOfSQL(t *testing.T) {
	t.Parallel()
	f := func(x float64) *big.Float { return new(big.Float).SetPrec(53).SetFloat64(x) }
	rounded := func() *big.Float { return new(big.Float).SetPrec(53) }
	rapid.Check(t, func(t *rapid.T) {
		a := algebra.Rule{Capacity: algebra.Full, Rate: rapid.Float64Range(1e-3, 1e6).Draw(t,
			"rate"), Period: rapid.Int64Range(1, 1e12).Draw(t, "period")}
		value := rapid.Float64Range(-1e6, 1e6).Draw(t, "value")
		elapsed := rapid.Int64Range(0, 1e12).Draw(t, "elapsed")
		x := rounded().Mul(f(a.Rate), f(float64(elapsed)))
		x = rounded().Quo(x, f(float64(a.Period)))
		want, _ := rounded().Add(f(value), x).Float64()
		if got := a.Refilled(value, noon, noon+elapsed); got != min(want, algebra.Full) {
			t.Fatalf("bucket: %v, want %v", got, want)
		}
		n := elapsed % 1000
		want, _ = rounded().Add(f(value), rounded().Mul(f(a.Rate), f(float64(n)))).Float64()
		if got := a.AfterWindows(value, n); got != min(want, algebra.Full) {
			t.Fatalf("window: %v, want %v", got, want)
		}
	})
}

func TestRefillIsMonotoneInTimeAndNeverAboveCapacity(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a := anyAlgebra(t)
		value := rapid.Float64Range(-1e9, 1e9).Draw(t, "value")
		ts := noon + rapid.Int64Range(-1e9, 1e9).Draw(t, "ts")
		times := rapid.SliceOfN(rapid.Int64Range(-1e10, 1e10), 2, 20).Draw(t, "times")
		slices.Sort(times)
		last := math.Inf(-1)
		for _, d := range times {
			v := a.Refilled(value, ts, noon+d)
			if v < last || v > a.Capacity || v < min(value, a.Capacity) {
				t.Fatalf("%+v: %v refilled at %d is %v, before that %v", a, value, d, v, last)
			}
			last = v
		}
	})
}

func TestPhaseIsWithinThePeriod(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		name, key := rapid.String().Draw(t, "name"), rapid.String().Draw(t, "key")
		period := rapid.Int64Range(1, 9e15).Draw(t, "period")
		p := phase(name, key, period)
		if p < 0 || p >= period || p != phase(name, key, period) {
			t.Fatalf("phase(%q, %q, %d) = %d", name, key, period, p)
		}
	})
}

// A row whose rule changes between bucket and window, back and forth at one instant, only ever
// loses.
func TestFlappingBetweenBucketAndWindowMintsNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rules := []algebra.Rule{anyAlgebra(t), anyAlgebra(t), anyAlgebra(t)}
		b := algebra.Balance{Exists: true, Value: rapid.Float64Range(-100, 500).Draw(t, "value"),
			TS: noon, PausedUntil: algebra.Open}
		for range 20 {
			c := call{Ask: algebra.Ask{Rule: rules[rapid.IntRange(0, 2).Draw(t, "rule")],
				Ahead: algebra.Ahead{Reserve: true}}}
			next := c.At(b, noon+rapid.Int64Range(-1000, 0).Draw(t, "now"))
			if next.Value > b.Value || next.Value != min(b.Value, c.Capacity) || next.TS != noon {
				t.Fatalf("%+v became %+v by %+v", b, next, c.Rule)
			}
			b = next
		}
	})
}

// A reset writes one number for every rule: it has to be full under each that can be defined.
func TestFullBalanceIsFullUnderEveryRule(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a := anyAlgebra(t)
		if got := a.Refilled(algebra.Full, noon, noon); got != a.Capacity {
			t.Fatalf("%v of %v", got, a.Capacity)
		}
	})
	if maxTokens > algebra.Full {
		t.Error("a capacity may be larger than a full balance")
	}
}

// Instants that are computed can be written by RFC 3339, whatever the debt.
func TestRetryAtIsNeverPastTheEndOfTime(t *testing.T) {
	t.Parallel()
	for _, rule := range []Rule{
		TokenBucket{Rate: 1, Period: 290 * 365 * 24 * time.Hour},
		FixedWindow{Rate: 1, Period: 290 * 365 * 24 * time.Hour},
	} {
		for _, value := range []float64{-10, -1000, -1e15, -1e300, math.Inf(-1)} {
			d, err := Decide(MustDefine("limit", rule).For("key"),
				State{Value: value, TS: time.UnixMicro(noon)}, time.UnixMicro(noon))
			if err != nil || d.OK || d.RetryAt.UnixMicro() <= noon || d.RetryAt.Year() > 9999 {
				t.Errorf("%+v, %v tokens: %+v, %v", rule, value, d, err)
			}
			if _, err := d.RetryAt.MarshalJSON(); err != nil {
				t.Error(err)
			}
		}
	}
}
