package estimate_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/weir-go/weir/estimate"
)

const (
	key   = "gpt-4o/summarize"
	guess = -1 // no usage, so that an estimate is told from it
)

type failer interface {
	Helper()
	Fatal(args ...any)
}

func quantiles(t failer, cfg estimate.Config) *estimate.Quantiles {
	t.Helper()
	q, err := estimate.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// times observes n usages of what.
func times(q *estimate.Quantiles, n int, what float64) {
	for range n {
		q.Observe(key, what)
	}
}

func wantNext(t *testing.T, q *estimate.Quantiles, want float64, when string) {
	t.Helper()
	if got := q.Next(key, guess); got != want {
		t.Errorf("%s: the estimate is %v, want %v", when, got, want)
	}
}

func TestEstimateIsTheQuantileByNearestRank(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		p    float64
		used []float64
		want float64
	}{
		"One":          {0.9, []float64{7}, 7},
		"Smallest":     {1e-300, []float64{3, 1, 2}, 1},
		"Denormal":     {math.SmallestNonzeroFloat64, []float64{3, 1, 2}, 1},
		"Largest":      {1, []float64{2, 3, 1}, 3},
		"MedianOdd":    {0.5, []float64{3, 1, 2}, 2},
		"MedianEven":   {0.5, []float64{4, 1, 3, 2}, 2}, // the lower of the two, and nothing in between
		"Quarter":      {0.25, []float64{4, 1, 3, 2}, 1},
		"AboveQuarter": {0.26, []float64{4, 1, 3, 2}, 2},
		"NineOfTen":    {0.9, []float64{10, 9, 8, 7, 6, 5, 4, 3, 2, 1}, 9},
		"Equal":        {0.7, []float64{5, 5, 5, 5}, 5},
		"Zeros":        {0.5, []float64{0, 0, math.Copysign(0, -1), 9}, 0},
		"Fractions":    {0.5, []float64{0.25, 0.125, 0.5}, 0.25},
		"Extremes":     {1, []float64{math.SmallestNonzeroFloat64, math.MaxFloat64}, math.MaxFloat64},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := quantiles(t, estimate.Config{Quantile: c.p, MinObservations: 1})
			for _, used := range c.used {
				q.Observe(key, used)
			}
			wantNext(t, q, c.want, fmt.Sprint(c.used))
		})
	}
}

func TestEstimateFollowsDrift(t *testing.T) {
	t.Parallel()
	q := quantiles(t, estimate.Config{})
	times(q, 100, 1000)
	wantNext(t, q, 1000, "at first")
	times(q, 10, 3000)
	wantNext(t, q, 1000, "with a tenth of the window above")
	times(q, 1, 3000)
	wantNext(t, q, 3000, "with more than a tenth above")
	times(q, 89, 3000)
	times(q, 89, 500)
	wantNext(t, q, 3000, "with less than nine tenths below")
	times(q, 1, 500)
	wantNext(t, q, 500, "with nine tenths below")

	largest := quantiles(t, estimate.Config{Quantile: 1})
	times(largest, 1, 3000)
	times(largest, 99, 500)
	wantNext(t, largest, 3000, "with the oldest in the window")
	times(largest, 1, 500)
	wantNext(t, largest, 500, "without it")
}

// Usages of language models have long tails. The estimate is made before each call, from those
// before.
func TestAboutTheQuantileOfCallsUsesNoMoreThanEstimated(t *testing.T) {
	t.Parallel()
	const calls = 50_000
	for _, p := range []float64{0.5, 0.9, 0.99} {
		random := rand.New(rand.NewPCG(1, 2))
		q := quantiles(t, estimate.Config{Quantile: p})
		within := 0
		for range calls {
			used := math.Ceil(math.Exp(6 + random.NormFloat64()))
			if used <= q.Next(key, math.MaxFloat64) {
				within++
			}
			q.Observe(key, used)
		}
		if share := float64(within) / calls; math.Abs(share-p) > 0.015 {
			t.Errorf("%v of the calls used no more than estimated by the quantile of %v", share, p)
		}
	}
}

func TestGuessIsReturnedAsItIs(t *testing.T) {
	t.Parallel()
	q := quantiles(t, estimate.Config{})
	times(q, 9, 5)
	for _, guess := range []float64{0, 1200, -3, math.Inf(1), math.NaN()} {
		for _, key := range []string{key, "never seen", ""} {
			if got := q.Next(key, guess); math.Float64bits(got) != math.Float64bits(guess) {
				t.Errorf("%v became %v", guess, got)
			}
		}
	}
}

func TestKeysAreApart(t *testing.T) {
	t.Parallel()
	q := quantiles(t, estimate.Config{MinObservations: 1})
	q.Observe("a", 1)
	q.Observe("b", 2)
	q.Observe("", 3)
	for key, want := range map[string]float64{"a": 1, "b": 2, "": 3, "c": guess} {
		if got := q.Next(key, guess); got != want {
			t.Errorf("the estimate for %q is %v, want %v", key, got, want)
		}
	}
}

func TestNonsenseIsPassedOver(t *testing.T) {
	t.Parallel()
	nonsense := []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, -math.SmallestNonzeroFloat64, -math.MaxFloat64}
	q := quantiles(t, estimate.Config{Quantile: 1, MaxKeys: 1})
	flood := func(key string) {
		for range 1000 {
			for _, used := range nonsense {
				q.Observe(key, used)
			}
		}
	}
	flood(key)
	wantNext(t, q, guess, "after nothing else")
	times(q, 9, 5)
	flood(key)
	wantNext(t, q, guess, "as it counts for no observation")
	times(q, 1, 5)
	flood(key)
	wantNext(t, q, 5, "as it leaves the window as it is")
	flood("another key")
	wantNext(t, q, 5, "as it makes no key")
}

func TestNilAndZeroAreSwitchedOff(t *testing.T) {
	t.Parallel()
	for _, q := range []*estimate.Quantiles{nil, {}} {
		times(q, 100, 5)
		wantNext(t, q, guess, "switched off")
	}
}

// Whoever asks for a key keeps it; asking for one that is unknown makes none.
func TestKeyLeastRecentlyUsedIsForgotten(t *testing.T) {
	t.Parallel()
	q := quantiles(t, estimate.Config{MinObservations: 1, MaxKeys: 3})
	for i, key := range []string{"a", "b", "c"} {
		q.Observe(key, float64(i))
	}
	q.Observe("a", 10)
	q.Next("b", guess)
	q.Next("unknown", guess)
	q.Observe("d", 3) // in place of c
	for key, want := range map[string]float64{"a": 10, "b": 1, "c": guess, "d": 3, "unknown": guess} {
		if got := q.Next(key, guess); got != want {
			t.Errorf("the estimate for %s is %v, want %v", key, got, want)
		}
	}
}

func TestForgottenKeyBeginsAnew(t *testing.T) {
	t.Parallel()
	q := quantiles(t, estimate.Config{MaxKeys: 1, Window: 4, MinObservations: 2, Quantile: 1})
	times(q, 7, 900)
	q.Observe("other", 1)
	wantNext(t, q, guess, "forgotten")
	times(q, 1, 5)
	wantNext(t, q, guess, "seen once again")
	times(q, 1, 4)
	wantNext(t, q, 5, "seen twice again")
	times(q, 3, 3)
	wantNext(t, q, 4, "one beyond the window")
}

func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	q := quantiles(t, estimate.Config{MaxKeys: 8})
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(3, uint64(worker)))
			for range 20_000 {
				k := random.IntN(12) // more than fit
				key := fmt.Sprint(k)
				if n := q.Next(key, guess); n != guess && (n < float64(100*k) || n > float64(100*k+9)) {
					t.Errorf("the estimate for key %d is %v", k, n)
					return
				}
				q.Observe(key, float64(100*k+random.IntN(10)))
			}
		})
	}
	wg.Wait()
	times(q, 100, 7)
	wantNext(t, q, 7, "after the crowd")
}

// Not parallel: it counts what the whole program allocates.
func TestNothingIsAllocatedForKnownKeys(t *testing.T) {
	q := quantiles(t, estimate.Config{})
	times(q, 1, 0)
	used := 0.0
	if n := testing.AllocsPerRun(1000, func() {
		used = math.Mod(used+61, 997)
		q.Observe(key, used)
		q.Next(key, guess)
	}); n != 0 {
		t.Errorf("%v allocations for each Observe and Next", n)
	}
}

func BenchmarkObserveNext(b *testing.B) {
	random := rand.New(rand.NewPCG(5, 6))
	usages := make([]float64, 1<<12)
	for i := range usages {
		usages[i] = math.Ceil(math.Exp(6 + random.NormFloat64()))
	}
	keys := make([]string, 20_000)
	for i := range keys {
		keys[i] = fmt.Sprintf("tenant-%d/%s", i, strings.Repeat("x", 20))
	}
	for _, c := range []struct {
		name         string
		keys, window int
	}{
		{"1key", 1, 100},
		{"10000keys", 10_000, 100},
		{"20000keys-evicted", 20_000, 100}, // in turn: none is remembered when it comes again
		{"1key-window10000", 1, 10_000},
	} {
		b.Run(c.name, func(b *testing.B) {
			q := quantiles(b, estimate.Config{Window: c.window})
			each := func(i int) {
				k := keys[i%c.keys]
				q.Observe(k, usages[i%len(usages)])
				q.Next(k, guess)
			}
			for i := range max(c.keys, c.window) * 2 {
				each(i)
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				each(i)
				i++
			}
		})
	}
	b.Run("parallel", func(b *testing.B) {
		q := quantiles(b, estimate.Config{})
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for i := rand.IntN(1000); pb.Next(); i++ {
				k := keys[i%1000]
				q.Observe(k, usages[i%len(usages)])
				q.Next(k, guess)
			}
		})
	})
}
