package slots

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// patience is how long giving back may take.
const patience = 5 * time.Second

// lostAt is when a slot is lost, that was taken or renewed by what was sent at that time. By the
// database's clock it runs out no earlier than TTL after that.
func (s *Slots) lostAt(sent time.Time) time.Time { return sent.Add(s.ttl - s.ttl/10) }

func (s *Slots) every() time.Duration { return s.ttl / 3 }

// keep begins to renew a slot, unless it is too late for that.
func (s *Slots) keep(sl *slot) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.held[sl] = true
	sl.timer = time.AfterFunc(time.Until(sl.until), func() { s.expire(sl) })
	if !s.armed {
		s.armed = true
		s.timer = time.AfterFunc(s.every(), s.tick)
	}
	return true
}

// drop ends renewing a slot.
func (s *Slots) drop(sl *slot) {
	sl.timer.Stop()
	delete(s.held, sl)
	if len(s.held) > 0 {
		return
	}
	if s.armed && s.timer.Stop() {
		s.armed = false
	}
	if s.empty != nil {
		close(s.empty)
		s.empty = nil
	}
}

// expire is called when a slot is lost, unless it was renewed since.
func (s *Slots) expire(sl *slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if left := time.Until(sl.until); left > 0 && !sl.gone {
		sl.timer.Reset(left)
		return
	}
	s.lose(sl)
}

// lose ends the hold of a slot that is, or will be, somebody else's.
func (s *Slots) lose(sl *slot) {
	if sl.gone || !s.held[sl] {
		return
	}
	sl.gone = true
	s.drop(sl)
	if sl.hold != nil {
		sl.hold.end(ErrLost)
	}
	s.logger.Error("slots: a slot is lost", "limit", sl.Limit, "key", sl.Key, "slot", sl.Number)
}

// tick renews all that is held. After an error it comes again soon.
func (s *Slots) tick() {
	s.mu.Lock()
	if len(s.held) == 0 || s.stopped {
		s.armed = false
		s.mu.Unlock()
		return
	}
	s.everyone.Add(1)
	s.mu.Unlock()
	defer s.everyone.Done()

	err := s.renewAll(s.ctx)

	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.every()
	if err != nil {
		next = min(s.every()/10, time.Second)
		if !s.failing && !s.stopped {
			s.logger.Warn("slots: not renewed, will try again", "error", err)
		}
	}
	s.failing = err != nil
	if len(s.held) == 0 || s.stopped {
		s.armed = false
		return
	}
	s.timer.Reset(next)
}

// renewAll renews what is held, and takes note of what is not this process's any more.
func (s *Slots) renewAll(ctx context.Context) error {
	s.mu.Lock()
	all, late := make([]*slot, 0, len(s.held)), []*slot(nil)
	for sl := range s.held {
		if sl.missed {
			late = append(late, sl)
		} else {
			all = append(all, sl)
		}
	}
	all = append(all, late...) // if they wait for a node that does not answer, the others do not
	s.mu.Unlock()

	return eachKey(ctx, s, s.every(), all, keyOf, func(ctx context.Context, some []*slot) error {
		sent := time.Now()
		renewed, err := s.renew(ctx, some)
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, sl := range some {
			switch sl.missed = err != nil; {
			case err != nil || !s.held[sl]: // released meanwhile, or lost
			case renewed[sl.holder]:
				sl.until = s.lostAt(sent) // its timer finds that out
			default:
				s.lose(sl)
			}
		}
		if err != nil {
			return fmt.Errorf("slots: renew: %w", err)
		}
		return nil
	})
}

// forget removes what a call may have taken that nobody wants, or whose answer did not come.
func (s *Slots) forget(p place, holder string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return s.trip(ctx, s.pool, func(b *pgx.Batch) { b.Queue(s.sql.tidy, p.name, p.key, holder) })
}
