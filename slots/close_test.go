package slots_test

import (
	"context"
	"errors"
	"testing"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/slots"
)

func TestCloseWaitsForWhatIsHeldAndRefusesTheRest(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	s := open(t, pool, slots.Config{})
	one := slots.MustDefine("one", 1)
	h := try(t, s, one.For("k"))
	waits, closed := make(chan error), make(chan error)
	go func() {
		_, err := s.Acquire(t.Context(), one.For("k"))
		waits <- err
	}()
	until(t, "it waits", func() bool { return slots.Waiting(s, "one", "k") == 1 })
	go func() { closed <- s.Close(t.Context()) }()
	if err := <-waits; !errors.Is(err, slots.ErrClosed) {
		t.Errorf("%v, want ErrClosed", err)
	}
	if _, err := s.TryAcquire(t.Context(), one.For("other")); !errors.Is(err, slots.ErrClosed) {
		t.Errorf("%v, want ErrClosed", err)
	}
	if err := slots.Renew(t.Context(), s); err != nil || h.Err() != nil {
		t.Errorf("what is held is renewed while Close waits: %v, %v", err, h.Err())
	}
	select {
	case err := <-closed:
		t.Fatalf("Close did not wait: %v", err)
	default:
	}
	release(t, h)
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if n := rows(t, pool); n != 0 {
		t.Errorf("%d rows are left", n)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestWhatIsHeldWhenClosesContextEndsIsLostHereAndStaysThere(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	s, other := open(t, pool, slots.Config{Logger: silent}), open(t, pool, slots.Config{})
	one := slots.MustDefine("one", 1)
	h := try(t, s, one.For("k"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if !errors.Is(h.Err(), slots.ErrLost) {
		t.Errorf("%v, want ErrLost", h.Err())
	}
	if _, err := other.TryAcquire(t.Context(), one.For("k")); !errors.Is(err, slots.ErrFull) {
		t.Errorf("%v: given away though the work may not have ended", err)
	}
	release(t, h)
	release(t, try(t, other, one.For("k")))
}

// A second Close that does not wait for long ends nothing of what the first one waits for.
func TestASecondCloseOnlyWaits(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	s := open(t, pool, slots.Config{})
	h := try(t, s, slots.MustDefine("one", 1).For("k"))
	closed := make(chan error)
	go func() { closed <- s.Close(t.Context()) }()
	until(t, "it is closed", func() bool {
		_, err := s.TryAcquire(t.Context(), slots.MustDefine("one", 1).For("other"))
		return errors.Is(err, slots.ErrClosed)
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := h.Err(); err != nil {
		t.Errorf("the second Close has ended what is held: %v", err)
	}
	release(t, h)
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
