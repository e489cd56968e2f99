package ticket

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/weir-go/weir/ratelimit"
)

// Pacing is how jobs that become due together are spread.
type Pacing struct {
	Jitter time.Duration // at most
	Always bool          // and not only for what would start together
	Bunch  bool          // a window's work at its start
}

// Ticket is for a job whose tokens are taken, for a limited worker if it has paid. What was
// granted ahead of time may start then, with jitter.
func (p Pacing) Ticket(res *ratelimit.Result, attempts int, paid bool) Ticket {
	t := Ticket{Version: Version, Taken: res.Reservation(), Attempt: attempts, Paid: paid}
	t.At = res.At.UnixMicro()
	if res.RunAt.IsZero() {
		return t
	}
	var at time.Time
	var most time.Duration
	for i, k := range t.Taken.Takes {
		for _, o := range res.Outcomes {
			run := o.PacedAt
			if p.Bunch {
				run = o.RunAt
			}
			if o.Limit == k.Limit && o.Key == k.Key && run.After(at) {
				at, t.By = run, i
				if most = 0; p.Always || !k.Ahead() || p.Bunch && !o.WindowEnds.IsZero() {
					// a window's work stays in its window
					most = min(p.Jitter, o.Period/10, o.RunAt.Add(o.Period).Sub(at)/2)
				}
			}
		}
	}
	t.Jitter = Random(most).Microseconds()
	t.Due = at.UnixMicro() + t.Jitter
	return t
}

// Random is the jitter: uniform, drawn anew for each insert.
func Random(most time.Duration) time.Duration { return rand.N(max(most, 0) + 1) } //nolint:gosec // jitter

// Latest is the last of some instants.
func Latest(all ...time.Time) time.Time { return slices.MaxFunc(all, time.Time.Compare) }

// Reserving returns requests that may be granted for later. A Within of theirs stays.
func Reserving(requests []ratelimit.Request) []ratelimit.Request {
	all := make([]ratelimit.Request, len(requests))
	for i, r := range requests {
		all[i] = r.OrReserve()
	}
	return all
}
