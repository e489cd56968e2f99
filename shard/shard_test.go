package shard_test

import (
	"math"
	"testing"

	"github.com/weir-go/weir/shard"
)

func TestEachShardOfEachLayoutHasARowOfItsOwn(t *testing.T) {
	t.Parallel()
	owner := make(map[int32][2]int, shard.Max*(shard.Max+1)/2)
	for n := 1; n <= shard.Max; n++ {
		for i := range n {
			row := shard.Row(n, i)
			if other, taken := owner[row]; taken || row < 0 {
				t.Fatalf("shard %d of %d has row %d, and so has %v", i, n, row, other)
			}
			owner[row] = [2]int{n, i}
			if gotN, gotI := shard.Address(row); gotN != n || gotI != i {
				t.Fatalf("Address(Row(%d, %d)) = %d, %d", n, i, gotN, gotI)
			}
		}
	}
	for row := range int32(len(owner)) { // there are no gaps
		if n, i := shard.Address(row); owner[row] != [2]int{n, i} || shard.Row(n, i) != row {
			t.Fatalf("Address(%d) = %d, %d", row, n, i)
		}
	}
}

// Rows are stored: their numbers must never change.
func TestRowNumbersAreStable(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		n, i int
		want int32
	}{
		{1, 0, 0}, {2, 0, 1}, {2, 1, 2}, {3, 0, 3}, {4, 3, 9}, {16, 0, 120}, {16, 15, 135}, {32, 7, 503}, {1024, 0, 523_776}, {1024, 1023, 524_799},
	} {
		if got := shard.Row(tc.n, tc.i); got != tc.want {
			t.Errorf("Row(%d, %d) = %d, want %d", tc.n, tc.i, got, tc.want)
		}
	}
}

func TestShardsOutOfRangePanic(t *testing.T) {
	t.Parallel()
	for _, tc := range [][2]int{{0, 0}, {-1, 0}, {-1, -2}, {1, 1}, {1, -1}, {4, 4}, {4, -1}, {shard.Max + 1, 0}, {math.MaxInt, 5}, {math.MinInt, math.MinInt}} {
		if !panics(func() { shard.Row(tc[0], tc[1]) }) {
			t.Errorf("Row(%d, %d) does not panic", tc[0], tc[1])
		}
	}
	for _, row := range []int32{-1, shard.Row(shard.Max, shard.Max-1) + 1, math.MaxInt32, math.MinInt32} {
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
	for _, row := range []int32{0, 1, 2, 135, 524_799, 524_800, -1, math.MaxInt32, math.MinInt32} {
		f.Add(row)
	}
	f.Fuzz(func(t *testing.T, row int32) {
		if row < 0 || row > shard.Row(shard.Max, shard.Max-1) {
			if !panics(func() { shard.Address(row) }) {
				t.Fatalf("Address(%d) does not panic", row)
			}
			return
		}
		n, i := shard.Address(row)
		if i < 0 || i >= n || n > shard.Max || shard.Row(n, i) != row {
			t.Fatalf("Address(%d) = %d, %d", row, n, i)
		}
	})
}
