package ratelimit

import (
	"slices"

	"github.com/google/uuid"

	"github.com/weir-go/weir/shard"
)

// On Citus the rows of one key are on one node. So that the shards of a limit without keys are not
// all on one node, they are stored under keys of their own, called homes. The limit's head, and its
// only row while it has no shards, have the empty key. Shards of a limit with keys stay under their
// key.

// home returns the key under which the row of c is stored.
func (l *Limiter) home(c *call) string {
	if l.spread && c.Key == "" {
		if nr, ok := shard.HomeOf(c.Name, c.Shard); ok {
			return shard.Home(nr)
		}
	}
	return c.Key
}

// homes returns all keys under which rows of a limit and key may be stored.
func (l *Limiter) homes(key string) []string {
	all := []string{key}
	if l.spread && key == "" {
		for nr := range shard.Homes {
			all = append(all, shard.Home(nr))
		}
	}
	return all
}

// settledAt returns the key under which a reservation is settled. For a limit without keys its id
// says which home that is: see idOf.
func (l *Limiter) settledAt(r *Reservation) string {
	key := r.home()
	if l.spread && key == "" {
		return shard.Home(int(r.ID[len(r.ID)-1]))
	}
	return key
}

// idOf returns an id for what calls have taken, chosen so that it is settled on the node of the
// first shard.
func (l *Limiter) idOf(calls []call, at int64) uuid.UUID {
	id := newID(at)
	i := slices.IndexFunc(calls, func(c call) bool { return c.Key == "" && len(c.parts) > 0 })
	if l.spread && i >= 0 {
		if nr, ok := shard.HomeOf(calls[i].Name, calls[i].parts[0].Shard); ok {
			last := &id[len(id)-1]
			*last = *last&^(shard.Homes-1) | byte(nr) //nolint:gosec // below Homes, which is a power of two
		}
	}
	return id
}
