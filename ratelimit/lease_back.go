package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weir-go/weir/internal/limits/inhand"
)

// giveBack gives back what is left of blocks that are no longer in hand.
func (s *Lease) giveBack(ctx context.Context, blocks []*block) error {
	var errs []error
	for _, b := range blocks {
		errs = append(errs, s.giveBlock(ctx, b))
	}
	return errors.Join(errs...)
}

// giveBlock gives back what is left of a block. It gives back even what Block.Back would let
// expire, if the row is still as the take left it: then nobody has taken from it since.
func (s *Lease) giveBlock(ctx context.Context, b *block) error {
	now := s.now()
	began := time.Now()
	n, most := b.Back(now), min(b.Left, b.Bound(now))
	if most < s.least {
		return nil // it has expired
	}
	limit := min(now+int64(inhand.Late), b.Sent+int64(inhand.Kept+inhand.Late)) - now
	ctx, cancel := context.WithTimeout(ctx, max(0, time.Duration(limit)))
	defer cancel()
	c := change{receipt: b.c}
	err := s.l.overPool(ctx, s.a.pool, false, nil, func(_ context.Context, x executor) error {
		give := func(n float64) error {
			c.used = c.Count - n
			_, err := s.l.onRows(ctx, x, []change{c}, func(c *change) *statement {
				return s.l.giveOf(c, c.used, true)
			}, s.l.followed)
			return err
		}
		if err := give(n); err != nil {
			return err
		}
		if rest := most - n; rest > 0 {
			look := s.l.lookOf(&c.call)
			if err := x.run(ctx, []*statement{look}); err != nil {
				return err
			}
			if r := look.balance(); r.TS == b.At &&
				r.Value == min(b.c.Capacity, b.Value+(c.Count-(c.Count-n))) {
				return give(rest)
			}
		}
		if time.Since(began) > time.Duration(limit) {
			return fmt.Errorf("%w: it took too long", context.DeadlineExceeded)
		}
		return nil
	})
	if err != nil {
		return explain(ctx, err, "give back what a lease has left of", s.calls)
	}
	s.l.forget(s.calls)
	return nil
}

// giveBackSoon gives back in the background what sweep has put aside.
func (s *Lease) giveBackSoon() {
	if s.giving || len(s.back) == 0 {
		return
	}
	s.giving = true
	s.busy++
	go func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for len(s.back) > 0 {
			s.back, s.returning = nil, s.back
			s.mu.Unlock()
			err := s.giveBack(context.Background(), s.returning) // an error loses the tokens
			s.mu.Lock()
			if s.returning = nil; s.closed {
				s.lost = errors.Join(s.lost, err)
			}
		}
		s.giving = false
		s.done()
	}()
}
