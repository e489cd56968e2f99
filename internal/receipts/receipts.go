// Package receipts is what weirtest asks of ratelimit: what a reservation has taken, in the terms
// of the arithmetic, so that it can be settled in memory.
package receipts

import (
	"time"

	"github.com/weir-go/weir/internal/limits/algebra"
	"github.com/weir-go/weir/internal/limits/where"
)

// Reservation is a ratelimit.Reservation with what was used of it.
type Reservation struct {
	// Home is the key under which the settlement is recorded, together with the id.
	Home  string
	Until time.Time // from this instant on the reservation counts as settled
	Takes []Take
}

// Take is what was taken from one row.
type Take struct {
	where.Place
	Rule algebra.Rule // of the take
	algebra.Receipt
	Used   float64
	AtOnce bool // the work did not have to wait for debts of earlier callers
}
