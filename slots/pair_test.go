package slots_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/slots"
)

// Callers of two limits at once, both of which always have others in line, have their turn after a
// bounded number of the others', in whatever order they name the limits.
func TestACallerOfTwoLimitsHasItsTurn(t *testing.T) {
	t.Parallel()
	const singles, pairs = 3, 3 // in each line
	pool := pgtest.Pool(t)
	s := open(t, pool, slots.Config{})
	slots.SetPasses(s, time.Hour)
	limits := [2]slots.Limit{slots.MustDefine("a", 1), slots.MustDefine("b", 1)}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()

	var mu sync.Mutex
	var holding [2]*slots.Hold // by callers of one limit
	done := [2]chan bool{make(chan bool), make(chan bool)}
	for i, l := range limits {
		for range singles {
			wg.Go(func() {
				for {
					h, err := s.Acquire(ctx, l.Global())
					if err != nil {
						return
					}
					mu.Lock()
					holding[i] = h
					mu.Unlock()
					<-done[i]
					release(t, h)
				}
			})
		}
	}
	count := func() (holders, all int) {
		mu.Lock()
		defer mu.Unlock()
		for _, h := range holding {
			if h != nil {
				holders++
			}
		}
		return holders, holders + slots.Waiting(s, "a", "") + slots.Waiting(s, "b", "")
	}
	until(t, "all of one limit hold or wait", func() bool { _, all := count(); return all == 2*singles })

	got := make(chan *slots.Hold, pairs)
	for i := range pairs {
		wg.Go(func() {
			h, err := s.Acquire(ctx, limits[i%2].Global(), limits[1-i%2].Global())
			if err != nil {
				t.Error(err)
			}
			got <- h
		})
	}
	turns, left := 0, pairs
	for left > 0 {
		// Everybody waits, holds what he asked for, or is gone.
		until(t, "all hold or wait", func() bool { _, all := count(); return len(got) > 0 || all == 2*singles+left })
		select {
		case h := <-got:
			release(t, h)
			left--
			continue
		default:
		}
		if turns++; turns > 2*(singles+1)*pairs+20 {
			t.Errorf("%d of %d still wait after %d turns of others", left, pairs, turns)
			break
		}
		i := turns % 2
		mu.Lock()
		if holding[i] == nil {
			i = 1 - i
		}
		holding[i] = nil
		mu.Unlock()
		done[i] <- true
	}
	t.Logf("%d of two limits were served in %d turns of others", pairs-left, turns)
	cancel()
	for i := range done {
		close(done[i])
	}
}

// One who keeps a slot while waiting for another goes on when the process that holds it dies, and
// gives back what it has when it leaves.
func TestWhoKeepsASlotIsNotLeftBehind(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	a, b := slots.MustDefine("a", 1), slots.MustDefine("b", 1)
	s, other := open(t, pool, slots.Config{}), open(t, pool, slots.Config{Logger: silent})
	first, held := try(t, other, a.Global()), try(t, other, b.Global())
	ctx, cancel := context.WithCancel(t.Context())
	got, gone := make(chan *slots.Hold, 1), make(chan error, 1)
	go func() {
		h, err := s.Acquire(t.Context(), a.Global(), b.Global())
		if err != nil {
			t.Error(err)
		}
		got <- h
	}()
	until(t, "it waits", func() bool { return slots.Waiting(s, "a", "") == 1 })
	go func() {
		_, err := s.Acquire(ctx, b.Global(), a.Global())
		gone <- err
	}()
	until(t, "the other waits, too", func() bool { return slots.Waiting(s, "a", "") == 2 })
	release(t, first)
	until(t, "one waits for the second", func() bool { return slots.Waiting(s, "b", "") > 0 })
	cancel()
	if err := <-gone; err == nil {
		t.Error("no error although its context has ended")
	}
	_ = other.Close(ctx)                                                      // without a release: a process that dies
	execSQL(t, pool, `UPDATE weir_slot SET until = 'epoch' WHERE name = 'b'`) // and its TTL is over
	h := <-got
	if len(h.Slots()) != 2 || h.Err() != nil {
		t.Errorf("%+v, %v", h.Slots(), h.Err())
	}
	release(t, h)
	_ = held
	until(t, "no rows are left", func() bool { return rows(t, pool) == 0 })
}
