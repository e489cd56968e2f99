package ratelimit_test

import (
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-go/weir/ratelimit"
)

// model is the algebra over again, in exact fractions and without a thought for speed.
type model struct{ rate, capacity, debt, period, start *big.Rat }

func modelOf(r terms) model {
	f := func(x float64) *big.Rat { return new(big.Rat).SetFloat64(x) }
	return model{f(r.rate), f(r.capacity), f(r.debt), micros(r.period), big.NewRat(r.start.UnixMicro(), 1)}
}

func micros(d time.Duration) *big.Rat { return big.NewRat(d.Microseconds(), 1) }

// Euclidean: the denominator is positive
func floorOf(x *big.Rat) *big.Int { return new(big.Int).Div(x.Num(), x.Denom()) }

func (m model) window(at *big.Rat) *big.Rat {
	x := new(big.Rat).Sub(at, m.start)
	return new(big.Rat).SetInt(floorOf(x.Quo(x, m.period)))
}

// balance is the balance at now.
func (m model) balance(windowed bool, s ratelimit.State, now time.Time) *big.Rat {
	if s == (ratelimit.State{}) {
		return m.capacity
	}
	ts, at := big.NewRat(s.TS.UnixMicro(), 1), big.NewRat(now.UnixMicro(), 1)
	steps := new(big.Rat)
	if windowed {
		steps.Sub(m.window(at), m.window(ts))
	} else {
		steps.Quo(steps.Sub(at, ts), m.period)
	}
	if steps.Sign() < 0 {
		steps.SetInt64(0)
	}
	b := new(big.Rat).SetFloat64(s.Value)
	b.Add(b, steps.Mul(steps, m.rate))
	if b.Cmp(m.capacity) > 0 {
		return m.capacity
	}
	return b
}

// when is the first whole microsecond at which the balance b of from has grown by need.
func (m model) when(windowed bool, need *big.Rat, from time.Time) *big.Int {
	periods := new(big.Rat).Quo(need, m.rate)
	at := big.NewRat(from.UnixMicro(), 1)
	if windowed {
		up := new(big.Int).Neg(floorOf(periods.Neg(periods))) // a whole number of windows, rounded up
		w := m.window(at)
		at = w.Add(w, new(big.Rat).SetInt(up))
		at.Add(at.Mul(at, m.period), m.start)
	} else {
		at.Add(at, periods.Mul(periods, m.period))
	}
	return new(big.Int).Neg(floorOf(at.Neg(at)))
}

func TestDecideAgreesWithAnExactModel(t *testing.T) {
	check(t, func(t *rapid.T) {
		r := anyTerms().Draw(t, "rule")
		l, m := define(t, r.rule()), modelOf(r)
		var b row
		if rapid.Bool().Draw(t, "used") {
			b.state = anyState(r, t0).Draw(t, "state")
		}
		now := t0
		for range 15 {
			now = now.Add(time.Duration(rapid.Int64Range(0, 2*r.period.Microseconds()).Draw(t, "pause")) * us)
			reserve := rapid.Bool().Draw(t, "reserve")
			n := anyCount(r, reserve).Draw(t, "n")
			before := b.state
			d := b.take(t, ask(l, n, reserve), now)

			least := r.least(reserve)
			if n > 0 { // or it would drown in the debt
				least = max(least, -n*(1<<40))
			}
			have := m.balance(r.window, before, now)
			left := new(big.Rat).Sub(have, new(big.Rat).SetFloat64(n))
			spare := new(big.Rat).Sub(left, new(big.Rat).SetFloat64(least))
			tolerance := 1e-12 * (r.capacity + r.debt + r.rate + n + 1)
			margin, _ := spare.Float64()
			if margin > tolerance && !d.OK || margin < -tolerance && d.OK {
				t.Fatalf("%v from %+v at %v: %+v, but exactly %v to spare", n, before, now, d, margin)
			}

			from := now
			if before.TS.After(now) {
				from = before.TS
			}
			want, _ := have.Float64()
			if d.OK {
				want, _ = left.Float64()
			}
			if !near(d.State.Value, want, tolerance) {
				t.Fatalf("%v from %+v at %v: left %v, exactly %v", n, before, now, d.State.Value, want)
			}
			ts := from
			if r.window {
				ts = r.start.Add(time.Duration(windowOf(r, from)) * r.period)
			}
			if !d.State.TS.Equal(ts) {
				t.Fatalf("%v from %+v at %v: TS %v, want %v", n, before, now, d.State.TS, ts)
			}

			at, need := d.RetryAt, new(big.Rat).Neg(spare)
			if d.OK {
				at, need = d.RunAt, new(big.Rat).Neg(left)
			}
			if at.IsZero() || margin > -tolerance && !d.OK || -want < tolerance && d.OK {
				continue
			}
			exact := m.when(r.window, need, from)
			slack := 1 + tolerance/r.rate*float64(r.period.Microseconds())
			if r.window {
				slack = 0
				if frac := new(big.Rat).Quo(need, m.rate); nearWhole(frac, tolerance/r.rate) {
					slack = float64(r.period.Microseconds()) // a rounding decides between two windows
				}
			}
			if diff := new(big.Int).Sub(exact, big.NewInt(at.UnixMicro())); !near(float64(diff.Int64()), 0, slack) {
				t.Fatalf("%v from %+v at %v: %+v, exactly %v us later", n, before, now, d, diff)
			}
		}
	})
}

func nearWhole(x *big.Rat, tolerance float64) bool {
	f := new(big.Rat).Sub(x, new(big.Rat).SetInt(floorOf(x)))
	v, _ := f.Float64()
	return v < tolerance || v > 1-tolerance
}

// Balances are exact here because they are counted in units of one token over the period in
// microseconds.
func TestMillionCallsDriftByLessThanAMillionthOfAToken(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name           string
		rate, capacity int64
		period         time.Duration
	}{
		{"10 in 7s", 10, 20, 7 * sec},
		{"40000 a minute", 40_000, 40_000, time.Minute},
		{"3 in 110ms", 3, 100, 110 * ms},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			l := define(t, ratelimit.TokenBucket{Rate: float64(tc.rate), Period: tc.period,
				Capacity: ratelimit.Tokens(float64(tc.capacity)), MaxReserved: ratelimit.Tokens(50)})
			random := rand.New(rand.NewPCG(1, uint64(tc.rate)))
			unit := big.NewInt(tc.period.Microseconds())
			most := new(big.Int).Mul(big.NewInt(tc.capacity), unit)
			exact, x := new(big.Int).Set(most), new(big.Int)
			b, now, last := row{}, t0, t0
			worst, granted := 0.0, 0
			for range 1_000_000 / 3 {
				now = now.Add(time.Duration(random.Int64N(2*tc.period.Microseconds()/tc.rate)) * us)
				n, reserve := random.Int64N(3), random.Int64N(2) == 0
				d := b.take(t, ask(l, float64(n), reserve), now)
				if !d.OK {
					continue
				}
				granted++
				exact.Add(exact, x.Mul(big.NewInt(now.Sub(last).Microseconds()), big.NewInt(tc.rate)))
				if exact.Cmp(most) > 0 {
					exact.Set(most)
				}
				exact.Sub(exact, x.Mul(big.NewInt(n), unit))
				last = now
				f, _ := new(big.Rat).SetFrac(exact, unit).Float64()
				worst = max(worst, f-d.State.Value, d.State.Value-f)
			}
			if worst > 1e-6 || granted < 100_000 {
				t.Errorf("%v tokens off after %d grants", worst, granted)
			}
			t.Logf("%v tokens off at most, %d grants", worst, granted)
		})
	}
}
