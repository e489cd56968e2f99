package integration

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

// lease is a lease that is closed when the test ends.
func lease(t testing.TB, l *ratelimit.Limiter, pool *pgxpool.Pool, r ratelimit.Request, cfg ratelimit.LeaseConfig) *ratelimit.Lease {
	t.Helper()
	s, err := l.Lease(pool, r, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// leaseOK takes n and expects to be granted, or to be denied.
func leaseOK(t testing.TB, s *ratelimit.Lease, n float64, want bool) ratelimit.Result {
	t.Helper()
	res, err := s.Take(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	if res.OK != want {
		t.Fatalf("%v tokens: %+v, want granted %v", n, res, want)
	}
	return res
}

// value is what stands in the database.
func value(t testing.TB, l *ratelimit.Limiter, pool *pgxpool.Pool, r ratelimit.Request) float64 {
	t.Helper()
	s, err := l.Autocommit(pool).Value(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return s.Value
}

// Several leases, each on a limiter of its own as in a process of its own, hand out what there is once, and all of it.
func TestLeasesHandOutEachTokenOnce(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]ratelimit.Limit{
		"window": ratelimit.MustDefine("leased", ratelimit.FixedWindow{Rate: 2000, Period: never}),
		"shards": ratelimit.MustDefine("leased", ratelimit.FixedWindow{Rate: 2000, Period: never}, ratelimit.Shards(4)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t)
			var wg sync.WaitGroup
			var granted atomic.Int64
			for range 4 {
				s := lease(t, limiter(t, ratelimit.Config{}), pool, limit.For("k"), ratelimit.LeaseConfig{})
				for range 4 {
					wg.Go(func() {
						for {
							res, err := s.Take(t.Context(), 1)
							if err != nil {
								t.Error(err)
								return
							}
							if !res.OK {
								return
							}
							granted.Add(1)
						}
					})
				}
			}
			wg.Wait()
			// Those who were denied early have left tokens in others' hands, but not for long.
			left := value(t, limiter(t, ratelimit.Config{}), pool, limit.For("k"))
			for end := time.Now().Add(20 * time.Second); float64(granted.Load())+left != 2000 && time.Now().Before(end); {
				time.Sleep(10 * time.Millisecond)
				left = value(t, limiter(t, ratelimit.Config{}), pool, limit.For("k"))
			}
			if n := granted.Load(); float64(n)+left != 2000 || n < 1600 {
				t.Errorf("%d were handed out and %v are left, of 2000", n, left)
			}
		})
	}
}

func TestClosingALeaseGivesBackWhatIsInHand(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]ratelimit.Limit{
		"window": ratelimit.MustDefine("window", ratelimit.FixedWindow{Rate: 1000, Period: never}),
		"bucket": ratelimit.MustDefine("bucket", ratelimit.TokenBucket{Rate: 1000, Period: time.Hour}),
		"shards": ratelimit.MustDefine("shards", ratelimit.FixedWindow{Rate: 1000, Period: never}, ratelimit.Shards(3)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, clock := pgtest.Pool(t), newClock()
			l := limiter(t, ratelimit.Config{Clock: clock.now})
			s := lease(t, l, pool, limit.For("k"), ratelimit.LeaseConfig{})
			for range 5 {
				leaseOK(t, s, 1, true)
				clock.add(time.Millisecond)
			}
			if left := value(t, l, pool, limit.For("k")); left >= 995 {
				t.Fatalf("%v are left: nothing is in hand", left)
			}
			if err := s.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			if left := value(t, l, pool, limit.For("k")); left < 995 || left > 995.01 {
				t.Errorf("%v are left, want 995", left)
			}
		})
	}
}
