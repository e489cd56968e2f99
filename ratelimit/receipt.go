package ratelimit

import (
	"slices"

	"github.com/weir-go/weir/internal/limits/algebra"
)

// What was asked and what was taken for it are kept apart. A call is what is asked. What it took is
// not written into it: it comes from the answers of the statements that took, and is in the Outcome.
// Giving back and settling begin with that.

// took is what a call has taken: from its row, or from several shards. The zero took is nothing.
type took struct {
	algebra.Left           // of the row, or of all the shards together
	parts        []receipt // of each shard; nil if the limit has one row
}

// receipt is what a call has taken from one row. Its count is what it took there.
type receipt struct {
	call
	algebra.Left
	after algebra.Balance // a shard as the take has left it
}

// receipt returns what c, a call for one row, has taken if that left the row with b.
func (c *call) receipt(b algebra.Balance) receipt { return receipt{*c, b.Left(), b} }

// atOnce reports whether the work could run at once, without waiting for debts of earlier callers.
func (r *receipt) atOnce() bool { return r.Owed-r.Credited() <= 0 }

// change is what giving back or settling does to a row.
type change struct {
	receipt
	used float64 // how much of the count was used
	line float64 // of a closed row: by how many tokens its line moves up
}

// changes returns what gives back all that the call of an Outcome has taken.
func (o *Outcome) changes() []change {
	if o.took.parts == nil {
		return []change{{receipt: receipt{call: *o.call, Left: o.took.Left}}}
	}
	changes := make([]change, len(o.took.parts))
	for i, p := range o.took.parts {
		changes[i].receipt = p
	}
	return changes
}

// callsOf returns the calls for the rows that are changed.
func callsOf(changes []change) []call {
	calls := make([]call, len(changes))
	for i := range changes {
		calls[i] = changes[i].call
	}
	return calls
}

func sortChanges(changes []change) {
	slices.SortStableFunc(changes, func(a, b change) int { return a.Compare(&b.Row) })
}
