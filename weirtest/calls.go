package weirtest

import (
	"slices"

	"github.com/weir-go/weir/ratelimit"
)

// Call is a call of a [Limiter].
type Call struct {
	Verb     string              // "RateLimit", "CheckRateLimit", ...
	Requests []ratelimit.Request // for Settle what was used
	// of RateLimit, CheckRateLimit and Wait; for GiveBack what was given back
	Result ratelimit.Result

	Reservation ratelimit.Reservation // for Settle and Release
	Settled     bool                  // what Settle or Release returned
	Key         string                // for ResetKey
	Err         error
}

// Calls returns the calls that were made so far, in order.
func (l *Limiter) Calls() []Call {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.calls)
}

func (l *Limiter) note(c Call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls = append(l.calls, c)
}
