package slotline

import (
	"strings"
	"time"

	"github.com/weir-go/weir/internal/hand"
)

const (
	mostNumbers = 20_000           // that a client remembers
	numberLasts = 10 * time.Minute // after that, the numbers that waiting jobs carry count again
)

// asked notes how many slots there are, by what a job asks for. Jobs that wait carry the number of
// the time when they came, which may have changed since.
func (g *Giver) asked(want hand.Want) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.numbers) >= mostNumbers {
		clear(g.numbers)
	}
	want.Key = strings.Clone(want.Key) // which may be a small part of something large
	g.numbers[want.Place] = number{want.N, time.Now()}
}

// number is how many slots there are, and when a job said so.
type number struct {
	n  int
	at time.Time
}

// numberOf is how many slots a place has: as a job here has asked lately, or else as the first in
// line did, or the job that ends.
func (g *Giver) numberOf(of hand.Place, first int) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if last := g.numbers[of]; time.Since(last.at) < numberLasts {
		return last.n
	}
	return first
}
