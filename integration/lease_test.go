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

// lease is a lease that is closed when the test ends.
func lease(
	t testing.TB, l *ratelimit.Limiter, pool *pgxpool.Pool, r ratelimit.Request, cfg ratelimit.LeaseConfig,
) *ratelimit.Lease {
	t.Helper()
	s, err := l.Lease(pool, r, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
	return s
}

// inTime makes attempts at giving something back, each with a key of its own, until one does not
// fail for lack of time: what a lease cannot give back within half a second it leaves to spoil.
func inTime(t *testing.T, attempt func(key string) error) {
	t.Helper()
	for i, end := 0, time.Now().Add(hung); time.Now().Before(end); i++ {
		began := time.Now()
		err := attempt(fmt.Sprint("k", i))
		took := time.Since(began)
		if err == nil {
			return
		}
		if t.Log(err, "in", took); took < 500*time.Millisecond {
			break
		}
	}
	t.Error("it was not given back")
}

// closed closes a lease and wants so much to be left in the row.
func closed(
	t *testing.T, s *ratelimit.Lease, l *ratelimit.Limiter, pool *pgxpool.Pool, r ratelimit.Request, want float64,
) error {
	t.Helper()
	if err := s.Close(t.Context()); err != nil {
		return err
	}
	if left := value(t, l, pool, r); left < want || left > want+0.01 {
		return fmt.Errorf("%v are left, want %v", left, want)
	}
	return nil
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

// Several leases, each on a limiter of its own as in a process of its own, hand out what there is
// once, and all of it.
func TestLeasesHandOutEachTokenOnce(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]ratelimit.Limit{
		"window": ratelimit.MustDefine("leased", ratelimit.FixedWindow{Rate: 2000, Period: rig.Never}),
		"shards": ratelimit.MustDefine("leased", ratelimit.FixedWindow{Rate: 2000, Period: rig.Never}, ratelimit.Shards(4)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// By a clock that stands still, no hand is given back: those who take from it empty it.
			pool, cfg := pgtest.Pool(t), ratelimit.Config{Clock: rig.Clock().Now}
			var wg sync.WaitGroup
			var granted atomic.Int64
			for range 4 {
				s := lease(t, rig.Limiter(t, cfg), pool, limit.For("k"), ratelimit.LeaseConfig{})
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
			left := value(t, rig.Limiter(t, cfg), pool, limit.For("k"))
			if n := granted.Load(); float64(n)+left != 2000 || n < 1600 {
				t.Errorf("%d were handed out and %v are left, of 2000", n, left)
			}
		})
	}
}

// Leases that are asked for more than there is hand out nearly all that flows in: what lies in some
// hand, or spoils there, is little. By a clock of their own, as how much they get done in a second
// of the machine's is not what this is about.
func TestLeasesHandOutHardlyLessThanTheLimitAllows(t *testing.T) {
	t.Parallel()
	const capacity, perSecond, seconds = 500.0, 2000.0, 3
	for name, limit := range map[string]ratelimit.Limit{
		"bucket": ratelimit.MustDefine("bucket", ratelimit.TokenBucket{Rate: perSecond,
			Period: time.Second, Capacity: ratelimit.Tokens(capacity)}),
		"window": ratelimit.MustDefine("window", ratelimit.FixedWindow{Rate: 500,
			Period: 250 * time.Millisecond, Start: rig.Clock().Now()}),
		"shards": ratelimit.MustDefine("shards", ratelimit.TokenBucket{Rate: perSecond,
			Period: time.Second, Capacity: ratelimit.Tokens(capacity)}, ratelimit.Shards(4)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, clock := pgtest.Pool(t), rig.Clock()
			var leases [3]*ratelimit.Lease
			for i := range leases {
				leases[i] = lease(t, rig.Limiter(t, ratelimit.Config{Clock: clock.Now}), pool,
					limit.For("k"), ratelimit.LeaseConfig{})
			}
			handed, most := 0.0, capacity+perSecond*seconds
			for range seconds * 100 {
				for _, s := range leases {
					for n := 1.0; ; n = float64(int(n)%3 + 1) {
						res, err := s.Take(t.Context(), n)
						if err != nil {
							t.Fatal(err)
						}
						if !res.OK {
							break
						}
						handed += n
					}
				}
				clock.Add(10 * time.Millisecond)
			}
			t.Logf("%v of %v", handed, most)
			if handed > most || handed < 0.8*most {
				t.Errorf("%v were handed out of %v", handed, most)
			}
		})
	}
}

func TestClosingALeaseGivesBackWhatIsInHand(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]ratelimit.Limit{
		"window": ratelimit.MustDefine("window", ratelimit.FixedWindow{Rate: 1000, Period: rig.Never}),
		"bucket": ratelimit.MustDefine("bucket", ratelimit.TokenBucket{Rate: 1000, Period: time.Hour}),
		"shards": ratelimit.MustDefine("shards", ratelimit.FixedWindow{Rate: 1000, Period: rig.Never}, ratelimit.Shards(3)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, clock := pgtest.Pool(t), rig.Clock()
			l := rig.Limiter(t, ratelimit.Config{Clock: clock.Now})
			inTime(t, func(key string) error {
				s := lease(t, l, pool, limit.For(key), ratelimit.LeaseConfig{})
				for range 5 {
					leaseOK(t, s, 1, true)
					clock.Add(time.Millisecond)
				}
				if left := value(t, l, pool, limit.For(key)); left >= 995 {
					t.Fatalf("%v are left: nothing is in hand", left)
				}
				return closed(t, s, l, pool, limit.For(key), 995)
			})
		})
	}
}

// In a pause nothing flows in, whatever is asked for: so what a lease remembers of one denial tells
// when others will be granted.
func TestALeaseRemembersAPause(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	clock := rig.Clock()
	l := rig.Limiter(t, ratelimit.Config{Clock: clock.Now})
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
					t.Errorf("%s, %v taken: %v is denied for %v (%v), want %v", name, taken, n,
						res.RetryAfter(), err, want.RetryAfter())
				}
			}
			if err := s.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}
