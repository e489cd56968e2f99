package citus

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/weir-go/weir/slots"
)

// Whichever node is killed meanwhile: no more slots of a key are held than there are, and none is
// lost for longer than its TTL.
func TestKilledNodesGiveNoSlotTwice(t *testing.T) {
	const n, keys, ttl = 2, 4, 10 * time.Second
	c, pool := killable(t)
	pool = wide(t, pool)
	pair := slots.MustDefine("pair", n)
	var mu sync.Mutex
	held, taken, failed := map[string]int{}, 0, 0
	change := func(key string, by int) {
		mu.Lock()
		defer mu.Unlock()
		if held[key] += by; held[key] > n {
			t.Errorf("key %s: %d slots are held, of %d", key, held[key], n)
		}
		if by > 0 {
			taken++
		}
	}
	stopping := make(chan struct{})
	var callers sync.WaitGroup
	stop := sync.OnceFunc(func() {
		close(stopping)
		callers.Wait()
	})
	defer stop()
	for range 2 * n * keys {
		s := open(t, pool, slots.Config{TTL: ttl})
		callers.Go(func() {
			for {
				select {
				case <-stopping:
					return
				case <-time.After(time.Millisecond):
				}
				key := fmt.Sprint("k", rand.IntN(keys))
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				hold, err := s.TryAcquire(ctx, pair.For(key))
				switch {
				case err == nil:
					change(key, +1)
					select {
					case <-hold.Context(ctx).Done():
					case <-time.After(rand.N(100 * time.Millisecond)):
					}
					change(key, -1)
					_ = hold.Release(ctx) // the TTL ends what cannot be released
				case !errors.Is(err, slots.ErrFull):
					mu.Lock()
					failed++
					mu.Unlock()
				}
				cancel()
			}
		})
	}
	kills := killEach(t, c, func() int {
		mu.Lock()
		defer mu.Unlock()
		return taken
	})
	stop()
	recovered(t, pool)
	last := open(t, pool, slots.Config{TTL: ttl})
	for i := range keys {
		key := fmt.Sprint("k", i)
		until(t, "all slots are free", func() bool {
			n, err := last.Held(t.Context(), pair.For(key))
			return err == nil && n == 0
		})
	}
	t.Logf("%d kills, %d slots were taken, %d calls failed", kills, taken, failed)
	if failed == 0 {
		t.Error("no call met a kill")
	}
}
