// Package shard says in which row of a limit a shard is stored, and how a limit is divided among
// its shards. It is pure arithmetic: no database, no clock, no randomness.
//
// A [Layout] is a number of shards and a generation. Each change of layout begins a generation of
// its own, so the rows of two layouts never meet, and a row that a layout has left is never used
// again.
//
// Package ratelimit uses it. Programs need only that package's option Shards.
package shard

import (
	"fmt"
	"math"
)

const (
	// Max is the largest number of shards.
	Max = 1024

	// MaxGeneration is how often the layout of a limit and key can change.
	MaxGeneration = 2047

	rowBits  = 20 // of a row number: all layouts of one generation together have fewer rows
	headBits = 11 // of the number of a layout: the shards
)

// Layout is one division of a limit into shards.
type Layout struct {
	Shards     int // 1 to Max
	Generation int // how many layouts the limit has had before
}

// Single is the layout of a limit that was never divided: its row is 0.
var Single = Layout{Shards: 1}

// Row returns the number, in the column shard, of shard i. Rows of different layouts never share a
// number. It panics on a shard or a layout that cannot be.
func (l Layout) Row(i int) int32 {
	if i < 0 || i >= l.Shards || l.Shards > Max || l.Generation < 0 ||
		l.Generation > MaxGeneration {
		panic(fmt.Sprintf("shard: no shard %d of %d in generation %d", i, l.Shards, l.Generation))
	}
	return int32(l.Generation<<rowBits + l.Shards*(l.Shards-1)/2 + i) //nolint:gosec // fits, by the bounds above
}

// Address is the inverse of [Layout.Row]. It panics on a number that Row never returns.
func Address(row int32) (l Layout, i int) {
	nr := int(row) & (1<<rowBits - 1)
	if !IsRow(row) {
		panic(fmt.Sprintf("shard: no row %d", row))
	}
	// n is the largest with n(n-1)/2 <= nr. The square root may be off by a rounding, which the
	// loops correct.
	n := int((1 + math.Sqrt(1+8*float64(nr))) / 2)
	for n*(n-1)/2 > nr {
		n--
	}
	for (n+1)*n/2 <= nr {
		n++
	}
	return Layout{Shards: n, Generation: int(row) >> rowBits}, nr - n*(n-1)/2
}

// IsRow reports whether Row ever returns the number.
func IsRow(row int32) bool { return row >= 0 && int(row)&(1<<rowBits-1) < Max*(Max+1)/2 }

// Number is the layout as one number, as the head row of a limit stores it.
func (l Layout) Number() float64 { return float64(l.Generation<<headBits + l.Shards) }

// Numbered is the inverse of [Layout.Number]. It is not ok for a number that Number never returns.
func Numbered(x float64) (l Layout, ok bool) {
	if !(x >= 1 && x < (MaxGeneration+1)<<headBits) || x != math.Trunc(x) {
		return Layout{}, false
	}
	l = Layout{Shards: int(x) & (1<<headBits - 1), Generation: int(x) >> headBits}
	return l, l.Shards >= 1 && l.Shards <= Max
}

// Overlap is a part of one shard that becomes a part of another when a limit gets another number of
// shards.
type Overlap struct {
	Shard int     // the other one
	Share float64 // how much of the shard goes there: above 0, and 1 at most
}

// Overlaps tells where shard i of from goes when there are to shards. Both divide the same line
// evenly, so each shard keeps its place: twice as many shards are two halves of each, and half as
// many are two whole ones together. The shares add up to 1.
func Overlaps(from, i, to int) []Overlap {
	// Shard i is the interval from i/from to (i+1)/from. In units of 1/(from*to) all its borders
	// are whole numbers.
	low, high := i*to, (i+1)*to
	var all []Overlap
	for j := low / from; j*from < high; j++ {
		part := min(high, (j+1)*from) - max(low, j*from)
		all = append(all, Overlap{j, float64(part) / float64(to)})
	}
	return all
}

// Path tells where shard i of a limit has gone that has had so many shards, one number after the
// other. The shares add up to 1, apart from rounding.
func Path(i int, shards ...int) []Overlap {
	at := []Overlap{{i, 1}}
	for k := 1; k < len(shards); k++ {
		share := make([]float64, shards[k])
		for _, old := range at {
			for _, o := range Overlaps(shards[k-1], old.Shard, shards[k]) {
				share[o.Shard] += old.Share * o.Share
			}
		}
		at = at[:0]
		for j := range share {
			if share[j] > 0 {
				at = append(at, Overlap{j, share[j]})
			}
		}
	}
	return at
}
