package slots

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/hand"
	"github.com/weir-go/weir/internal/pgerr"
)

const (
	// soonest is the first pause before a waiting caller asks again. Each pause is twice the one
	// before, up to latest.
	soonest = 10 * time.Millisecond
	latest  = 250 * time.Millisecond

	// passes is how long a slot is handed on within a process. After that it is freed, so that
	// other processes get a chance.
	passes = 5 * time.Second
)

// line is the queue of callers in this process that wait for a slot of one limit and key with the
// same n, in the order of their turns. A caller with another n does not wait behind them: there may
// be a slot for it.
type line struct{ waiters []*waiter }

type waiter struct {
	turn  uint64
	first chan bool  // gets a value when the waiter becomes first: whether a slot may be free
	got   chan *slot // gets a slot that was handed on to the waiter
}

// one takes a slot. If there is none, or others wait for one here, a patient caller waits in the
// order of turns, and any other gets a FullError. Each time that it asks the database, it does so
// on a connection of on.
func (s *Slots) one(
	ctx context.Context, on hand.Connect, w *want, turn uint64, patient bool,
) (*slot, error) {
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
		sl, err := s.ask(ctx, on, w)
		if sl != nil || err != nil {
			return sl, err
		}
	}
	if !patient {
		return nil, &FullError{w.name, w.key, w.n}
	}
	return s.wait(ctx, on, w, turn)
}

// wait waits in line for a slot. A caller that becomes first asks the database at once, as a slot
// may be free. It pauses first in two cases: it was first from the start, and the database has just
// answered that the limit is full; or the caller before it got a slot that was handed on within
// this process.
func (s *Slots) wait(
	ctx context.Context, on hand.Connect, w *want, turn uint64,
) (*slot, error) {
	me := &waiter{turn: turn, first: make(chan bool, 1), got: make(chan *slot, 1)}
	s.join(*w, me)
	delay := soonest
	var pause <-chan time.Time
	var sl *slot
	var err error
	for sl == nil && err == nil {
		select {
		case sl = <-me.got:
			return sl, nil // pass has removed me from the line
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
		sl, err = s.ask(ctx, on, w)
		pause = time.After(jitter(delay))
	}
	if extra := s.leave(*w, me); extra != nil {
		if sl == nil && ctx.Err() == nil {
			return extra, nil
		}
		_ = s.release(ctx, []*slot{extra}) // if this fails, the slot expires
	}
	return sl, err
}

// jitter keeps the processes that wait from asking at the same time.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2) }

// join puts a waiter into the line, ahead of those that came later. If it becomes first, the one
// that was first before goes on asking, too.
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

// leave removes a waiter from the line. It returns the slot that was handed on to the waiter
// meanwhile, if any.
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

// remove removes the i-th waiter of a line. news tells the waiter that becomes first whether a slot
// may be free.
func (s *Slots) remove(w want, l *line, i int, news bool) {
	l.waiters = slices.Delete(l.waiters, i, i+1)
	switch {
	case len(l.waiters) == 0:
		delete(s.lines, w)
	case i == 0:
		select {
		case l.waiters[0].first <- news:
		default: // it was told before, and has not received that yet
		}
	}
}

// pass hands a slot on to the first caller in this process that waits for one with the same n. It
// reports whether there was such a caller.
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

// ask asks the database for a slot. If it returns neither a slot nor an error, the limit is full.
//
// If the caller's context ends first, ask returns, but does not cancel the statement: the server
// might still run it, even after a statement that undoes it. If the statement then gets a slot, the
// slot is given back.
func (s *Slots) ask(ctx context.Context, on hand.Connect, w *want) (*slot, error) {
	type answer struct {
		sl  *slot
		err error
	}
	answers, left := make(chan answer), make(chan struct{})
	s.everyone.Go(func() { // Close waits for this goroutine; it also waits for ask's caller
		sl, err := s.askDatabase(ctx, on, w)
		select {
		case answers <- answer{sl, err}:
		case <-left:
			if sl != nil {
				_ = s.release(ctx, []*slot{sl}) // if this fails, the slot expires
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

func (s *Slots) askDatabase(ctx context.Context, on hand.Connect, w *want) (*slot, error) {
	for locked, held := false, 0; ; {
		holder := uuid.NewString()
		var before time.Time // the statement is sent, after it may have waited for a connection
		var a answer
		sent := false
		err := on(ctx, func(c *pgxpool.Conn) (err error) {
			before = time.Now()
			a, sent, err = s.acquire(ctx, c, w, holder, locked)
			return err
		})
		switch {
		case err != nil && isLostRace(err):
		case pgerr.State(err) == "55P03" && held < 2: // lock_not_available: perhaps another slot is free
			held++
		case pgerr.State(err) == "55P03":
			return nil, nil
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
				_ = s.forget(w.place, holder) // if this fails, the slot expires
				return nil, errClosed(w)
			}
			return sl, nil
		case a.live >= int64(w.n):
			return nil, nil
		default:
			// A slot was free. Another caller was faster, or slots that were granted with a larger
			// n must be counted first, under leftSQL's lock.
			locked = a.left
		}
	}
}

// tidy frees, in the background, the slot that a call may have taken whose answer was lost.
func (s *Slots) tidy(p place, holder string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return // the slot expires
	}
	s.everyone.Go(func() { _ = s.forget(p, holder) })
}

func errClosed(w *want) error {
	return fmt.Errorf("%w: Close was called, so limit %q grants no slots", ErrClosed, w.name)
}
