package ratelimit

import (
	"slices"
	"time"

	"github.com/weir-go/weir/internal/limits/inhand"
)

// block is what this process holds of a take from one row.
type block struct {
	inhand.Block
	c    receipt // the take: c.Count tokens
	gone bool    // nothing of it may be handed out any more
}

func newBlock(c receipt, value float64, at, sent int64) *block {
	return &block{Block: inhand.New(&c.Rule, c.Count, value, at, sent), c: c}
}

// granted returns the Result of a take from the block.
func (b *block) granted(now int64) Result { return Result{OK: true, At: fromMicro(b.Time(now))} }

// chunk is a part of a block that was taken, and may be put back.
type chunk struct {
	b *block
	n float64
}

// sweep drops from the hand what has expired, is used up, or was held long enough.
func (s *Lease) sweep(now int64) {
	s.rest = 0
	s.hand = slices.DeleteFunc(s.hand, func(b *block) bool {
		b.Spoil(now, &s.used)
		if b.Over(now) {
			b.gone = true
			if b.Left >= s.least {
				s.back = append(s.back, b)
			}
			return true
		}
		s.rest += b.Left
		return b.Left < s.least
	})
	if len(s.hand) > 0 {
		s.rest -= s.hand[0].Left
	}
}

// inHand returns how much the lease holds. Call sweep first.
func (s *Lease) inHand() float64 { return leftOf(s.hand) }

func leftOf(blocks []*block) (sum float64) {
	for _, b := range blocks {
		sum += b.Left
	}
	return sum
}

// gather takes n from the hand, or as much as there is. Call sweep first.
func (s *Lease) gather(n float64, now int64) (chunks []chunk, missing float64) {
	for _, b := range s.hand {
		if n <= 0 {
			break
		}
		x := min(n, b.Left)
		b.Left -= x
		n -= x
		s.used += x
		chunks = append(chunks, chunk{b, x})
	}
	s.sweep(now)
	return chunks, n
}

// putBack puts back what was not used, to be given back if it was held long enough. Parts of blocks
// that are no longer held are lost.
func (s *Lease) putBack(chunks []chunk, now int64) {
	for _, c := range chunks {
		s.used -= c.n
		if c.b.gone {
			continue
		}
		c.b.Left += c.n
		if !slices.Contains(s.hand, c.b) {
			s.hand = append(s.hand, c.b)
		}
	}
	slices.SortStableFunc(s.hand, func(a, b *block) int {
		return int(max(-1, min(1, a.Sent-b.Sent)))
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
	wait := time.Duration(s.hand[0].Sent + int64(inhand.Kept) - now)
	if s.l.cfg.Clock != nil {
		wait = inhand.Kept
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
