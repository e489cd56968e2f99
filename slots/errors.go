package slots

import (
	"context"
	"errors"
	"fmt"

	"github.com/weir-go/weir/internal/limits/where"
	"github.com/weir-go/weir/internal/pgerr"
)

// What went wrong, for callers that only branch: compare with [errors.Is]. A wrong definition,
// request or configuration matches [ratelimit.ErrInvalid].
var (
	// ErrFull matches every [*FullError].
	ErrFull = errors.New("slots: full")

	// ErrLost is the cause of a [Hold.Context] that ends, and what [Hold.Err] returns, when a slot
	// could not be renewed in time. The database grants it to others, or soon will.
	ErrLost = errors.New("slots: slot lost: it was not renewed in time, and others may hold it")

	// ErrReleased is the cause of a [Hold.Context] that ends because of [Hold.Release], and what
	// [Hold.Err] returns after it.
	ErrReleased = errors.New("slots: slot released")

	// ErrClosed is matched by the error of a call to Slots that were closed.
	ErrClosed = errors.New("slots: closed")
)

// FullError says that all slots of a limit and key were held. It has no time to retry: work that
// holds a slot may end at any moment, or never.
type FullError struct {
	Limit string
	Key   string // "" for a limit without keys
	N     int    // how many slots there are
}

func (e *FullError) Error() string {
	held, of := "its slot is held", ""
	if e.N != 1 {
		held = fmt.Sprintf("all %d slots are held", e.N)
	}
	if e.Key != "" {
		of = fmt.Sprintf(" for %q", where.Short(e.Key))
	}
	return fmt.Sprintf("slots: limit %q%s is full: %s", e.Limit, of, held)
}

// Is reports whether target is [ErrFull].
func (e *FullError) Is(target error) bool { return target == ErrFull }

// hints are in addition to those of package pgerr.
var hints = map[string]string{"25006": "slots are held by writing: use the primary"}

// explain adds to an error what the call was doing and, for common errors, how to fix it.
func explain(ctx context.Context, err error, verb string, p place) error {
	if done := ctx.Err(); done != nil && !errors.Is(err, done) {
		err = fmt.Errorf("%w: %w", done, err)
	}
	return fmt.Errorf("slots: %s limit %q: %w", verb, p.name, pgerr.Hint(err, hints))
}
