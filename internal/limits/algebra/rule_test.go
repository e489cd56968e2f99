package algebra

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

// What Postgres makes of longer ones is held against micros by FuzzRows in package integration.
func TestMicrosAreExactForSeventyYears(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		if d := rapid.Int64Range(-1<<51, 1<<51).Draw(t, "d"); micros(d) != float64(d) {
			t.Fatalf("%d microseconds became %v", d, micros(d))
		}
	})
}

// However bad the guess, the answer is the smallest for which the condition holds.
func TestSearchFindsTheFirstWhateverTheGuess(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		low := rapid.Int64Range(0, 1e18).Draw(t, "low")
		high := low + rapid.OneOf(rapid.Int64Range(1, 50), rapid.Int64Range(1, 3e17)).Draw(t, "high-low")
		first := low + rapid.OneOf(rapid.Just(int64(1)), rapid.Just(high-low),
			rapid.Int64Range(1, high-low)).Draw(t, "first-low")
		guess := rapid.OneOf(
			rapid.SampledFrom([]float64{math.NaN(), math.Inf(1), math.Inf(-1), 0, -1e300, 1e300,
				float64(first), float64(high)}),
			rapid.Map(rapid.Float64Range(-1e4, 1e4), func(f float64) float64 { return float64(first) + f }),
			rapid.Float64(),
		).Draw(t, "guess")
		calls := 0
		got := Search(low, high, guess, func(x int64) bool {
			if calls++; x <= low || x > high {
				t.Fatalf("asked for %d outside (%d, %d]", x, low, high)
			}
			return x >= first
		})
		if got != first {
			t.Fatalf("search(%d, %d, %v) = %d, want %d", low, high, guess, got, first)
		}
		if calls > 200 {
			t.Fatalf("%d questions", calls)
		}
	})
}

func TestSearchAnswersWithTheEndWhereNothingHolds(t *testing.T) {
	t.Parallel()
	for _, guess := range []float64{0, 5, 1e9, math.Inf(1), math.NaN()} {
		if got := Search(3, 100, guess, func(int64) bool { return false }); got != 100 {
			t.Errorf("guess %v: %d, want 100", guess, got)
		}
	}
}

func TestSearchNearAGoodGuessAsksLittle(t *testing.T) {
	t.Parallel()
	for _, off := range []float64{-2, -1, 0, 0.5, 1, 2} {
		calls := 0
		got := Search(0, 1e17, 1e10+off, func(x int64) bool { calls++; return x >= 1e10 })
		if got != 1e10 || calls > 8 {
			t.Errorf("off by %v: %d after %d questions", off, got, calls)
		}
	}
}

// Origins are moved next to a fixed date, where counting is exact, without moving a window.
func TestSetOriginKeepsTheWindows(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a := Rule{Windowed: true, Period: rapid.OneOf(rapid.Int64Range(1, 1e6),
			rapid.Int64Range(1, 9e15)).Draw(t, "period")}
		start := rapid.Int64Range(-62e15, 253e15).Draw(t, "start")
		a.SetOrigin(start)
		if a.Origin < Anchor || a.Origin >= Anchor+a.Period || (a.Origin-start)%a.Period != 0 {
			t.Fatalf("start %d, period %d: origin %d", start, a.Period, a.Origin)
		}
		if max(start-Anchor, Anchor-start)+2*a.Period > 1<<51 {
			return // counted, but not to the microsecond: see micros
		}
		if got := a.WindowStart(start); got != start {
			t.Fatalf("the window of %d starts at %d", start, got)
		}
		if got := a.WindowStart(start - 1); got != start-a.Period {
			t.Fatalf("the window before %d starts at %d", start, got)
		}
	})
}
