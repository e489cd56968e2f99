package ratelimit

import (
	"slices"

	"github.com/google/uuid"

	"github.com/weir-go/weir/shard"
)

// On Citus rows are spread over nodes by their key. A limit without keys has its shards under keys of
// their own there, their homes, or all of them would be on one node. Its head, and its row while it has
// no shards, are without a key. Shards of a limit with keys stay with all else of their key.

// home is the key under which the row of c is stored.
func (l *Limiter) home(c *call) string {
	if l.spread && c.key == "" {
		if nr, ok := shard.HomeOf(c.name, c.shard); ok {
			return shard.Home(nr)
		}
	}
	return c.key
}

// homes are all keys under which rows of a limit and key may be stored.
func (l *Limiter) homes(key string) []string {
	all := []string{key}
	if l.spread && key == "" {
		for nr := range shard.Homes {
			all = append(all, shard.Home(nr))
		}
	}
	return all
}

// settledAt is the key under which a reservation is settled. That of a limit without keys is settled
// where its id says, which idOf has chosen.
func (l *Limiter) settledAt(r *Reservation) string {
	key := r.home()
	if l.spread && key == "" {
		return shard.Home(int(r.ID[len(r.ID)-1]))
	}
	return key
}

// idOf is an id for what calls have taken: one that is settled on the node of the first shard.
func (l *Limiter) idOf(calls []call, at int64) uuid.UUID {
	id := newID(at)
	i := slices.IndexFunc(calls, func(c call) bool { return c.key == "" && len(c.parts) > 0 })
	if l.spread && i >= 0 {
		if nr, ok := shard.HomeOf(calls[i].name, calls[i].parts[0].shard); ok {
			last := &id[len(id)-1]
			*last = *last&^(shard.Homes-1) | byte(nr) //nolint:gosec // below Homes, which is a power of two
		}
	}
	return id
}
