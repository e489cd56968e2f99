// Package ranges tells which keys Citus keeps in the same table. Citus divides a distributed table
// into tables on the nodes, by ranges of a hash of the key. One statement can lock and write rows
// of several keys only if all of these are in one range. It is pure, and its values may be used
// concurrently.
package ranges

import (
	"math/bits"
	"slices"
)

// Ranges are where the ranges of a table begin.
type Ranges struct{ from []int32 }

// Of returns the ranges that begin at these hashes, or nil if there are none.
func Of(from []int32) *Ranges {
	if len(from) == 0 {
		return nil
	}
	from = slices.Clone(from)
	slices.Sort(from)
	return &Ranges{from}
}

// Equal reports whether both are the same ranges. None are equal to none.
func (r *Ranges) Equal(o *Ranges) bool {
	return r != nil && o != nil && slices.Equal(r.from, o.from)
}

// Find returns the number of the range of a key. The ranges adjoin each other, and cover all
// hashes.
func (r *Ranges) Find(key string) int {
	i, found := slices.BinarySearch(r.from, Hash(key))
	if found {
		return i
	}
	return max(0, i-1)
}

// Hash returns what Postgres' hashtext returns, on little-endian machines: Bob Jenkins' hash of
// the bytes, as in src/common/hashfn.c of Postgres.
func Hash(key string) int32 {
	n := uint32(len(key)) //nolint:gosec // a key has at most 512 bytes
	a := 0x9e3779b9 + n + 3923095
	b, c := a, a
	for len(key) >= 12 {
		a += word(key)
		b += word(key[4:])
		c += word(key[8:])
		a, b, c = mix(a, b, c)
		key = key[12:]
	}
	// The lowest byte of c is left out: it has the length.
	for i := len(key) - 1; i >= 8; i-- {
		c += uint32(key[i]) << (8 * (i - 7))
	}
	for i := min(len(key), 8) - 1; i >= 4; i-- {
		b += uint32(key[i]) << (8 * (i - 4))
	}
	for i := min(len(key), 4) - 1; i >= 0; i-- {
		a += uint32(key[i]) << (8 * i)
	}
	return int32(final(a, b, c)) //nolint:gosec // the same bits
}

func word(s string) uint32 {
	return uint32(s[0]) | uint32(s[1])<<8 | uint32(s[2])<<16 | uint32(s[3])<<24
}

func mix(a, b, c uint32) (uint32, uint32, uint32) {
	for _, k := range [2][3]int{{4, 6, 8}, {16, 19, 4}} {
		a -= c
		a ^= bits.RotateLeft32(c, k[0])
		c += b
		b -= a
		b ^= bits.RotateLeft32(a, k[1])
		a += c
		c -= b
		c ^= bits.RotateLeft32(b, k[2])
		b += a
	}
	return a, b, c
}

func final(a, b, c uint32) uint32 {
	c ^= b
	c -= bits.RotateLeft32(b, 14)
	a ^= c
	a -= bits.RotateLeft32(c, 11)
	b ^= a
	b -= bits.RotateLeft32(a, 25)
	c ^= b
	c -= bits.RotateLeft32(b, 16)
	a ^= c
	a -= bits.RotateLeft32(c, 4)
	b ^= a
	b -= bits.RotateLeft32(a, 14)
	c ^= b
	c -= bits.RotateLeft32(b, 24)
	return c
}
