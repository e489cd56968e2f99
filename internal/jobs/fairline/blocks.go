package fairline

import (
	"time"

	"github.com/weir-go/weir/internal/jobs/ticket"
)

// blocks is what a line knows of balances that somebody holds. The chosen jobs take together, and
// the error does not say which balance it was. So the next grant is of half as many jobs, until it
// is of one: its other limits are then passed over for a while, with the tenants who need them, and
// the line goes on.
type blocks struct {
	few int                      // at most so many jobs are granted together; 0: any number
	of  map[ticket.Row]time.Time // limits that are passed over, and since when
	at  time.Time                // when a balance was found held last
}

const (
	passedFor = 2 * time.Second
	wary      = time.Minute // after a balance was held, none is waited for for longer than
	briefly   = 50 * time.Millisecond
)

// patience is how long a grant waits for a balance.
func (b *blocks) patience() time.Duration {
	if time.Since(b.at) < wary {
		return briefly
	}
	return balanceIn
}

// narrow notes that a grant has waited in vain for a balance. It reports whether the next one tries
// less.
func (b *blocks) narrow(g *grant) bool {
	b.at = time.Now()
	if n := len(g.chosen); n != 1 {
		b.few = n / 2
		return n > 1
	}
	b.few = 0
	passes := false
	for _, r := range g.chosen[0].requests {
		if of := ticket.RowOf(r); of != g.of {
			if b.of == nil {
				b.of = map[ticket.Row]time.Time{}
			}
			b.of[of], passes = b.at, true
		}
	}
	return passes
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
