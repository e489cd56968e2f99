package algebra

import "testing"

func TestUsefulShards(t *testing.T) {
	t.Parallel()
	const second, hour = 1e6, 3600e6
	for name, c := range map[string]struct {
		rule     Rule
		usual    float64
		reserves bool
		want     int
	}{
		"eight counts a share":               {Rule{Capacity: 1000, Rate: 1000, Period: second}, 4, false, 31},
		"a call a second in each":            {Rule{Capacity: 1000, Rate: 100, Period: second}, 5, true, 20},
		"who does not reserve does not wait": {Rule{Capacity: 1000, Rate: 1, Period: hour}, 5, false, 25},
		"one if it has not even that":        {Rule{Capacity: 1000, Rate: 1, Period: hour}, 500, true, 1},
		"a window by its rate, not at once":  {Rule{Windowed: true, Capacity: 7200, Rate: 7200, Period: hour}, 1, true, 2},
		"no more than there can be":          {Rule{Capacity: 1e9, Rate: 1e9, Period: second}, 1, true, 1024},
	} {
		if got := c.rule.UsefulShards(c.usual, c.reserves); got != c.want {
			t.Errorf("%s: %d shards, want %d", name, got, c.want)
		}
	}
}
