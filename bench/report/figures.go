package main

import (
	"slices"
	"time"
)

// workload is what is asked of a limiter while its speed is measured.
type workload string

const (
	manyKeys workload = "many keys"
	oneKey   workload = "one key"
)

var (
	workloads = []workload{manyKeys, oneKey}
	callers   = []int{1, 16, 64, 256}
)

// The limits. That of one key is not used up by any number of calls that a run can make; nor are
// those of many, but by a caller in memory.
var (
	limitOf = map[workload]bucket{
		manyKeys: {60_000, time.Minute},
		oneKey:   {1_000_000_000, 1000 * time.Second},
	}
	denying = bucket{1000, time.Second}
)

// auditors is how many call where most are denied.
const auditors = 64

// setting is one cell of a contender's tables.
type setting struct {
	workload workload
	callers  int
}

// cell has what was measured in a setting, by rounds.
type cell struct {
	rates    []float64 // calls a second
	p50, p99 []time.Duration
}

func (c *cell) add(s *slice) {
	c.rates = append(c.rates, s.rate)
	c.p50 = append(c.p50, s.times.percentile(0.5))
	c.p99 = append(c.p99, s.times.percentile(0.99))
}

// rate is the median of the rounds.
func (c *cell) rate() float64 { return median(c.rates) }

// audit has what a limit that denies most has granted, by rounds.
type audit struct {
	calls   []int // all that were answered
	granted []int
	allowed []float64
	rates   []float64 // calls a second
}

func (a *audit) add(s *slice, b bucket) {
	a.calls = append(a.calls, s.all)
	a.granted = append(a.granted, s.granted)
	a.allowed = append(a.allowed, b.allowed(s.elapsed))
	a.rates = append(a.rates, s.rate)
}

// most is the round in which the largest share of what was allowed was granted.
func (a *audit) most() (granted int, allowed float64) {
	for i := range a.granted {
		if i == 0 || float64(a.granted[i])*allowed > float64(granted)*a.allowed[i] {
			granted, allowed = a.granted[i], a.allowed[i]
		}
	}
	return granted, allowed
}

// denied reports whether any call was, in any round.
func (a *audit) denied() bool { return !slices.Equal(a.calls, a.granted) }

// over is what was granted beyond what was allowed, in parts of that, in thousandths. Less than
// half a one is none: the server's clock and ours need not agree that well.
func (a *audit) over() int {
	granted, allowed := a.most()
	return max(0, int(1000*(float64(granted)/allowed-1)+0.5))
}

// share is what was granted of what was allowed, in percent.
func (a *audit) share() float64 {
	granted, allowed := a.most()
	return 100 * float64(granted) / allowed
}

// figures are those of one run.
type figures struct {
	contenders []contender
	cells      map[string]map[setting]*cell // by the contender's name
	audits     map[string]*audit
	empty      cell // of a limiter that does nothing
}

func newFigures(all []contender) *figures {
	f := &figures{contenders: all, cells: map[string]map[setting]*cell{},
		audits: map[string]*audit{}}
	for _, c := range all {
		f.cells[c.name], f.audits[c.name] = map[setting]*cell{}, &audit{}
		for _, w := range workloads {
			for _, n := range callers {
				if w == oneKey || !c.oneKey {
					f.cells[c.name][setting{w, n}] = &cell{}
				}
			}
		}
	}
	return f
}

// median is of an odd number the middle one, and of an even number the lower of the two.
func median[T float64 | time.Duration](all []T) T {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[(len(sorted)-1)/2]
}
