package estimate_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-go/weir/estimate"
)

// model is the package over again, without a thought for speed: all usages of each key, and the
// keys in order of their use.
type model struct {
	permille, window, least, most int
	used                          map[string][]float64
	recent                        []string // the latest one last
}

func (m *model) touch(key string) {
	m.recent = append(slices.DeleteFunc(m.recent, func(k string) bool { return k == key }), key)
	if len(m.recent) > m.most {
		delete(m.used, m.recent[0])
		m.recent = m.recent[1:]
	}
}

func (m *model) observe(key string, used float64) {
	m.touch(key)
	m.used[key] = append(m.used[key], used)
}

// next counts, in whole numbers: the smallest usage that is not below the given share of them.
func (m *model) next(key string, guess float64) float64 {
	all, ok := m.used[key]
	if !ok {
		return guess
	}
	m.touch(key)
	if len(all) > m.window {
		all = all[len(all)-m.window:]
	}
	if len(all) < m.least {
		return guess
	}
	sorted := slices.Sorted(slices.Values(all))
	for i, x := range sorted {
		if (i+1)*1000 >= m.permille*len(sorted) {
			return x
		}
	}
	panic("unreachable")
}

func TestQuantilesDoAsTheModelDoes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := model{
			permille: rapid.IntRange(1, 1000).Draw(t, "permille"),
			window:   rapid.IntRange(1, 40).Draw(t, "window"),
			most:     rapid.IntRange(1, 4).Draw(t, "most"),
			used:     map[string][]float64{},
		}
		m.least = rapid.IntRange(1, m.window).Draw(t, "least")
		q := quantiles(t, estimate.Config{
			Quantile: float64(m.permille) / 1000, Window: m.window, MinObservations: m.least, MaxKeys: m.most,
		})
		keys := rapid.IntRange(1, 6).Draw(t, "keys")
		few := rapid.Map(rapid.IntRange(0, 9), func(n int) float64 { return float64(n) })
		usage := rapid.OneOf(few, rapid.Float64Range(0, math.MaxFloat64))

		for range rapid.IntRange(0, 150).Draw(t, "steps") {
			key := fmt.Sprint(rapid.IntRange(1, keys).Draw(t, "key"))
			if rapid.IntRange(0, 3).Draw(t, "verb") > 0 {
				used := usage.Draw(t, "used")
				q.Observe(key, used)
				m.observe(key, used)
			}
			if rapid.Bool().Draw(t, "look") {
				if got, want := q.Next(key, guess), m.next(key, guess); got != want {
					t.Fatalf("the estimate for %s is %v, want %v", key, got, want)
				}
			}
		}
	})
}
