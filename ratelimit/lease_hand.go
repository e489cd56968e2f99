package ratelimit

import (
	"math"
	"slices"
	"time"
)

const (
	// kept is for how long what was taken stays in hand, from before the take was sent. It is then given back.
	kept = time.Second

	// late is how much longer that may take: what was not given back by then is lost. So late after it was to be out of
	// hand, nothing of a take comes back to the row.
	late = 500 * time.Millisecond
)

// block is what is in hand of a take from one row.
type block struct {
	c     call    // the take: c.count tokens
	rule  algebra // of the row
	value float64 // that it has left in the row
	at    int64   // at this time of the row, in microseconds
	sent  int64   // the lease's clock before that

	left float64 // in hand, some of which may have spoilt
	gone bool    // nothing of it is handed out any more

	// What may be in hand at now is room - slope*(now-sent), until another window begins or the block is given back.
	room, slope float64
	until       int64
}

func newBlock(c call, rule algebra, left balance, sent int64) *block {
	b := &block{c: c, rule: rule, value: left.value, at: left.ts, sent: sent, left: c.count}
	b.renew(sent)
	return b
}

// latest is the latest that the database's clock may show at now, in microseconds.
func (b *block) latest(now int64) int64 { return b.at + (now-b.sent+999)/1000 }

// bound is the most that may be in hand at now.
func (b *block) bound(now int64) float64 {
	return b.rule.capacity - b.rule.refilled(b.value, b.at, b.latest(now))
}

// renew makes room and until anew.
func (b *block) renew(now int64) {
	b.until = b.sent + int64(kept)
	if !b.rule.windowed {
		const rounding = 1 + 1.0/(1<<40)
		b.room, b.slope = b.rule.capacity-b.value, b.rule.rate/float64(b.rule.period)/1000*rounding
		return
	}
	b.room = b.bound(now)
	at := b.latest(now)
	if next := b.rule.origin + (b.rule.window(at)+1)*b.rule.period; next-b.at < kept.Microseconds() {
		b.until = min(b.until, b.sent+(next-b.at-1)*1000+1) // when latest shows it
	}
}

// spoil lets go of what has overflowed by now, and counts it as used: it has to be fetched again like that.
func (b *block) spoil(now int64, used *float64) {
	if now >= b.until && now < b.sent+int64(kept) {
		b.renew(now)
	}
	if most := b.room - b.slope*float64(now-b.sent); b.left > most {
		*used += b.left - max(0, most)
		b.left = max(0, most)
	}
}

// draw takes n if the block has as much.
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

// granted is the Result of a take from the block.
func (b *block) granted(now int64) Result {
	return Result{OK: true, At: fromMicro(b.at + (now-b.sent)/1000)}
}

// back is what may be given back of the block by a statement that is sent now: what would not yet have spoilt when all is out
// of hand that was taken before the statement takes effect, which is at most late after now. What others took and gave back
// in the meantime is proved against that. Where the tokens of each window replace all that was there, they do not add up to
// anything, and the window is all that matters: the statement sees to that.
func (b *block) back(now int64) float64 {
	most := b.bound(now)
	if !b.rule.windowed || b.rule.capacity > b.rule.rate {
		most = b.bound(now + int64(late+kept+late))
	}
	return max(0, min(b.left, most))
}

// chunk is what was taken from a block, for a caller who may yet give it back to the hand.
type chunk struct {
	b *block
	n float64
}

// sweep lets go of what has spoilt, is used up, or was in hand for long enough.
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

// inHand is how much there is, after a sweep.
func (s *Lease) inHand() float64 {
	sum := 0.0
	for _, b := range s.hand {
		sum += b.left
	}
	return sum
}

// gather takes n from the hand, or whatever less it has. It is for after a sweep.
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

// putBack gives to the hand what was not used after all. What is not in hand any more is lost.
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
	slices.SortStableFunc(s.hand, func(a, b *block) int { return int(max(-1, min(1, a.sent-b.sent))) })
	s.sweep(now)
	s.used = math.Max(0, s.used)
	s.arm(now)
}

// arm sees to it that what stays in hand is given back.
func (s *Lease) arm(now int64) {
	if s.armed || s.closed || len(s.hand) == 0 {
		return
	}
	s.armed = true
	wait := time.Duration(s.hand[0].sent + int64(kept) - now)
	if s.l.clock != nil {
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
