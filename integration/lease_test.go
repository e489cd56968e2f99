package integration

import (
	"context"
	"fmt"
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

// In a pause nothing flows in, whatever is asked for: so what a lease remembers of one denial tells when others will be granted.
func TestALeaseRemembersAPause(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	clock := newClock()
	l := limiter(t, ratelimit.Config{Clock: clock.now})
	v := l.Autocommit(pool)
	for name, rule := range map[string]ratelimit.Rule{
		"bucket": ratelimit.TokenBucket{Rate: 10, Period: 10 * time.Second},
		"window": ratelimit.FixedWindow{Rate: 4, Period: 4 * time.Second, Capacity: ratelimit.Tokens(10)},
	} {
		for _, taken := range []float64{10, 7} {
			limit := ratelimit.MustDefine(fmt.Sprint(name, taken), rule)
			if _, err := v.RateLimit(t.Context(), limit.For("k").Count(taken)); err != nil {
				t.Fatal(err)
			}
			if err := v.Pause(t.Context(), 10*time.Second, limit.For("k")); err != nil {
				t.Fatal(err)
			}
			s, err := l.Lease(pool, limit.For("k"), ratelimit.LeaseConfig{})
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range []float64{2, 5, 1, 0.5, 9} {
				want, err := v.CheckRateLimit(t.Context(), limit.For("k").Count(n))
				if err != nil || want.OK {
					t.Fatal(want, err)
				}
				if res, err := s.Take(t.Context(), n); err != nil || res.OK || !res.RetryAt.Equal(want.RetryAt) {
					t.Errorf("%s, %v taken: %v is denied for %v (%v), want %v", name, taken, n, res.RetryAfter(), err, want.RetryAfter())
				}
			}
			if err := s.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}
