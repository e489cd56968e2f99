package main

import (
	"math"
	"testing"
	"time"
)

func TestSlotsAreInOrderAndNarrow(t *testing.T) {
	t.Parallel()
	last := -1
	for _, x := range []uint64{0, 1, 31, 32, 33, 63, 64, 65, 66, 100, 1000, 1 << 20, 1<<40 + 12345, math.MaxInt64} {
		s := slot(x)
		if s < last {
			t.Errorf("%d is in slot %d, and a smaller one in %d", x, s, last)
		}
		last = s
		if got := float64(middle(s)); math.Abs(got-float64(x)) > float64(x)/50 {
			t.Errorf("%d is told as %v", x, got)
		}
	}
	if last >= len(histogram{}.counts) {
		t.Errorf("there is no slot %d", last)
	}
}

func TestPercentile(t *testing.T) {
	t.Parallel()
	var h, other histogram
	if got := h.percentile(0.5); got != 0 {
		t.Errorf("of nothing: %v", got)
	}
	for i := range 100 {
		if i%2 == 0 {
			h.add(time.Duration(i+1) * time.Millisecond)
		} else {
			other.add(time.Duration(i+1) * time.Millisecond)
		}
	}
	h.merge(&other)
	for share, want := range map[float64]time.Duration{0: 1, 0.01: 1, 0.5: 50, 0.99: 99, 1: 100} {
		want *= time.Millisecond
		if got := h.percentile(share); (got - want).Abs() > want/50 {
			t.Errorf("%v: got %v, want %v", share, got, want)
		}
	}
	h.add(-time.Second) // of a clock that went back
	if got := h.percentile(0); got != 0 {
		t.Errorf("got %v", got)
	}
}
