package integration

import (
	"context"
	"errors"
	"fmt"
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

// Until its RetryAt a denial is told without the database, and then the tokens are there.
func TestALeaseRemembersADenial(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it counts trips, of which two-phase commit takes more")
	for name, limit := range map[string]ratelimit.Limit{
		"bucket": ratelimit.MustDefine("bucket", ratelimit.TokenBucket{Rate: 10, Period: 10 * time.Second}),
		"window": ratelimit.MustDefine("window",
			ratelimit.FixedWindow{Rate: 10, Period: 10 * time.Second, Start: rig.Clock().Now()}),
		"shards": ratelimit.MustDefine("shards",
			ratelimit.TokenBucket{Rate: 10, Period: 10 * time.Second}, ratelimit.Shards(2)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var trips trips
			pool, clock := pgtest.Pool(t, trips.through), rig.Clock()
			l := rig.Limiter(t, ratelimit.Config{Clock: clock.Now})
			s := lease(t, l, pool, limit.For("k"), ratelimit.LeaseConfig{})
			leaseOK(t, s, 8, true)
			clock.Add(100 * time.Millisecond) // so that nothing is fetched beyond
			denied := leaseOK(t, s, 4, false)
			if denied.Limit != limit.Name() || denied.Key != "k" || !errors.Is(denied.Err(), ratelimit.ErrDenied) {
				t.Errorf("%+v", denied)
			}
			want, err := l.Autocommit(pool).CheckRateLimit(t.Context(), limit.For("k").Count(4))
			if err != nil || !want.RetryAt.Equal(denied.RetryAt) {
				t.Errorf("RetryAt is %v, want %v (%v)", denied.RetryAt, want.RetryAt, err)
			}
			larger, err := l.Autocommit(pool).CheckRateLimit(t.Context(), limit.For("k").Count(6))
			if err != nil {
				t.Fatal(err)
			}
			clock.Add(50 * time.Millisecond)
			n := trips.of(func() {
				again := leaseOK(t, s, 4, false)
				if !again.RetryAt.Equal(denied.RetryAt) || again.At.Sub(denied.At) != 50*time.Millisecond ||
					again.RetryAfter() != denied.RetryAfter()-50*time.Millisecond {
					t.Errorf("%+v, then %+v", denied, again)
				}
				if more := leaseOK(t, s, 6, false); name != "shards" &&
					more.RetryAt.Sub(larger.RetryAt).Abs() > time.Microsecond {
					t.Errorf("for more RetryAt is %v, want %v", more.RetryAt, larger.RetryAt)
				}
				clock.Set(denied.At.Add(time.Second - time.Microsecond))
				leaseOK(t, s, 4, false)
			})
			if n != 0 {
				t.Errorf("%d trips for denials that were remembered", n)
			}
			clock.Set(denied.RetryAt.Add(-time.Microsecond))
			leaseOK(t, s, 4, false)
			clock.Set(denied.RetryAt)
			leaseOK(t, s, 4, true)
		})
	}
}

// Who takes steadily seldom waits: the next block is asked for before the last is used up, and
// takes go on meanwhile.
func TestALeaseFetchesAhead(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it counts trips, of which two-phase commit takes more")
	var trips trips
	g := newGate()
	pool, clock := pgtest.Pool(t, g.through, trips.through), rig.Clock()
	l := rig.Limiter(t, ratelimit.Config{Clock: clock.Now})
	limit := ratelimit.MustDefine("steady", ratelimit.FixedWindow{Rate: 100_000, Period: rig.Never})
	s := lease(t, l, pool, limit.For("k"), ratelimit.LeaseConfig{Block: 100})
	take := func(ctx context.Context, after time.Duration) {
		t.Helper()
		clock.Add(after)
		if res, err := s.Take(ctx, 1); err != nil || !res.OK {
			t.Fatalf("%+v, %v", res, err)
		}
	}
	take(t.Context(), 0)
	take(t.Context(), time.Millisecond) // and a block is in hand
	// As it knew of no use at first, it looks ahead no earlier than 100 ms after it had the first
	// answer, for which it may see either time.
	take(t.Context(), 100*time.Millisecond)
	g.shut()
	defer g.open()
	nobodyWaits := func(takes int) {
		t.Helper()
		for range takes {
			p := park(t.Context())
			done := make(chan struct{})
			go func() {
				select {
				case <-p.waits:
					t.Error("a take waits, and there should be tokens in hand")
					g.open()
				case <-done:
				}
			}()
			take(p, 0)
			close(done)
		}
	}
	nobodyWaits(60)
	g.next(t)
	nobodyWaits(30) // while the database does not answer
	g.open()

	const takes = 1000
	n := trips.of(func() {
		for range takes {
			take(t.Context(), time.Millisecond)
		}
	})
	if n > takes/4 {
		t.Errorf("%d takes had %d trips", takes, n)
	}
}

// Where the limit is full what is in hand overflows at the limit's rate, far faster than it is used
// here. Blocks are then as large as what overflows, or each take would have a trip.
func TestALeaseOfAFullLimitSeldomHasATrip(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it counts trips, of which two-phase commit takes more")
	var trips trips
	pool, clock := pgtest.Pool(t, trips.through), rig.Clock()
	limit := ratelimit.MustDefine("full", ratelimit.TokenBucket{Rate: 1_200_000, Period: time.Minute})
	s := lease(t, rig.Limiter(t, ratelimit.Config{Clock: clock.Now}), pool, limit.For("k"), ratelimit.LeaseConfig{})
	const takes = 1000
	n := trips.of(func() {
		for range takes {
			leaseOK(t, s, 1, true)
			clock.Add(time.Millisecond)
		}
	})
	if n > takes/4 {
		t.Errorf("%d takes had %d trips", takes, n)
	}
}

// holds locks the row of a key until release is called.
func holds(t *testing.T, l *ratelimit.Limiter, pool *pgxpool.Pool, r ratelimit.Request) (release func()) {
	t.Helper()
	tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		t.Fatal(err)
	}
	if res, err := l.RateLimit(t.Context(), tx, r); err != nil || !res.OK {
		t.Fatalf("%+v, %v", res, err)
	}
	return func() {
		if err := tx.Rollback(context.Background()); err != nil {
			t.Error(err)
		}
	}
}

// waitsForALock waits until one session waits for a lock.
func waitsForALock(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	schema := pool.Config().ConnConfig.RuntimeParams["search_path"]
	until(t, func() bool {
		var waiting int
		if err := pool.QueryRow(t.Context(),
			`SELECT count(DISTINCT l.pid) FROM pg_locks l JOIN pg_locks r USING (pid) JOIN pg_class c ON c.oid = r.relation
			JOIN pg_namespace s ON s.oid = c.relnamespace WHERE NOT l.granted AND s.nspname = $1`,
			schema).Scan(&waiting); err != nil {
			t.Fatal(err)
		}
		return waiting == 1
	})
}

// All who wait for the row are served by one or two fetches, whoever of them has gone.
func TestTakesOfALeaseWaitTogether(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it watches the locks of one server")
	var trips trips
	pool := pgtest.Pool(t, trips.through)
	l := rig.Limiter(t, ratelimit.Config{})
	limit := ratelimit.MustDefine("together", ratelimit.FixedWindow{Rate: 200, Period: rig.Never})
	inTime(t, func(key string) error {
		s := lease(t, l, pool, limit.For(key), ratelimit.LeaseConfig{Block: 100})
		release := holds(t, l, pool, limit.For(key))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var stay, gone sync.WaitGroup
		var served atomic.Int64
		for range 50 {
			one, other := park(t.Context()), park(ctx)
			stay.Go(func() {
				if res, err := s.Take(one, 1); err != nil || !res.OK {
					t.Errorf("%+v, %v", res, err)
				}
				served.Add(1)
			})
			gone.Go(func() {
				if _, err := s.Take(other, 1); !errors.Is(err, context.Canceled) {
					t.Errorf("%v, want that it was cancelled", err)
				}
			})
			one.wait(t)
			other.wait(t)
		}
		waitsForALock(t, pool)
		cancel()
		gone.Wait()
		if n := served.Load(); n != 0 {
			t.Errorf("%d were served while the row was locked", n)
		}
		n := trips.of(func() {
			release()
			stay.Wait()
		})
		if n > 10 {
			t.Errorf("%d trips for 50 takes", n)
		}
		return closed(t, s, l, pool, limit.For(key), 150)
	})
}

// What was fetched for one who has gone is given back.
func TestALeaseGivesBackWhatNobodyWaitsFor(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it watches the locks of one server")
	pool := pgtest.Pool(t)
	l := rig.Limiter(t, ratelimit.Config{})
	limit := ratelimit.MustDefine("gone", ratelimit.FixedWindow{Rate: 20, Period: rig.Never})
	inTime(t, func(key string) error {
		s := lease(t, l, pool, limit.For(key), ratelimit.LeaseConfig{})
		release := holds(t, l, pool, limit.For(key))
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := s.Take(ctx, 2); !errors.Is(err, context.Canceled) {
				t.Errorf("%v, want that it was cancelled", err)
			}
		})
		waitsForALock(t, pool)
		cancel()
		wg.Wait()
		release()
		return closed(t, s, l, pool, limit.For(key), 20)
	})
}

// Without takes, what is in hand is given back by itself.
func TestAnIdleLeaseGivesBack(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	l := rig.Limiter(t, ratelimit.Config{})
	limit := ratelimit.MustDefine("idle", ratelimit.FixedWindow{Rate: 1000, Period: rig.Never})
	for i := range 10 { // a lease that comes too late to give back leaves it to spoil
		k := limit.For(fmt.Sprint("k", i))
		s := lease(t, l, pool, k, ratelimit.LeaseConfig{})
		taken := 0.0
		for left := 1000.0; left == 1000-taken && taken < 900; left = value(t, l, pool, k) {
			for range 20 { // where a read takes long, blocks are small
				leaseOK(t, s, 1, true)
				taken++
			}
		}
		for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if value(t, l, pool, k) == 1000-taken {
				return
			}
		}
	}
	t.Fatal("it was never given back")
}

// What is in hand is of one window and no other, and overflows with the row.
func TestALeasesTokensSpoilWithTheirWindow(t *testing.T) {
	t.Parallel()
	pool, clock := pgtest.Pool(t), rig.Clock()
	l := rig.Limiter(t, ratelimit.Config{Clock: clock.Now})
	limit := ratelimit.MustDefine("spoils",
		ratelimit.FixedWindow{Rate: 100, Period: 100 * time.Millisecond, Start: clock.Now()})
	s := lease(t, l, pool, limit.For("k"), ratelimit.LeaseConfig{Block: 50})
	leaseOK(t, s, 1, true)
	clock.Add(time.Millisecond)
	leaseOK(t, s, 1, true) // and 49 in hand
	if left := value(t, l, pool, limit.For("k")); left != 49 {
		t.Fatalf("%v are left", left)
	}
	clock.Add(98*time.Millisecond + 999*time.Microsecond)
	leaseOK(t, s, 1, true)
	clock.Add(time.Microsecond)
	for range 100 {
		leaseOK(t, s, 1, true)
	}
	leaseOK(t, s, 1, false)
}

// What is in hand is handed out while the database is away; then the takes fail, and when it is
// back they go on.
func TestALeaseWithoutItsDatabase(t *testing.T) {
	t.Parallel()
	pool, clock := pgtest.Pool(t), rig.Clock()
	l := rig.Limiter(t, ratelimit.Config{Clock: clock.Now})
	s, key := handful(t, l, pool, clock, "k")
	rig.Exec(t, pool, `ALTER TABLE weir_balance RENAME TO away`)
	handed := 2
	for ; ; handed++ {
		res, err := s.Take(t.Context(), 1)
		if err != nil {
			var pg interface{ SQLState() string }
			if !errors.As(err, &pg) || pg.SQLState() != "42P01" {
				t.Errorf("%v", err)
			}
			break
		}
		if !res.OK {
			t.Fatalf("%+v", res)
		}
	}
	rig.Exec(t, pool, `ALTER TABLE away RENAME TO weir_balance`)
	if left := value(t, l, pool, key); left != 1000-float64(handed) || handed < 50 {
		t.Errorf("%v are left, and %d were handed out, of 1000", left, handed)
	}
	leaseOK(t, s, 1, true)
}

// A fetch of which nobody knows whether it was committed hands out nothing.
func TestALeaseHandsOutNothingOfAnUnknownOutcome(t *testing.T) {
	t.Parallel()
	for when, left := range map[string]float64{"before": 10, "after": 7} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			cut := &cutter{alone: true}
			pool := pgtest.Pool(t, cut.through)
			l := rig.Limiter(t, ratelimit.Config{})
			limit := ratelimit.MustDefine("cut", ratelimit.FixedWindow{Rate: 10, Period: rig.Never})
			s := lease(t, l, pool, limit.For("k"), ratelimit.LeaseConfig{Block: 5})
			cut.arm(when)
			if res, err := s.Take(t.Context(), 3); !errors.Is(err, ratelimit.ErrOutcomeUnknown) || res.OK {
				t.Fatalf("%+v, %v", res, err)
			}
			if got := value(t, l, pool, limit.For("k")); got != left {
				t.Errorf("%v are left, want %v", got, left)
			}
			if err := s.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := value(t, l, pool, limit.For("k")); got != left {
				t.Errorf("%v are left after it was closed, want %v", got, left)
			}
		})
	}
}

// A lease that is closed while takes wait refuses them, and gives back what arrives.
func TestALeaseIsClosedWhileTakesWait(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it watches the locks of one server")
	pool := pgtest.Pool(t)
	l := rig.Limiter(t, ratelimit.Config{})
	limit := ratelimit.MustDefine("closed", ratelimit.FixedWindow{Rate: 20, Period: rig.Never})
	inTime(t, func(key string) error {
		s := lease(t, l, pool, limit.For(key), ratelimit.LeaseConfig{})
		release := holds(t, l, pool, limit.For(key))
		var takes, closing sync.WaitGroup
		for range 3 {
			p := park(t.Context())
			takes.Go(func() {
				if _, err := s.Take(p, 1); !errors.Is(err, ratelimit.ErrClosed) {
					t.Errorf("%v, want that it was closed", err)
				}
			})
			p.wait(t)
		}
		waitsForALock(t, pool)
		var err error
		closing.Go(func() { err = s.Close(t.Context()) })
		takes.Wait()
		release()
		closing.Wait()
		if err != nil {
			return err
		}
		return closed(t, s, l, pool, limit.For(key), 20)
	})
}
