package slots

import (
	"context"
	"time"
)

// Waiting is how many of this process are in line.
func Waiting(s *Slots, name, key string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.lines[place{name, key}]; l != nil {
		return len(l.waiters)
	}
	return 0
}

// Renew is what is done in the background.
func Renew(ctx context.Context, s *Slots) error { return s.renewAll(ctx) }

// SetPasses sets for how long slots are passed on within a process.
func SetPasses(s *Slots, d time.Duration) { s.passes = d }
