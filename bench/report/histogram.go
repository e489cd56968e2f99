package main

import (
	"math"
	"math/bits"
	"time"
)

// histogram counts durations, to within 2 %, in little room however many they are.
type histogram struct {
	counts [64 << precision]int
	n      int
}

// precision is the number of bits, beside the first, by which durations are told apart.
const precision = 5

func (h *histogram) add(d time.Duration) {
	h.counts[slot(uint64(max(d, 0)))]++
	h.n++
}

// slot is that of all numbers with the same bits at the front.
func slot(x uint64) int {
	if x < 1<<precision {
		return int(x)
	}
	shift := bits.Len64(x) - precision - 1
	return shift<<precision + int(x>>shift)
}

// middle is the middle of a slot.
func middle(slot int) time.Duration {
	if slot < 2<<precision {
		return time.Duration(slot)
	}
	shift := slot>>precision - 1
	return time.Duration(uint64(slot&(1<<precision-1)|1<<precision)<<shift + 1<<shift/2)
}

func (h *histogram) merge(o *histogram) {
	for i, n := range o.counts {
		h.counts[i] += n
	}
	h.n += o.n
}

// percentile is the time within which the given share of the durations stays.
func (h *histogram) percentile(share float64) time.Duration {
	rank := max(1, int(math.Ceil(share*float64(h.n))))
	for i, n := range h.counts {
		if rank -= n; rank <= 0 {
			return middle(i)
		}
	}
	return 0
}
