package slots

import (
	"context"
	"time"
)

// Waiting is how many of this process are in line.
func Waiting(s *Slots, name, key string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for w, l := range s.lines {
		if w.place == (place{name, key}) {
			n += len(l.waiters)
		}
	}
	return n
}

// Renew is what is done in the background.
func Renew(ctx context.Context, s *Slots) error { return s.renewAll(ctx) }

// SetPasses sets for how long slots are passed on within a process.
func SetPasses(s *Slots, d time.Duration) { s.passes = d }
