// Package where says which row is meant: its address and what that may be, the order in which
// everything locks rows, and the numbers of their advisory locks. It knows no rule, no balance and
// no statement.
package where

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
)

// Place is a limit and key: one balance, in one row or in several.
type Place struct{ Name, Key string }

// Row is the address of a row: one shard of a place.
type Row struct {
	Place
	Shard int32
}

// Of returns the address of a row.
func Of(name, key string, shard int32) Row { return Row{Place{name, key}, shard} }

// Shadowed ends the names of shadows, and of no other limits.
const Shadowed = " (shadow)"

// Compare orders rows. Everything that locks rows does so in this order; another order could
// deadlock. The rows of shadows come last: a call takes from them only if the other limits grant.
func (r *Row) Compare(other *Row) int {
	shadow := strings.HasSuffix(r.Name, Shadowed)
	if shadow != strings.HasSuffix(other.Name, Shadowed) {
		if shadow {
			return 1
		}
		return -1
	}
	return cmp.Or(cmp.Compare(r.Name, other.Name), cmp.Compare(r.Key, other.Key),
		cmp.Compare(r.Shard, other.Shard))
}

// QueueTag is in the upper 16 bits of the advisory locks with which transactions queue for rows, so
// that `weir doctor` finds them.
const QueueTag = 0x5765

// Queue returns the numbers of the advisory locks with which transactions queue for rows,
// ascending: the order in which every transaction takes them. Each is a hash of the row below the
// QueueTag. The database adds to the hash which table the row is in, as there may be one in each
// schema.
func Queue(rows []Row) []int64 {
	ids := make([]int64, len(rows))
	for i, r := range rows {
		// no name has a NUL
		h := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d\x00%s", r.Name, r.Shard, r.Key))
		ids[i] = QueueTag<<48 | int64(binary.BigEndian.Uint64(h[:])>>16) //nolint:gosec // 48 bits
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// Gathering takes the place of a shard in the number of the lock for gathering tokens from several.
const Gathering = -1

// Busy returns the number of a shard's advisory lock: a hash of limit and key, which is Busy(0),
// xor the shard. A take that does not get it tries another shard instead of waiting. The lock is
// only a hint, so two rows may have the same number.
func (p Place) Busy(shard int32) int32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(p.Name + "\x00" + p.Key))
	return int32(h.Sum32()) ^ shard //nolint:gosec // wraps
}
