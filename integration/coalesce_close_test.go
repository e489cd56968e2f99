package integration

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// A database that does not answer holds up Close for the calls that wait, and not for each key of
// callers who have gone.
func TestCloseDoesNotWaitForCallersWhoHaveGone(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	var silent atomic.Bool
	away := rig.Beside(t, pool, rig.Most(4),
		goesSilent(t, func(int64) bool { return silent.Load() }, func(int64, []byte) {}))
	limit := ratelimit.MustDefine("hot", ratelimit.TokenBucket{Rate: 1e6, Period: time.Second}, ratelimit.Shards(4))
	c := rig.Limiter(t, ratelimit.Config{}).Coalesce(away)
	takeOK(t, first(c.RateLimit(t.Context(), limit.For("k"))))
	var conns []*pgxpool.Conn // so that all are connected
	for range 4 {
		conn, err := away.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	for _, conn := range conns {
		conn.Release()
	}
	silent.Store(true)
	var wg sync.WaitGroup
	for i := range 36 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			if err := second(c.RateLimit(ctx, limit.For(fmt.Sprint("k", i%12)))); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("without an answer: %v", err)
			}
		})
	}
	wg.Wait()
	began := time.Now()
	c.Close()
	if took := time.Since(began); took > 30*time.Second { // twelve keys, 5 s each, would be a minute
		t.Errorf("Close took %v", took)
	}
}

// A denial from memory is no answer of a Coalesced that is closed.
func TestAClosedCoalescedRemembersNothing(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	key := ratelimit.MustDefine("closed", ratelimit.TokenBucket{Rate: 1, Period: rig.Never}).For("k")
	c := rig.Limiter(t, ratelimit.Config{RememberDenials: true}).Coalesce(pool)
	for range 3 {
		if err := second(c.RateLimit(t.Context(), key)); err != nil {
			t.Fatal(err)
		}
	}
	c.Close()
	if res, err := c.RateLimit(t.Context(), key); !errors.Is(err, ratelimit.ErrClosed) {
		t.Errorf("%+v, %v", res, err)
	}
}
