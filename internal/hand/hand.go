// Package hand is what package scheduler asks of package slots, to hand slots from job to job.
package hand

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Place is a limit and key.
type Place struct{ Name, Key string }

// Want is a place, and how many slots it has.
type Want struct {
	Place
	N int
}

// Hold is a slot that this process holds and renews.
type Hold interface {
	// Context ends when the slot is lost.
	Context(parent context.Context) context.Context

	// Err is nil as long as the slot is held.
	Err() error

	// Drop ends renewing the slot, and says what Free is to free: nothing if that was said before.
	Drop() (Slot, bool)
}

// Slot is one holding of a slot.
type Slot struct {
	Place
	Number int
	Holder string
}

// Querier is a pool, a connection or a transaction.
type Querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Connect runs fn on a connection.
type Connect func(ctx context.Context, fn func(c *pgxpool.Conn) error) error

// Slots are the slots of a process.
type Slots interface {
	// Take takes a slot: nil if all are held, or if others in this process wait for one.
	Take(ctx context.Context, on Connect, w Want) (Hold, error)

	// Claim takes over the slot that was given to a holder: nil if there is none.
	Claim(ctx context.Context, on Connect, w Want, holder string) (Hold, error)

	// Free queues the statement that frees a slot unless it is somebody else's by now.
	Free(b *pgx.Batch, s Slot)

	// Give gives a free slot to a holder, who has to claim it within d. It reports whether there
	// was one. q is in a transaction.
	Give(ctx context.Context, q Querier, w Want, holder string, d time.Duration) (bool, error)

	// Held counts the slots held of each place. A place is left out if its slots could not be
	// counted, and the error says why.
	Held(ctx context.Context, places []Place) (map[Place]int, error)
}
