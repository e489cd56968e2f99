package ratelimit

import (
	"slices"
	"time"
)

const (
	// kept is how long tokens stay in memory, counted from before the take was sent. Then they are
	// given back.
	kept = time.Second

	// late is how much longer giving back may take. Tokens that were not given back by then are
	// lost. So nothing of a take comes back to the row after kept + late.
	late = 500 * time.Millisecond
)

// block is what this process holds of a take from one row.
type block struct {
	c     receipt // the take: c.Count tokens
	value float64 // the balance that the take left in the row
	at    int64   // the row's time then, in microseconds
	sent  int64   // the lease's clock before the take was sent

	left float64 // still held; some may have expired
	gone bool    // nothing of it may be handed out any more

	// At most room - slope*(now-sent) may be held at now, until another window begins or the block
	// is given back.
	room, slope float64
	until       int64
}

func newBlock(c receipt, value float64, at, sent int64) *block {
	b := &block{c: c, value: value, at: at, sent: sent, left: c.Count}
	b.renew(sent)
	return b
}

// latest returns the latest time that the database's clock may show at now, in microseconds.
func (b *block) latest(now int64) int64 { return b.at + (now-b.sent+999)/1000 }

// bound returns how much may be held at now.
func (b *block) bound(now int64) float64 {
	return b.c.Capacity - b.c.Refilled(b.value, b.at, b.latest(now))
}

// renew computes room, slope and until.
func (b *block) renew(now int64) {
	b.until = b.sent + int64(kept)
	if !b.c.Windowed {
		const rounding = 1 + 1.0/(1<<40)
		b.room, b.slope = b.c.Capacity-b.value, b.c.Rate/float64(b.c.Period)/1000*rounding
		return
	}
	b.room = b.bound(now)
	at := b.latest(now)
	if next := b.c.Origin + (b.c.Window(at)+1)*b.c.Period; next-b.at < kept.Microseconds() {
		b.until = min(b.until, b.sent+(next-b.at-1)*1000+1) // when latest shows it
	}
}

// spoil drops the tokens that would have overflowed in the row by now. It counts them as used,
// because the next block has to replace them.
func (b *block) spoil(now int64, used *float64) {
	if now >= b.until && now < b.sent+int64(kept) {
		b.renew(now)
	}
	if most := b.room - b.slope*float64(now-b.sent); b.left > most {
		*used += b.left - max(0, most)
		b.left = max(0, most)
	}
}

// draw takes n from the block, if it has as much.
func (b *block) draw(n float64, now int64, used *float64) bool {
	if now >= b.until {
		return false
	}
	if most := b.room - b.slope*float64(now-b.sent); b.left > most {
		b.spoil(now, used)
	}
	if n > b.left {
		return false
	}
	b.left -= n
	*used += n
	return true
}

// granted returns the Result of a take from the block.
func (b *block) granted(now int64) Result {
	return Result{OK: true, At: fromMicro(b.at + (now-b.sent)/1000)}
}

// back returns how much of the block may be given back by a statement that is sent now.
//
// The statement takes effect at most late after now. By the time when all that was taken before it
// has left every process's memory, what is given back must not have expired: the proof in lease.go
// then still holds. For windows without rollover only the window matters, and the statement checks
// that.
func (b *block) back(now int64) float64 {
	most := b.bound(now)
	if !b.c.Windowed || b.c.Capacity > b.c.Rate {
		most = b.bound(now + int64(late+kept+late))
	}
	return max(0, min(b.left, most))
}

// chunk is a part of a block that was taken, and may be put back.
type chunk struct {
	b *block
	n float64
}

// sweep drops from the hand what has expired, is used up, or was held long enough.
func (s *Lease) sweep(now int64) {
	s.rest = 0
	s.hand = slices.DeleteFunc(s.hand, func(b *block) bool {
		b.spoil(now, &s.used)
		if now >= b.sent+int64(kept) {
			b.gone = true
			if b.left >= s.least {
				s.back = append(s.back, b)
			}
			return true
		}
		s.rest += b.left
		return b.left < s.least
	})
	if len(s.hand) > 0 {
		s.rest -= s.hand[0].left
	}
}

// inHand returns how much the lease holds. Call sweep first.
func (s *Lease) inHand() float64 { return leftOf(s.hand) }

func leftOf(blocks []*block) (sum float64) {
	for _, b := range blocks {
		sum += b.left
	}
	return sum
}

// gather takes n from the hand, or as much as there is. Call sweep first.
func (s *Lease) gather(n float64, now int64) (chunks []chunk, missing float64) {
	for _, b := range s.hand {
		if n <= 0 {
			break
		}
		x := min(n, b.left)
		b.left -= x
		n -= x
		s.used += x
		chunks = append(chunks, chunk{b, x})
	}
	s.sweep(now)
	return chunks, n
}

// putBack puts back what was not used. Parts of blocks that are no longer held are lost.
func (s *Lease) putBack(chunks []chunk, now int64) {
	for _, c := range chunks {
		s.used -= c.n
		if c.b.gone || now >= c.b.sent+int64(kept) {
			continue
		}
		c.b.left += c.n
		if !slices.Contains(s.hand, c.b) {
			s.hand = append(s.hand, c.b)
		}
	}
	slices.SortStableFunc(s.hand, func(a, b *block) int {
		return int(max(-1, min(1, a.sent-b.sent)))
	})
	s.sweep(now)
	s.used = max(0, s.used)
	s.arm(now)
}

// arm starts the timer that gives back what stays in hand.
func (s *Lease) arm(now int64) {
	if s.armed || s.closed || len(s.hand) == 0 {
		return
	}
	s.armed = true
	wait := time.Duration(s.hand[0].sent + int64(kept) - now)
	if s.l.cfg.Clock != nil {
		wait = kept
	}
	if s.timer == nil {
		s.timer = time.AfterFunc(wait, s.tick)
	} else {
		s.timer.Reset(wait)
	}
}

func (s *Lease) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armed = false
	if s.closed {
		return
	}
	now := s.now()
	s.sweep(now)
	s.giveBackSoon()
	s.arm(now)
}
