package lockout

import (
	"fmt"
	"time"

	"github.com/weir-go/weir/ratelimit"
)

// LockedError says that an attempt was denied, and nothing was checked. It wraps a
// [*ratelimit.DeniedError] and matches [ratelimit.ErrDenied]. It is the same for accounts that
// exist and for those that do not.
type LockedError struct {
	// "account", "device" or "address": whose lock it is; of several, the one that ends last
	Whose string
	At    time.Time // the database's clock at the decision
	// the first instant, by the same clock, at which an attempt is not denied if nobody else came
	Until time.Time

	limit, key string
}

// RetryAfter is the time from the decision to Until. It is never negative, and needs no clock of
// the caller's. For a Retry-After header round it up to whole seconds, as [Lockout.Pass] does.
func (e *LockedError) RetryAfter() time.Duration { return max(0, e.Until.Sub(e.At)) }

func (e *LockedError) Error() string {
	return fmt.Sprintf("lockout: the %s is locked for another %v, until %s", e.Whose,
		e.RetryAfter(), e.Until.UTC().Format(time.RFC3339Nano))
}

// Unwrap returns a [*ratelimit.DeniedError].
func (e *LockedError) Unwrap() error {
	return &ratelimit.DeniedError{Limit: e.limit, Key: e.key, At: e.At, RetryAt: e.Until}
}
