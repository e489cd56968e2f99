package shard_test

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-go/weir/shard"
)

func TestEachShardOfEachLayoutHasARowOfItsOwn(t *testing.T) {
	t.Parallel()
	type owned struct {
		shard.Layout
		i int
	}
	for _, generation := range []int{0, 1, shard.MaxGeneration} {
		owner := make(map[int32]owned, shard.Max*(shard.Max+1)/2)
		for n := 1; n <= shard.Max; n++ {
			l := shard.Layout{Shards: n, Generation: generation}
			for i := range n {
				row := l.Row(i)
				if other, taken := owner[row]; taken || !shard.IsRow(row) {
					t.Fatalf("shard %d of %v has row %d, and so has %v", i, l, row, other)
				}
				owner[row] = owned{l, i}
				if got, gotI := shard.Address(row); got != l || gotI != i {
					t.Fatalf("Address(%v.Row(%d)) = %v, %d", l, i, got, gotI)
				}
			}
		}
	}
}

// Rows are stored: their numbers must never change.
func TestRowNumbersAreStable(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		n, i, generation int
		want             int32
	}{
		{1, 0, 0, 0}, {2, 0, 0, 1}, {2, 1, 0, 2}, {3, 0, 0, 3}, {4, 3, 0, 9}, {16, 0, 0, 120}, {16, 15, 0, 135},
		{32, 7, 0, 503}, {1024, 0, 0, 523_776}, {1024, 1023, 0, 524_799},
		{1, 0, 1, 1 << 20}, {16, 3, 5, 5<<20 + 123}, {1024, 1023, 2047, 2047<<20 + 524_799},
	} {
		if got := (shard.Layout{Shards: tc.n, Generation: tc.generation}).Row(tc.i); got != tc.want {
			t.Errorf("shard %d of %d in generation %d has row %d, want %d", tc.i, tc.n, tc.generation, got, tc.want)
		}
	}
}

// So are the numbers of layouts.
func TestLayoutNumbersAreStable(t *testing.T) {
	t.Parallel()
	for number, want := range map[float64]shard.Layout{
		1: shard.Single, 16: {Shards: 16}, 1024: {Shards: 1024}, 2048 + 4: {Shards: 4, Generation: 1},
		2047*2048 + 1024: {Shards: 1024, Generation: 2047},
	} {
		if got, ok := shard.Numbered(number); !ok || got != want || got.Number() != number {
			t.Errorf("Numbered(%v) = %v, %v", number, got, ok)
		}
	}
	for _, number := range []float64{
		0, -1, 0.5, 1025, 2048, 2048 + 1025, 2048 * 2048, math.NaN(), math.Inf(1), math.Inf(-1), 1e300,
	} {
		if got, ok := shard.Numbered(number); ok {
			t.Errorf("Numbered(%v) = %v, and there is no such layout", number, got)
		}
	}
}

func TestShardsOutOfRangePanic(t *testing.T) {
	t.Parallel()
	for _, tc := range [][3]int{
		{0, 0}, {-1, 0}, {-1, -2}, {1, 1}, {1, -1}, {4, 4}, {4, -1}, {shard.Max + 1, 0}, {math.MaxInt, 5},
		{math.MinInt, math.MinInt}, {4, 0, -1}, {4, 0, shard.MaxGeneration + 1},
	} {
		if !panics(func() { shard.Layout{Shards: tc[0], Generation: tc[2]}.Row(tc[1]) }) {
			t.Errorf("shard %d of %d in generation %d does not panic", tc[1], tc[0], tc[2])
		}
	}
	for _, row := range []int32{-1, 524_800, math.MaxInt32, math.MinInt32} {
		if !panics(func() { shard.Address(row) }) {
			t.Errorf("Address(%d) does not panic", row)
		}
	}
}

func panics(f func()) (did bool) {
	defer func() { did = recover() != nil }()
	f()
	return false
}

func FuzzAddress(f *testing.F) {
	for _, row := range []int32{0, 1, 2, 135, 524_799, 524_800, 1 << 20, -1, math.MaxInt32, math.MinInt32} {
		f.Add(row)
	}
	f.Fuzz(func(t *testing.T, row int32) {
		if !shard.IsRow(row) {
			if !panics(func() { shard.Address(row) }) {
				t.Fatalf("Address(%d) does not panic", row)
			}
			return
		}
		if l, i := shard.Address(row); l.Row(i) != row {
			t.Fatalf("Address(%d) = %v, %d", row, l, i)
		}
	})
}

// What goes from each shard to others adds up to all of it, and each of them gets as much as it
// holds.
func TestShardsGoWhollyToOthers(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		from, to := rapid.IntRange(1, 40).Draw(t, "from"), rapid.IntRange(1, 40).Draw(t, "to")
		got := make([]float64, to)
		for i := range from {
			sum := 0.0
			for _, o := range shard.Overlaps(from, i, to) {
				if !(o.Share > 0) {
					t.Fatalf("%+v of shard %d of %d", o, i, from)
				}
				sum += o.Share
				got[o.Shard] += o.Share
			}
			if math.Abs(sum-1) > 1e-12 {
				t.Fatalf("%v of shard %d of %d goes to %d others", sum, i, from, to)
			}
		}
		for j, share := range got {
			if want := float64(from) / float64(to); math.Abs(share-want) > 1e-12*want {
				t.Fatalf("shard %d of %d gets %v, want %v", j, to, share, want)
			}
		}
	})
}

// A path goes through each number of shards. From one shard, or to one, it is the same as straight
// on.
func TestAPathGoesThroughAllNumbersOfShards(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		shards []int
		i      int
		want   []shard.Overlap
	}{
		{[]int{4}, 2, []shard.Overlap{{2, 1}}},
		{[]int{2, 4}, 1, []shard.Overlap{{2, 0.5}, {3, 0.5}}},
		{[]int{4, 2, 4}, 0, []shard.Overlap{{0, 0.5}, {1, 0.5}}},
		{[]int{4, 1, 2}, 3, []shard.Overlap{{0, 0.5}, {1, 0.5}}},
		{[]int{2, 3, 2}, 0, []shard.Overlap{{0, 5. / 6}, {1, 1. / 6}}},
	} {
		got := shard.Path(c.i, c.shards...)
		if len(got) != len(c.want) {
			t.Fatalf("%v: %v, want %v", c.shards, got, c.want)
		}
		for k := range got {
			if got[k].Shard != c.want[k].Shard || math.Abs(got[k].Share-c.want[k].Share) > 1e-12 {
				t.Errorf("%v: %v, want %v", c.shards, got, c.want)
			}
		}
	}
}
