package integration

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// holder is a transaction that holds the row of a key.
func holder(t *testing.T, pool *pgxpool.Pool, key ratelimit.Request) pgx.Tx {
	t.Helper()
	tx := rig.Begin(t, pool, pgx.ReadCommitted)
	rig.Take(t, rig.Limiter(t, ratelimit.Config{}).In(tx), key)
	return tx
}

// A caller that takes for the first time may never take again, and a block would be missing in the
// row for a second.
func TestALeaseFetchesNoBlockForTheFirstTakeInATransaction(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	l := rig.Limiter(t, ratelimit.Config{})
	key := ratelimit.MustDefine("first", ratelimit.FixedWindow{Rate: 1000, Period: rig.Never}).For("k")
	s := lease(t, l, pool, key, ratelimit.LeaseConfig{Block: 900})
	err := l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
		return rig.Granted(s.TakeInTx(ctx, tx, 1))
	})
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if left := value(t, l, pool, key); left != 999 {
			t.Fatalf("%v are left, want 999", left)
		}
	}
}

// A take that waits has what was in hand. If its caller goes after so long that the tokens may not be
// kept any more, they are given back.
func TestWhatAWaitingTakeHadIsGivenBackIfItsCallerGoes(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it watches the locks of one server")
	pool, clock := pgtest.Pool(t), rig.Clock()
	l := rig.Limiter(t, ratelimit.Config{Clock: clock.Now})
	inTime(t, func(k string) error {
		s, key := handful(t, l, pool, clock, k)
		tx := holder(t, pool, key)
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error, 1)
		go func() {
			_, err := s.Take(ctx, 100)
			gone <- err
		}()
		until(t, func() bool { return rig.IsWaitedFor(t, pool, tx) })
		clock.Add(time.Second + time.Millisecond)
		cancel()
		err := <-gone
		rollback(t, tx)
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		return closedExactly(t, s, l, pool, key, 998)
	})
}

// What a lease has begun to give back before it is closed may be lost, too.
func TestClosingALeaseSaysThatTokensAreLost(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it watches the locks of one server")
	pool, clock := pgtest.Pool(t), rig.Clock()
	l := rig.Limiter(t, ratelimit.Config{Clock: clock.Now})
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for i, end := 0, time.Now().Add(hung); time.Now().Before(end); i++ {
		s, key := handful(t, l, pool, clock, fmt.Sprint("k", i))
		tx := holder(t, pool, key)
		clock.Add(time.Second) // the next take has the lease give back what it holds
		began := time.Now()
		if _, err := s.Take(gone, 1); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		// It gives up after half a second, which must not be before it is closed.
		inTime := func() bool { return time.Since(began) < 300*time.Millisecond }
		waits := false
		for !waits && inTime() {
			waits = rig.IsWaitedFor(t, pool, tx)
		}
		waits = waits && inTime()
		err := s.Close(t.Context())
		rollback(t, tx)
		if !waits {
			continue
		}
		if left := value(t, l, pool, key); left < 998 && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v of 998 are left, and Close returns %v", left, err)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Errorf("a second Close returns %v", err)
		}
		return
	}
	t.Error("a take from memory took too long each time")
}
