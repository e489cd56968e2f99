package pair

import (
	"math"
	"slices"
	"time"
)

const (
	fastest  = 0.95 // of the measurements count; the rest were hit by something else
	lowest   = 0.97 // of a control that holds
	highest  = 1.03
	attempts = 5 // at a run whose control holds
)

// trimmed returns the fastest 95 % of the measurements, rounded down but never to none, in
// ascending order.
func trimmed(times []time.Duration) []time.Duration {
	sorted := slices.Sorted(slices.Values(times))
	return sorted[:max(min(1, len(sorted)), int(fastest*float64(len(sorted))))]
}

// mean is in nanoseconds, and 0 of nothing.
func mean(times []time.Duration) float64 {
	if len(times) == 0 {
		return 0
	}
	var sum float64
	for _, t := range times {
		sum += float64(t)
	}
	return sum / float64(len(times))
}

// median is of all measurements: nothing has to be left out for it.
func median(times []time.Duration) time.Duration { return percentile(times, 0.5) }

// percentile is the time within which the given share of all measurements stays.
func percentile(times []time.Duration, share float64) time.Duration {
	if len(times) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(times))[max(0, int(math.Ceil(share*float64(len(times))))-1)]
}

// verdict is what a run has shown.
type verdict struct {
	ratio    float64       // of the base's mean to ours: 1 is as fast, less is slower
	control  float64       // of the base's mean to that of the base again
	ours     float64       // mean, ns
	base     float64       // mean, ns, of both turns of the base
	oursP50  time.Duration // of all that was measured
	baseP50  time.Duration
	measured int // transactions of each side
}

// judge compares the sides of a run.
func judge(s *samples) verdict {
	base, ours := slices.Concat(s[first], s[again]), slices.Concat(s[ours1], s[ours2])
	v := verdict{
		control:  mean(trimmed(s[first])) / mean(trimmed(s[again])),
		ours:     mean(trimmed(ours)),
		base:     mean(trimmed(base)),
		oursP50:  median(ours),
		baseP50:  median(base),
		measured: len(ours),
	}
	v.ratio = v.base / v.ours
	return v
}

// void says that the machine was too noisy: not even the base is as fast as itself. That of
// nothing, NaN, is void too.
func (v verdict) void() bool { return !(v.control >= lowest && v.control <= highest) }
