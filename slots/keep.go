package slots

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// patience is the timeout for giving slots back, and for counting them in Held.
const patience = 5 * time.Second

// lostAt returns when a slot is lost, if the statement that took or renewed it was sent at this
// time. In the database the slot expires later: a TTL after that time, at the earliest.
func (s *Slots) lostAt(sent time.Time) time.Time { return sent.Add(s.ttl - s.ttl/10) }

func (s *Slots) every() time.Duration { return s.ttl / 3 }

// keep starts to renew a slot. It returns false after Close: then the caller must free the slot.
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

// drop stops the renewals of a slot.
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

// expire runs when the timer of a slot fires. If the slot was renewed meanwhile, expire sets the
// timer again, and otherwise the slot is lost.
func (s *Slots) expire(sl *slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if left := time.Until(sl.until); left > 0 && !sl.gone {
		sl.timer.Reset(left)
		return
	}
	s.lose(sl)
}

// lose ends the hold of a slot that another process holds, or soon may.
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

// tick renews all held slots, and sets the timer for the next renewal: sooner after an error.
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

// renewAll renews all held slots, and ends the holds of those that were lost.
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
	// Slots that were not renewed the last time go last: if their node still does not answer, the
	// others need not wait for it.
	all = append(all, late...)
	s.mu.Unlock()

	return eachKey(ctx, s, s.every(), all, keyOf, func(ctx context.Context, some []*slot) error {
		sent := time.Now()
		// On Citus the statement is for one key. Elsewhere it is for all, and may have failed because
		// somebody holds one of the rows.
		spread := s.spread.Load()
		free := len(late) > 0 && (spread == nil || !*spread)
		renewed, err := s.renew(ctx, some, free)
		locked := false
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, sl := range some {
			done, held := renewed[sl.holder]
			switch sl.missed = err != nil || held && !done; {
			case err != nil || !s.held[sl]: // an error, or the slot was released or lost meanwhile
			case done:
				sl.until = s.lostAt(sent) // expire sets the timer again
			case !held:
				s.lose(sl)
			}
			locked = locked || held && !done
		}
		if locked {
			err = errLocked
		}
		if err != nil {
			return fmt.Errorf("slots: renew: %w", err)
		}
		return nil
	})
}

var errLocked = errors.New("other transactions have locked the rows of some slots")

// forget frees the slot of a holder that nobody uses: the Slots were closed when the slot came, or
// the answer of the call that may have taken it was lost.
func (s *Slots) forget(p place, holder string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return s.trip(ctx, s.pool, func(b *pgx.Batch) { b.Queue(s.sql.tidy, p.name, p.key, holder) })
}
