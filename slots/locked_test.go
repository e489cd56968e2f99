package slots_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/slots"
)

// A free slot whose row somebody has locked counts as taken. A caller that gives up keeps no
// connection of the pool, which needs them to renew the other slots.
func TestALockedRowOfAFreeSlotHoldsNoConnections(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "a worker of Citus does not know the lock_timeout")
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 5 })
	s := open(t, pool, slots.Config{TTL: time.Hour, Logger: silent})
	one := slots.MustDefine("one", 1)
	hold := try(t, s, one.For("locked"))
	if err := hold.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), `SELECT FROM weir_slot WHERE key = 'locked' FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	if _, err := s.TryAcquire(t.Context(), one.For("locked")); !errors.Is(err, slots.ErrFull) {
		t.Errorf("%v, want that it is full", err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			brief, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if _, err := s.TryAcquire(brief, one.For("locked")); err == nil {
				t.Error("it was taken")
			}
		})
	}
	wg.Wait()
	for end := time.Now().Add(3 * time.Minute); pool.Stat().AcquiredConns() > 1; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d connections are in use", pool.Stat().AcquiredConns())
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	// One of those who gave up may have been between two tries, and takes it for a moment.
	if _, err := s.Acquire(t.Context(), one.For("locked")); err != nil {
		t.Fatal(err)
	}
}
