package fairline

import (
	"time"

	"github.com/weir-go/weir/internal/jobs/ticket"
)

// blocks is what a line knows of balances that somebody holds. The chosen jobs take together, and
// the error does not say which balance it was. So the next grant is of half as many jobs, until it
// is of one: its other limits are then passed over for a while, with the tenants who need them. A
// round finds one such job. If it is the line's own balance that is held, the round goes on to the
// next line after that.
type blocks struct {
	few int                      // at most so many jobs are granted together; 0: any number
	of  map[ticket.Row]time.Time // limits that are passed over, and since when
}

const (
	passedFor = 5 * time.Second
	briefly   = 50 * time.Millisecond // how long a balance is waited for while fewer jobs are tried
)

// patience is how long a grant waits for a balance.
func (b *blocks) patience() time.Duration {
	if b.few > 0 {
		return briefly
	}
	return balanceIn
}

// narrow notes that a grant has waited in vain for a balance. It reports whether to try fewer jobs
// at once.
func (b *blocks) narrow(g *grant) bool {
	if n := len(g.chosen); n != 1 {
		b.few = n / 2
		return n > 1
	}
	b.few = 0
	for _, r := range g.chosen[0].requests {
		if of := ticket.RowOf(r); of != g.of {
			if b.of == nil {
				b.of = map[ticket.Row]time.Time{}
			}
			b.of[of] = time.Now()
		}
	}
	return false
}

// passOver adds the limits that are passed over to those that have no tokens.
func (b *blocks) passOver(out map[ticket.Row]bool) {
	for of, since := range b.of {
		if time.Since(since) < passedFor {
			out[of] = true
		} else {
			delete(b.of, of)
		}
	}
}
