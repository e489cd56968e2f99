package shard_test

import (
	"math"
	"math/big"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-go/weir/shard"
)

// The parts add up to the whole, to the last bit and in any order, and none is far from the others.
func TestThePartsOfANumberAddUpToIt(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, shard.Max).Draw(t, "n")
		x := rapid.OneOf(rapid.Float64Range(-1e15, 1e15),
			rapid.SampledFrom([]float64{0, 1, 10, 1.0 / 3, 1 << 53, 0.1})).Draw(t, "x")
		first, each := shard.Split(x, n)
		sum := new(big.Float).SetPrec(2000).SetFloat64(first)
		for range n - 1 {
			sum.Add(sum, new(big.Float).SetFloat64(each))
		}
		if sum.Cmp(new(big.Float).SetFloat64(x)) != 0 {
			t.Fatalf("%v of %d: %v and %v, which is %v", x, n, first, each, sum)
		}
		forward, backward := first, 0.0
		for range n - 1 {
			forward += each
			backward += each
		}
		if backward += first; forward != x || backward != x {
			t.Fatalf("%v of %d: %v and %v added up", x, n, forward, backward)
		}
		if apart := math.Abs(first - each); apart > float64(n)*math.Abs(x)*0x1p-52 {
			t.Fatalf("%v of %d: %v and %v", x, n, first, each)
		}
	})
}

func TestWhatCannotBeDividedIsNot(t *testing.T) {
	t.Parallel()
	for _, x := range []float64{math.Inf(-1), math.Inf(1), math.NaN()} {
		if first, each := shard.Split(x, 7); math.Float64bits(first) != math.Float64bits(x) ||
			math.Float64bits(each) != math.Float64bits(x) {
			t.Errorf("%v: %v, %v", x, first, each)
		}
	}
}
