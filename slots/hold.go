package slots

import (
	"context"
	"time"
)

// Slot is a slot that is held.
type Slot struct {
	Limit, Key string

	// Number is which of the slots 0 to n-1 it is. No two holders of the key have the same number.
	// Use it to choose one of n ports, accounts or directories, for example.
	Number int

	// Token is a fencing token: it grows with each grant of a slot, and stays the same only if the
	// slot is passed on within a process. It is the time of the grant in microseconds, or one more
	// than the token before, if that is more. So it stays below 2^53. It grows even if a clock is
	// set back by up to an hour, or the clocks of several nodes differ by up to an hour. A resource
	// that remembers the largest token that it has seen for a slot, and refuses smaller ones, is
	// safe from a process that was suspended and does not know yet that its slot is lost.
	Token int64
}

// Hold has slots that are held until [Hold.Release]. While the process lives they are renewed in
// the background. It is safe for concurrent use.
type Hold struct {
	s     *Slots
	slots []*slot
	all   []Slot
	ctx   context.Context // ends with the hold
	end   context.CancelCauseFunc
}

// slot is a slot that this process has: it is held, or is being handed on to another caller.
// Slots.mu guards the fields after Slot.
type slot struct {
	Slot

	holder string // the holder in the slot's row
	n      int    // how many slots the limit had for the call that got it

	since  time.Time // when this process got it
	until  time.Time // when it is lost, unless it is renewed before
	timer  *time.Timer
	gone   bool // it was lost
	missed bool // the last renewal failed
	hold   *Hold
}

func keyOf(sl *slot) string { return sl.Key }

// hold makes a Hold of slots. Some of them may already be lost.
func (s *Slots) hold(slots []*slot) *Hold {
	h := &Hold{s: s, slots: slots}
	h.ctx, h.end = context.WithCancelCause(context.Background())
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sl := range slots {
		h.all = append(h.all, sl.Slot)
		if sl.hold = h; sl.gone {
			h.end(ErrLost)
		}
	}
	return h
}

// Slots returns the slots that are, or were, held, sorted by limit and key.
func (h *Hold) Slots() []Slot { return h.all }

// Context returns a child of parent that ends when a slot is lost, with [ErrLost] as its
// [context.Cause], or the hold is released, with [ErrReleased].
//
// A slot is lost when it was not renewed for nine tenths of TTL, counted on this process's own
// clock from before the last renewal was sent. So the context ends before the database grants the
// slot to another process, and the work has a tenth of TTL to stop. Two cases cannot be noticed: a
// process that is suspended for longer, and a database whose clock jumps ahead. See [Hold.Err] and
// [Slot.Token].
func (h *Hold) Context(parent context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(parent)
	if err := context.Cause(h.ctx); err != nil {
		cancel(err)
		return ctx
	}
	stop := context.AfterFunc(h.ctx, func() { cancel(context.Cause(h.ctx)) })
	context.AfterFunc(ctx, func() { stop() })
	return ctx
}

// Err is nil as long as all slots are held, according to this process's own clock at this moment.
// Otherwise it is [ErrLost], or after Release [ErrReleased]. Check it right before a step that must
// not happen without the slot: a process that was suspended may get there before its contexts have
// ended. Where the whole machine was suspended, as a paused virtual machine is, its clock stood
// still: then a lost slot is only noticed with the next renewal, up to a third of TTL later.
func (h *Hold) Err() error {
	if err := context.Cause(h.ctx); err != nil {
		return err
	}
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	for _, sl := range h.slots {
		if sl.hold == h && time.Until(sl.until) <= 0 {
			h.s.lose(sl)
		}
	}
	return context.Cause(h.ctx)
}

// Release gives the slots back: to callers that wait for them in this process, or with one round
// trip to the database. It does so even if ctx has ended, and then takes at most 5 seconds. After
// an error the slots may still be held, and expire after TTL. Lost slots are released if nobody
// else has them yet. A second Release does nothing.
func (h *Hold) Release(ctx context.Context) error {
	h.s.mu.Lock()
	mine := make([]*slot, 0, len(h.slots))
	for _, sl := range h.slots {
		if sl.hold == h {
			mine = append(mine, sl)
		}
	}
	h.slots = nil
	h.s.mu.Unlock()
	h.end(ErrReleased)
	return h.s.release(ctx, mine)
}

// release hands each slot on to a caller that waits for it in this process, or else frees it in the
// database. Only one caller may release a slot.
func (s *Slots) release(ctx context.Context, slots []*slot) error {
	s.mu.Lock()
	back := make([]*slot, 0, len(slots))
	for _, sl := range slots {
		if s.pass(sl) {
			continue
		}
		back = append(back, sl)
		s.drop(sl)
	}
	if len(back) > 0 && !s.stopped {
		s.everyone.Add(1) // Close waits for this call
		defer s.everyone.Done()
	}
	s.mu.Unlock()
	if len(back) == 0 {
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	return eachKey(ctx, s, patience, back, keyOf, func(ctx context.Context, some []*slot) error {
		err := s.giveBack(ctx, some)
		for err != nil && isLostRace(err) && ctx.Err() == nil {
			err = s.giveBack(ctx, some)
		}
		if err != nil {
			return explain(ctx, err, "release a slot of", place{some[0].Limit, some[0].Key})
		}
		return nil
	})
}
