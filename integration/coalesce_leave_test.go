package integration

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/delay"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// A call whose context ends keeps nothing, whether it is decided or not.
func TestACoalescedCallWhoseContextEndsKeepsNothing(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	c := rig.Limiter(t, ratelimit.Config{}).Coalesce(pool)
	limit := ratelimit.MustDefine("ends", ratelimit.FixedWindow{Rate: 100, Period: rig.Century})
	takeOK(t, first(c.RateLimit(t.Context(), limit.For("k"))))
	release := hold(t, pool, "ends", "k")
	var wg sync.WaitGroup
	var stay atomic.Int64
	for i := range 40 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i+1)*time.Millisecond)
			defer cancel()
			if i%4 == 0 {
				ctx = t.Context()
			}
			res, err := c.RateLimit(ctx, limit.For("k"))
			switch {
			case err == nil && res.OK:
				stay.Add(1)
			case !errors.Is(err, context.DeadlineExceeded):
				t.Errorf("%+v, %v", res, err)
			}
		})
		time.Sleep(time.Millisecond)
	}
	time.Sleep(20 * time.Millisecond)
	release()
	wg.Wait()
	if n := stay.Load(); n < 10 {
		t.Errorf("%d calls were granted, of at least 10 that had no deadline", n)
	}
	closeGivenBack(t, c, rig.Limiter(t, ratelimit.Config{}).Autocommit(pool), limit.For("k"), 99-float64(stay.Load()))
}

// closeGivenBack closes c once the tokens of callers that have left are given back, for which Close
// itself waits for only five seconds, and checks what is left.
func closeGivenBack(t *testing.T, c *ratelimit.Coalesced, v rig.Verbs, r ratelimit.Request, want float64) {
	t.Helper()
	until(t, func() bool { return math.Abs(left(t, v, r)-want) <= flown })
	c.Close()
	wantLeft(t, v, r, want)
}

// Who leaves while others wait for the same transaction gets back what it takes.
func TestWhoLeavesADecisionUnderWayKeepsNothing(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it watches the locks of one server")
	g := newGate()
	pool := pgtest.Pool(t, g.through)
	beside, err := pgxpool.New(t.Context(), pgtest.URL(t, pool))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(beside.Close)
	c := rig.Limiter(t, ratelimit.Config{}).Coalesce(pool)
	limit := ratelimit.MustDefine("leaves", ratelimit.FixedWindow{Rate: 100, Period: rig.Century})
	takeOK(t, first(c.RateLimit(t.Context(), limit.For("k"))))

	g.shut()
	defer g.open()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	var stay, left sync.WaitGroup
	stays := func() {
		p := park(t.Context())
		stay.Go(func() { takeOK(t, first(c.RateLimit(p, limit.For("k")))) })
		p.wait(t)
	}
	stays() // the first is decided alone; all that come meanwhile are decided together
	g.next(t)
	for range 10 {
		stays()
		p := park(ctx)
		left.Go(func() {
			if res, err := c.RateLimit(p, limit.For("k")); !errors.Is(err, context.Canceled) {
				t.Errorf("%+v, %v", res, err)
			}
		})
		p.wait(t)
	}
	g.let()
	g.next(t) // the first is decided, and the others are under way
	release := hold(t, beside, "leaves", "k")
	g.open()
	waitsForALock(t, beside)
	leave()
	left.Wait()
	release()
	stay.Wait()
	closeGivenBack(t, c, rig.Limiter(t, ratelimit.Config{}).Autocommit(beside), limit.For("k"), 99-11)
}

// Callers leave at random, of calls that are on their way or not. Each token that is gone from the
// balance was granted to a caller who got it, or to one who was told that nobody knows.
func TestFaultsOfLeaversLoseNothing(t *testing.T) {
	t.Parallel()
	bothForms(t, func(t *testing.T, cfg ratelimit.Config) {
		plain := pgtest.Pool(t, rig.Most(10))
		p, err := delay.Listen(fmt.Sprintf("%s:%d", plain.Config().ConnConfig.Host,
			plain.Config().ConnConfig.Port), time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Close() })
		pool := rig.Beside(t, plain, func(cfg *pgxpool.Config) {
			cfg.ConnConfig.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, "tcp", p.Addr())
			}
		})
		limit := ratelimit.MustDefine("leavers", ratelimit.FixedWindow{Rate: 1_000_000, Period: rig.Century})
		c := rig.Limiter(t, cfg).Coalesce(pool)
		want, unknown := map[string]float64{}, map[string]float64{}
		var mu sync.Mutex
		for range rig.Rounds(t, 3) {
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() {
					for range 50 {
						key := fmt.Sprint(rand.IntN(3))
						requests := []ratelimit.Request{limit.For(key)}
						if i%4 == 0 {
							requests[0] = requests[0].OrReserve()
						}
						ctx, cancel := context.WithTimeout(t.Context(), rand.N(6*time.Millisecond))
						res, err := c.RateLimit(ctx, requests...)
						cancel()
						switch {
						case err == nil && res.OK:
							mu.Lock()
							want[key]++
							mu.Unlock()
						case errors.Is(err, ratelimit.ErrOutcomeUnknown):
							mu.Lock()
							unknown[key]++
							mu.Unlock()
						case !errors.Is(err, context.DeadlineExceeded):
							t.Errorf("%+v, %v", res, err)
						}
					}
				})
			}
			wg.Wait()
		}
		v := rig.Limiter(t, cfg).Autocommit(plain)
		gone := func(key string) float64 { return 1_000_000 - left(t, v, limit.For(key)) }
		for key, n := range want { // Close itself waits for what is given back for only five seconds
			until(t, func() bool { return gone(key) <= n+unknown[key] })
		}
		c.Close()
		for key, n := range want {
			if gone := gone(key); gone < n || gone > n+unknown[key] {
				t.Errorf("%v tokens are gone, of which callers got %v, and %v were told of an unknown outcome",
					gone, n, unknown[key])
			}
			t.Logf("%v granted, %v of an unknown outcome", n, unknown[key])
		}
	})
}

// A caller whose context ends while the database is deciding waits for the answer for a while, and
// is then told that nobody knows it. What the database has granted is given back.
func TestWhoLeavesTheDatabaseAtWorkIsToldSo(t *testing.T) {
	t.Parallel()
	for range 5 {
		opened := leaverIsTold(t)
		if opened == 0 || t.Failed() {
			return
		}
		// One is, if what is taken is given back before the connection of its answer is put back.
		t.Logf("%d connections were opened to give back", opened)
	}
	t.Error("each time a connection was opened to give back, which may come too late for that")
}

// leaverIsTold is how many connections are opened from a moment before a caller leaves until what
// it took is given back.
func leaverIsTold(t *testing.T) int64 {
	t.Helper()
	direct := pgtest.Pool(t)
	pool := rig.Through(t, direct, rig.Far(t, direct, 400*time.Millisecond))
	if err := pool.Ping(t.Context()); err != nil { // that takes a busy machine longer than a call waits
		t.Fatal(err)
	}
	c := rig.Coalesce(t, rig.Limiter(t, ratelimit.Config{}), pool)
	limit := ratelimit.MustDefine("atWork", ratelimit.FixedWindow{Rate: 100, Period: rig.Century})
	var left float64 = 100
	var connections int64
	var before time.Time
	written := func() (at time.Time) {
		if err := direct.QueryRow(t.Context(), `SELECT max(ts) FROM weir_balance`).Scan(&at); err != nil {
			t.Fatal(err)
		}
		return at
	}
	for sent := false; !sent; {
		for range 2 { // until all is prepared
			if err := rig.Granted(c.RateLimit(t.Context(), limit.For("k"))); err != nil {
				t.Fatal(err)
			}
			left--
		}
		connections, before = pool.Stat().NewConnsCount(), written()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		res, err := c.RateLimit(ctx, limit.For("k"))
		cancel()
		switch { // on a busy machine it may leave before anything is sent, or after it is answered
		case errors.Is(err, ratelimit.ErrOutcomeUnknown):
			sent = true
		case err == nil && res.OK:
			left--
		case !errors.Is(err, context.DeadlineExceeded) || res.OK || left < 50:
			t.Fatalf("%+v, %v", res, err)
		}
	}
	until(t, func() bool { return written().After(before) }) // it is granted
	closeGivenBack(t, c, rig.Limiter(t, ratelimit.Config{}).Autocommit(direct), limit.For("k"), left)
	return pool.Stat().NewConnsCount() - connections
}
