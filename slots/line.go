package slots

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"
)

const (
	soonest = 10 * time.Millisecond // after which who waits asks again, at first
	latest  = 250 * time.Millisecond

	// passes is for how long a slot is passed on within a process. Then others get a chance.
	passes = 5 * time.Second
)

// line is those of this process that wait for a slot of one limit and key with the same number of
// slots, in the order of their turns. A caller with another number is not behind them: there may be
// a slot for it.
type line struct{ waiters []*waiter }

type waiter struct {
	turn  uint64
	first chan bool  // tells, once it is the first of the line, whether there may be a free slot
	got   chan *slot // a slot that was passed on to it
}

// one takes a slot, or waits for it in the order of turns.
func (s *Slots) one(ctx context.Context, w *want, turn uint64, patient bool) (*slot, error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, errClosed(w)
	}
	busy := s.lines[*w] != nil
	s.everyone.Add(1)
	s.mu.Unlock()
	defer s.everyone.Done()

	if !busy {
		sl, err := s.ask(ctx, w)
		if sl != nil || err != nil {
			return sl, err
		}
	}
	if !patient {
		return nil, &FullError{w.name, w.key, w.n}
	}
	return s.wait(ctx, w, turn)
}

// wait stands in line. Who becomes the first asks at once, but after a while if nothing can have
// changed since somebody was told that there is none: as it was the first from the beginning, or as
// the one before has a slot that was passed on.
func (s *Slots) wait(ctx context.Context, w *want, turn uint64) (*slot, error) {
	me := &waiter{turn: turn, first: make(chan bool, 1), got: make(chan *slot, 1)}
	s.join(*w, me)
	delay := soonest
	var pause <-chan time.Time
	var sl *slot
	var err error
	for sl == nil && err == nil {
		select {
		case sl = <-me.got:
			return sl, nil // who passes it on has taken me out of the line
		case <-ctx.Done():
			err = fmt.Errorf("slots: wait for limit %q: %w", w.name, ctx.Err())
			continue
		case <-s.closing:
			err = errClosed(w)
			continue
		case news := <-me.first:
			if !news {
				pause = time.After(jitter(delay))
				continue
			}
		case <-pause:
			delay = min(2*delay, latest)
		}
		sl, err = s.ask(ctx, w)
		pause = time.After(jitter(delay))
	}
	if extra := s.leave(*w, me); extra != nil {
		if sl == nil && ctx.Err() == nil {
			return extra, nil
		}
		_ = s.release(ctx, []*slot{extra}) // or it frees itself
	}
	return sl, err
}

// jitter keeps the processes that wait from asking at the same time.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2) }

// join puts a waiter into line, ahead of those who came later. If another was the first until now
// it goes on asking, too.
func (s *Slots) join(w want, me *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lines[w]
	if l == nil {
		l = &line{}
		s.lines[w] = l
	}
	i, _ := slices.BinarySearchFunc(l.waiters, me.turn, func(o *waiter, t uint64) int {
		return cmp.Compare(o.turn, t)
	})
	l.waiters = slices.Insert(l.waiters, i, me)
	if i == 0 {
		me.first <- false
	}
}

// leave takes a waiter out of the line. If a slot was passed on to it meanwhile, it has that.
func (s *Slots) leave(w want, me *waiter) *slot {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.lines[w]; l != nil {
		if i := slices.Index(l.waiters, me); i >= 0 {
			s.remove(w, l, i, true)
			return nil
		}
	}
	return <-me.got
}

// remove takes the i-th out of a line.
func (s *Slots) remove(w want, l *line, i int, news bool) {
	l.waiters = slices.Delete(l.waiters, i, i+1)
	switch {
	case len(l.waiters) == 0:
		delete(s.lines, w)
	case i == 0:
		select {
		case l.waiters[0].first <- news:
		default: // it was told before, and has not looked yet
		}
	}
}

// pass gives a slot to the first who waits for it here by the number of slots by which it was
// granted, and tells whether there was one.
func (s *Slots) pass(sl *slot) bool {
	w := want{place{sl.Limit, sl.Key}, sl.n}
	l := s.lines[w]
	if l == nil || s.closed || sl.gone || time.Since(sl.since) >= s.passes ||
		time.Until(sl.until) <= 0 {
		return false
	}
	first := l.waiters[0]
	s.remove(w, l, 0, false)
	sl.hold = nil
	first.got <- sl
	return true
}

// ask asks the database for a slot. Without an error and a slot the limit is full. Who leaves
// before there is an answer leaves nothing behind: a statement that is cancelled may be run all the
// same, after whatever would undo it, so it is not cancelled, and what it takes is given back.
func (s *Slots) ask(ctx context.Context, w *want) (*slot, error) {
	type answer struct {
		sl  *slot
		err error
	}
	answers, left := make(chan answer), make(chan struct{})
	s.everyone.Go(func() { // who calls this is counted, too
		sl, err := s.askDatabase(ctx, w)
		select {
		case answers <- answer{sl, err}:
		case <-left:
			if sl != nil {
				_ = s.release(ctx, []*slot{sl}) // or it frees itself
			}
		}
	})
	select {
	case a := <-answers:
		return a.sl, a.err
	case <-ctx.Done():
		close(left)
		return nil, explain(ctx, ctx.Err(), "acquire a slot of", w.place)
	}
}

func (s *Slots) askDatabase(ctx context.Context, w *want) (*slot, error) {
	for locked := false; ; {
		holder := uuid.NewString()
		before := time.Now()
		a, sent, err := s.acquire(ctx, w, holder, locked)
		switch {
		case err != nil && isLostRace(err):
		case err != nil:
			if sent {
				s.tidy(w.place, holder)
			}
			return nil, explain(ctx, err, "acquire a slot of", w.place)
		case a.slot != nil:
			sl := &slot{
				Slot:   Slot{Limit: w.name, Key: w.key, Number: int(*a.slot), Token: *a.token},
				holder: holder, n: w.n, since: before, until: s.lostAt(before),
			}
			if !s.keep(sl) {
				_ = s.forget(w.place, holder) // or it frees itself
				return nil, errClosed(w)
			}
			return sl, nil
		case a.live >= int64(w.n):
			return nil, nil
		default:
			// There was one. Somebody was faster, or what a larger n has left is to be counted.
			locked = a.left
		}
	}
}

// tidy removes in the background what a call may have taken whose answer did not come.
func (s *Slots) tidy(p place, holder string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return // it frees itself
	}
	s.everyone.Go(func() { _ = s.forget(p, holder) })
}

func errClosed(w *want) error { return fmt.Errorf("%w: limit %q", ErrClosed, w.name) }
