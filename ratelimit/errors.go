package ratelimit

import (
	"errors"
	"fmt"
	"time"

	"github.com/weir-go/weir/internal/limits/where"
)

// What went wrong, for callers that only branch: compare with [errors.Is].
var (
	// ErrDenied matches every [*DeniedError].
	ErrDenied = errors.New("ratelimit: denied")

	// ErrInvalid matches every [*InvalidError]: a wrong definition, request or call.
	ErrInvalid = errors.New("ratelimit: invalid")

	// ErrNeverGranted matches an [*InvalidError] for a count that the limit can never grant. It
	// also matches ErrInvalid.
	ErrNeverGranted = errors.New("ratelimit: count can never be granted")

	// ErrNoDecision is what [Result.Err] returns for the zero Result, which a failed call returns.
	// It is not a denial.
	ErrNoDecision = errors.New(
		"ratelimit: no decision: the call failed, and its error was not checked",
	)

	// ErrConflict matches every [*ConflictError].
	ErrConflict = errors.New("ratelimit: conflict")

	// ErrOutcomeUnknown is matched by the error of an InTx whose connection was lost at COMMIT. All
	// of the transaction was committed, or none of it, and only the database can tell. A coalesced
	// call whose context ended while the database was deciding may return it too.
	ErrOutcomeUnknown = errors.New("ratelimit: outcome of COMMIT unknown")

	// ErrNested is matched by the error of an InTx, or of a verb of Autocommit, that was called
	// inside an InTx with its context, on the same pool. It is also matched if the connection that
	// InTx or SendBatch was given is in a transaction.
	ErrNested = errors.New("ratelimit: second transaction inside another one")
)

// DeniedError is a denial as an error: see [Result.Err].
type DeniedError struct {
	Limit string    // the limit that bound: of several, the one whose tokens come last
	Key   string    // its key; "" for a limit without keys
	At    time.Time // the database's clock at the decision
	// the first instant, by the same clock, at which the same call would be granted
	RetryAt time.Time

	// MaxReserved is that of the limit's rule, if the call was denied because more would have been
	// owed: the queue of reservations is full, and the key itself may have used little. Otherwise
	// 0.
	MaxReserved float64
}

// RetryAfter is the time from the decision to RetryAt, both by the database's clock, which may
// differ from the caller's. It is never negative.
func (e *DeniedError) RetryAfter() time.Duration { return max(0, e.RetryAt.Sub(e.At)) }

func (e *DeniedError) Error() string {
	of := ""
	if e.Key != "" {
		of = fmt.Sprintf(" for %q", where.Short(e.Key))
	}
	full := ""
	if e.MaxReserved > 0 {
		full = fmt.Sprintf(" more than its MaxReserved of %v would be owed:", e.MaxReserved)
	}
	return fmt.Sprintf("ratelimit: limit %q%s denied:%s retry after %v, at %s",
		e.Limit, of, full, e.RetryAfter(), e.RetryAt.UTC().Format(time.RFC3339Nano))
}

// Is reports whether target is [ErrDenied].
func (e *DeniedError) Is(target error) bool { return target == ErrDenied }

// InvalidError says which value of a definition or a call was refused, and what would be right.
// Nothing was sent to the database.
type InvalidError struct {
	Limit string // the limit's name, as far as it is known
	Field string // what was wrong: "Rate", "count", "key", ...
	Value any    // what it was
	Want  string // what would be right

	never bool
}

func (e *InvalidError) Error() string {
	of := ""
	if e.Limit != "" {
		of = fmt.Sprintf(" limit %q:", where.Short(e.Limit))
	}
	value := fmt.Sprint(e.Value)
	if s, ok := e.Value.(string); ok {
		value = fmt.Sprintf("%q", s)
	}
	if e.never {
		return fmt.Sprintf("ratelimit:%s %s %s can never be granted: want %s", of, e.Field, value,
			e.Want)
	}
	return fmt.Sprintf("ratelimit:%s %s is %s: want %s", of, e.Field, value, e.Want)
}

// plain is an InvalidError's Value that describes what was wrong. It is printed without quotes,
// which are for the caller's own strings.
type plain string

// Is reports whether target is [ErrInvalid] or, for a count that can never be granted,
// [ErrNeverGranted].
func (e *InvalidError) Is(target error) bool {
	return target == ErrInvalid || e.never && target == ErrNeverGranted
}

// ConflictError says that InTx gave up: the transaction failed to serialize, or deadlocked, on each
// of its attempts, up to MaxAttempts or the end of its context. Nothing was committed.
type ConflictError struct {
	Attempts int
	Err      error // the last one
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("ratelimit: gave up after attempt %d, as each conflicted with another transaction: %v",
		e.Attempts, e.Err)
}

// Is reports whether target is [ErrConflict].
func (e *ConflictError) Is(target error) bool { return target == ErrConflict }

// Unwrap returns the last attempt's error.
func (e *ConflictError) Unwrap() error { return e.Err }
