// Package shard says which row of a limit a shard is, and how a limit is divided among its shards. It is pure arithmetic:
// no database, no clock, no randomness.
//
// A layout is a number of shards; a shard is addressed by the layout's size n and its index i together, so that the rows of
// an old layout and of a new one never meet while a limit is moved from one to the other.
//
// It serves package ratelimit, whose option Shards is all that a program needs of it.
package shard

import (
	"fmt"
	"math"
)

// Max is the largest number of shards.
const Max = 1024

// Row returns the number, in the column shard, of shard i of n. Shard 0 of 1, the row of a limit that is not sharded, is 0;
// rows of different layouts never share a number. It panics unless 0 <= i < n <= Max.
func Row(n, i int) int32 {
	if i < 0 || i >= n || n > Max {
		panic(fmt.Sprintf("shard: no shard %d of %d", i, n))
	}
	return int32(n*(n-1)/2 + i)
}

// Address is the inverse of [Row]. It panics on a number that Row never returns.
func Address(row int32) (n, i int) {
	if row < 0 || row > Row(Max, Max-1) {
		panic(fmt.Sprintf("shard: no row %d", row))
	}
	// n is the largest with n(n-1)/2 <= row. The square root may be off by a rounding at the border: hence the steps.
	n = int((1 + math.Sqrt(1+8*float64(row))) / 2)
	for n*(n-1)/2 > int(row) {
		n--
	}
	for (n+1)*n/2 <= int(row) {
		n++
	}
	return n, int(row) - n*(n-1)/2
}
