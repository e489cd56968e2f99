package slots

import (
	"context"
	"time"
)

// Slot is a slot that is held.
type Slot struct {
	Limit, Key string

	// Number is which of the slots 0 to n-1 it is: of those who hold slots of the key, no two have the same. It may choose
	// one of n ports, of n accounts, of n directories.
	Number int

	// Token fences: of two who hold the same slot one after the other, the later has the larger Token, and the same one only
	// if it was passed on within a process. It is the time in microseconds at which the slot was granted, or one more than
	// the Token before, if that is more; so it stays below 2^53, and grows even where a clock is set back by up to an hour,
	// or clocks of several nodes differ by so much. A resource that notes the largest that it has seen for a slot, and refuses all
	// that are smaller, is safe from a process that was suspended and does not know yet that its slot is lost.
	Token int64
}

// Hold is slots that are held, until [Hold.Release]. While the process lives they are renewed in the background. It is safe for
// concurrent use.
type Hold struct {
	s     *Slots
	slots []*slot
	all   []Slot
	ctx   context.Context // ends with the hold
	end   context.CancelCauseFunc
}

// slot is one slot that this process has, while it is held and while it is passed on. What follows Slot is guarded by Slots.mu.
type slot struct {
	Slot

	holder string // as the row has it
	n      int    // that it was granted by

	since time.Time // when this process got it
	until time.Time // when it is lost, if it is not renewed
	timer *time.Timer
	gone  bool // it was lost
	hold  *Hold
}

// hold makes a Hold of slots, some of which may have been lost since.
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

// Slots are the slots that are, or were, held: sorted by limit and key.
func (h *Hold) Slots() []Slot { return h.all }

// Context returns a child of parent that ends when a slot is lost, with [ErrLost] as its [context.Cause], or the hold is
// released, with [ErrReleased].
//
// A slot is lost when it was not renewed for TTL, less a tenth of it: counted on this process's own clock from before the last
// renewal was sent, so that the context ends before the database gives the slot to somebody else. The tenth is the time in
// which the work should notice. What cannot be noticed is a process that is suspended for longer, which goes on where it was,
// and a database whose clock jumps ahead: see [Hold.Err] and [Slot.Token].
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

// Err is nil as long as all slots are held, by this process's own clock at this moment: for a look right before what must not
// happen without the slot, as a process that was suspended may come there before its contexts have ended. Then it is
// [ErrLost], or after Release [ErrReleased].
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

// Release gives the slots back: to who waits for them in this process, or with one round trip to the database. It does so also
// if ctx has ended, for which it takes no longer than 5 seconds. With an error the slots may still be held, and free
// themselves after TTL. What was lost is given back as far as nobody else has it yet; to release again does nothing.
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

// release gives back slots that are this caller's alone.
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
		s.everyone.Add(1) // Close waits
		defer s.everyone.Done()
	}
	s.mu.Unlock()
	if len(back) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	err := s.giveBack(ctx, back)
	for err != nil && isLostRace(err) && ctx.Err() == nil {
		err = s.giveBack(ctx, back)
	}
	if err != nil {
		return explain(ctx, err, "release a slot of", place{back[0].Limit, back[0].Key})
	}
	return nil
}
