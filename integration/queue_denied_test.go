package integration

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// short makes a row of ten tokens contended for l. Then l denies a call for it, and sees that there
// are tokens again. That leaves n of them, and for a second l takes the row to be short.
func short(t *testing.T, l *ratelimit.Limiter, pool *pgxpool.Pool, level pgx.TxIsoLevel,
	r ratelimit.Request, n float64) {
	t.Helper()
	other := rig.Limiter(t, ratelimit.Config{}).Autocommit(pool)
	reset := func() {
		if err := other.ResetRateLimit(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	if err := queued(t.Context(), l, pool, level, r.Count(0), nothing); err != nil {
		t.Fatal(err)
	}
	reset()
	rig.Take(t, other, r.Count(10))
	if res, err := l.Autocommit(pool).RateLimit(t.Context(), r); err != nil || res.OK {
		t.Fatal(res, err)
	}
	reset()
	rig.Take(t, l.Autocommit(pool), r)
	rig.Take(t, other, r.Count(9-n))
}

// If the committed balance is too low for a call, the call is denied at once, even while another
// transaction holds the row. At READ COMMITTED, where nobody queues by an advisory lock, it does not
// queue for the row either.
func TestACallerIsDeniedBeforeItQueuesForNothing(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "callers queue on one server only")
	const callers, tries = 8, 5
	r := ratelimit.MustDefine("short", ratelimit.TokenBucket{Rate: 10, Period: rig.Never}).For("k")
	for _, level := range rig.Levels {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 2 * callers })
			l, other := rig.Limiter(t, ratelimit.Config{}), rig.Limiter(t, ratelimit.Config{})
			denied := func() (n int64) {
				short(t, l, pool, level, r, 0)
				holder := rig.Begin(t, pool, pgx.ReadCommitted)
				defer func() { _ = holder.Rollback(t.Context()) }()
				takeOK(t, first(other.RateLimit(t.Context(), holder, r.Count(0))))
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				var told atomic.Int64
				var wg sync.WaitGroup
				for range callers {
					wg.Go(func() {
						err := takeInTx(ctx, l, pool, level, r, nothing)
						if errors.Is(err, ratelimit.ErrDenied) {
							told.Add(1)
						} else if ctx.Err() == nil {
							t.Error(err)
						}
					})
				}
				wg.Wait()
				return told.Load()
			}
			// a machine that stands still for a second makes l forget
			for try := 1; ; try++ {
				n := denied()
				if n == callers {
					return
				}
				if try == tries {
					t.Fatalf("%d of %d callers were denied before the holder's end", n, callers)
				}
			}
		})
	}
}

// If there is enough, callers queue for it, and each gets its part.
func TestCallersQueueForTokensThatAreThere(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "callers queue on one server only")
	const callers = 8
	r := ratelimit.MustDefine("enough", ratelimit.TokenBucket{Rate: 10, Period: rig.Never}).For("k")
	for _, level := range rig.Levels[1:] {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 2 * callers })
			l := rig.Limiter(t, ratelimit.Config{})
			lock := lockOf(t, pool, r)
			short(t, l, pool, level, r, callers)
			goOn := stall(t, pool, level, r.Count(0))
			var wg sync.WaitGroup
			for range callers {
				wg.Go(func() {
					if err := takeInTx(t.Context(), l, pool, level, r, nothing); err != nil {
						t.Error(err)
					}
				})
			}
			until(t, func() bool {
				var n int
				if err := pool.QueryRow(t.Context(), `SELECT count(*) `+queueLocks+
					` AND NOT q.granted AND q.classid::bigint << 32 | q.objid::bigint = $1`, lock).
					Scan(&n); err != nil {
					t.Error(err)
					return true
				}
				return n == callers
			})
			goOn()
			wg.Wait()
			wantValue(t, l, pool, r, 0)
		})
	}
}
