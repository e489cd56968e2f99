package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// waited is what came of one Wait, and the database's clock just after.
type waited struct {
	res ratelimit.Result
	err error
	at  time.Time
}

type waiter interface {
	RateLimit(ctx context.Context, requests ...ratelimit.Request) (ratelimit.Result, error)
	Wait(ctx context.Context, requests ...ratelimit.Request) (ratelimit.Result, error)
}

// waitAside waits in a goroutine of its own, and returns when that has its place in the line: once
// something was written.
func waitAside(
	ctx context.Context, t *testing.T, a waiter, pool *pgxpool.Pool, requests ...ratelimit.Request,
) <-chan waited {
	t.Helper()
	rows := func() (all string) {
		if err := pool.QueryRow(t.Context(), `SELECT coalesce(string_agg(b::text, ' ' ORDER BY name, key, shard), '') FROM weir_balance b`).Scan(&all); err != nil {
			t.Fatal(err)
		}
		return all
	}
	before := rows()
	done := make(chan waited, 1)
	go func() {
		res, err := a.Wait(ctx, requests...)
		w := waited{res: res, err: err}
		if err == nil {
			w.err = pool.QueryRow(context.WithoutCancel(ctx), `SELECT clock_timestamp()`).Scan(&w.at)
		}
		done <- w
	}()
	until(t, func() bool { return rows() != before })
	return done
}

// Each has its place by when it came, whichever process it is of, and none starts before its turn
// by the database's clock.
func TestWaitersGoInTheOrderInWhichTheyCame(t *testing.T) {
	t.Parallel()
	for name, options := range map[string][]ratelimit.Option{"alone": nil, "shards": {ratelimit.Shards(3)}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t)
			here, there := rig.Limiter(t, ratelimit.Config{}).Autocommit(pool),
				rig.Coalesce(t, rig.Limiter(t, ratelimit.Config{}), pool)
			k := ratelimit.MustDefine("queue", ratelimit.TokenBucket{Rate: 2, Period: time.Second,
				Capacity: ratelimit.Tokens(1)}, options...).For("k")
			takeOK(t, first(here.RateLimit(t.Context(), k)))
			var all []<-chan waited
			for i := range 6 {
				var a waiter = here
				if i%2 > 0 {
					a = there
				}
				all = append(all, waitAside(t.Context(), t, a, pool, k))
			}
			var last time.Time
			for i, c := range all {
				w := <-c
				if w.res.OK && w.res.RunAt.IsZero() { // the machine is so slow that its tokens were there
					w.res.RunAt = w.res.At
				}
				if w.err != nil || !w.res.OK {
					t.Fatal(w.res, w.err)
				}
				if w.at.Before(w.res.RunAt) {
					t.Errorf("waiter %d started %v early", i, w.res.RunAt.Sub(w.at))
				}
				if i > 0 && w.res.RunAt.Sub(last) < 499*time.Millisecond {
					t.Errorf("waiter %d runs %v after the one before it, want half a second", i, w.res.RunAt.Sub(last))
				}
				last = w.res.RunAt
			}
		})
	}
}

// A pool of one connection serves them all, as none holds it: each makes two trips.
func TestManyWaitersShareOneConnection(t *testing.T) {
	t.Parallel()
	var count trips
	pool := pgtest.Pool(t, count.through, func(c *pgxpool.Config) { c.MaxConns = 1 })
	k := ratelimit.MustDefine("one", ratelimit.TokenBucket{Rate: 100, Period: time.Second,
		Capacity: ratelimit.Tokens(1)}).For("k")
	limiters := []waiter{rig.Limiter(t, ratelimit.Config{}).Autocommit(pool),
		rig.Coalesce(t, rig.Limiter(t, ratelimit.Config{}), pool)}
	const waiters = 50
	takeOK(t, first(limiters[0].RateLimit(t.Context(), k)))
	ends := make(chan ratelimit.Result, waiters)
	trips := count.of(func() {
		var all sync.WaitGroup
		for i := range waiters {
			all.Go(func() {
				res, err := limiters[i%2].Wait(t.Context(), k)
				for tries := 0; tries < 10 && err != nil && i%2 == 1 &&
					strings.Contains(err.Error(), "no connection of the pool was free"); tries++ {
					// on a slow machine those before it may need the connection for too long
					res, err = limiters[i%2].Wait(t.Context(), k)
				}
				if err != nil {
					t.Error(err)
				}
				ends <- res
			})
		}
		all.Wait()
	})
	close(ends)
	var runs []time.Time
	for res := range ends {
		runs = append(runs, res.RunAt)
	}
	slices.SortFunc(runs, time.Time.Compare)
	for i := 1; i < len(runs); i++ {
		if gap := runs[i].Sub(runs[i-1]); !runs[i].IsZero() && !runs[i-1].IsZero() && gap < 9999*time.Microsecond {
			t.Errorf("two of a hundred a second run %v apart", gap)
		}
	}
	// To prepare a statement is a trip, and who is not put off looks once; a microsecond of
	// rounding may cost another look.
	if trips > 4*waiters {
		t.Errorf("%d waiters made %d trips", waiters, trips)
	}
}

// Who would come too late is told at once, and has taken nothing.
func TestWaitIsDeniedAtOnceWhatComesTooLate(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	a := rig.Limiter(t, ratelimit.Config{}).Autocommit(pool)
	hours := ratelimit.MustDefine("hours",
		ratelimit.TokenBucket{Rate: 1, Period: time.Hour, MaxReserved: ratelimit.Tokens(2)})
	ready := ratelimit.MustDefine("ready", ratelimit.TokenBucket{Rate: 10, Period: rig.Never})
	k, other := hours.For("k"), ready.For("k")
	takeOK(t, first(a.RateLimit(t.Context(), k)))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for name, tc := range map[string]struct {
		ctx  context.Context
		r    ratelimit.Request
		late time.Duration // RetryAfter
	}{
		"deadline":    {ctx, k, 59 * time.Minute},
		"its own":     {t.Context(), k.Within(30 * time.Minute), 30 * time.Minute},
		"MaxReserved": {t.Context(), k.Count(3), time.Hour},
	} {
		res, err := a.Wait(tc.ctx, tc.r, other)
		var denied *ratelimit.DeniedError
		if !errors.As(err, &denied) || res.OK || tc.ctx.Err() != nil {
			t.Errorf("%s: %+v, %v", name, res, err)
			continue
		}
		if after := denied.RetryAfter(); after < tc.late-time.Minute || after > tc.late+time.Minute {
			t.Errorf("%s: retry after %v, want about %v", name, after, tc.late)
		}
	}
	for r, want := range map[ratelimit.Request]float64{k: 0, other: 10} {
		if s, err := a.Value(t.Context(), r); err != nil || s.Value < want || s.Value > want+0.1 {
			t.Errorf("%v left, %v, want %v", s.Value, err, want)
		}
	}
}

// Who gives up leaves all limits as if it had never come.
func TestAWaiterWhoGivesUpGivesBack(t *testing.T) {
	t.Parallel()
	for name, options := range map[string][]ratelimit.Option{"alone": nil, "shards": {ratelimit.Shards(4)}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, clock := pgtest.Pool(t), rig.Clock() // which stands still
			a := rig.Limiter(t, ratelimit.Config{Clock: clock.Now}).Autocommit(pool)
			hours := ratelimit.MustDefine("hours",
				ratelimit.TokenBucket{Rate: 10, Period: time.Hour}, options...).For("k")
			window := ratelimit.MustDefine("window", ratelimit.FixedWindow{Rate: 10, Period: time.Hour}).For("k")
			w := waited{err: ratelimit.ErrOutcomeUnknown}
			// On a slow machine it may give up when its place is there, and the answer is not, or it
			// may fail to give back. It says so.
			for errors.Is(w.err, ratelimit.ErrOutcomeUnknown) || strings.Contains(w.err.Error(), "could not be given back") {
				if err := a.ResetRateLimit(t.Context(), hours, window); err != nil {
					t.Fatal(err)
				}
				takeOK(t, first(a.RateLimit(t.Context(), hours.Count(8), window.Count(3))))
				ctx, cancel := context.WithCancel(t.Context())
				done := waitAside(ctx, t, a, pool, hours.Count(5), window.Count(2))
				cancel()
				w = <-done
			}
			if !errors.Is(w.err, context.Canceled) || w.res.OK {
				t.Errorf("%+v, %v", w.res, w.err)
			}
			for r, want := range map[ratelimit.Request]float64{hours: 2, window: 7} {
				if s, err := a.Value(t.Context(), r); err != nil || s.Value != want {
					t.Errorf("%v left, %v, want %v, after %v", s.Value, err, want, w.err)
				}
			}
		})
	}
}

// An upstream that asks for a pause is left alone by those who wait already, also where their
// tokens were there.
func TestWaitersWaitForAPauseThatIsSetMeanwhile(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	a := rig.Limiter(t, ratelimit.Config{}).Autocommit(pool)
	day := ratelimit.MustDefine("day", ratelimit.FixedWindow{Rate: 1000, Period: rig.Never})
	for i := range 2 {
		today := day.For(fmt.Sprint(i))
		meanwhile(t, func(times time.Duration) (put time.Time, w waited) {
			api := ratelimit.MustDefine(fmt.Sprint("api", int(times)), ratelimit.TokenBucket{Rate: 5,
				Period: times * time.Second, Capacity: ratelimit.Tokens(1)}).For("k")
			paused := []ratelimit.Request{api, today}[i]
			takeOK(t, first(a.RateLimit(t.Context(), api.OrReserve())))
			done := waitAside(t.Context(), t, a, pool, api, today)
			if err := a.Pause(t.Context(), times*700*time.Millisecond, paused); err != nil {
				t.Fatal(err)
			}
			put = databaseNow(t, pool)
			s, err := a.Value(t.Context(), paused)
			if err != nil {
				t.Fatal(s, err)
			}
			w = <-done
			if put.Before(w.res.RunAt) && w.err == nil && w.res.OK && w.at.Before(s.PausedUntil) {
				t.Errorf("%+v, %v before the pause is over", w.res, s.PausedUntil.Sub(w.at))
			}
			return put, w
		})
	}
}

// meanwhile makes attempts at doing something while somebody waits, until one was done before it
// was that one's turn. As the machine may be slow, all waits are several times as long in later ones.
func meanwhile(t *testing.T, attempt func(times time.Duration) (done time.Time, w waited)) {
	t.Helper()
	for i := range 50 {
		done, w := attempt(time.Duration(1 + i/5))
		if w.err != nil || !w.res.OK {
			t.Fatal(w.res, w.err)
		}
		if done.Before(w.res.RunAt) {
			return
		}
		t.Logf("it took %v too long", done.Sub(w.res.RunAt))
	}
	t.Error("it never was in time")
}

// What was used beyond the estimate of those before puts off those who wait.
func TestWaitersWaitForWhatThoseBeforeThemHaveUsed(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	a := rig.Limiter(t, ratelimit.Config{}).Autocommit(pool)
	meanwhile(t, func(times time.Duration) (time.Time, waited) {
		k := ratelimit.MustDefine(fmt.Sprint("used", int(times)), ratelimit.TokenBucket{Rate: 10,
			Period: times * time.Second, Capacity: ratelimit.Tokens(5)}).For("k")
		if err := a.ResetRateLimit(t.Context(), k); err != nil {
			t.Fatal(err)
		}
		before := takeOK(t, first(a.RateLimit(t.Context(), k.Count(5))))
		done := waitAside(t.Context(), t, a, pool, k.Count(4))
		if settled, err := a.Settle(t.Context(), before.Reservation(), k.Count(12)); err != nil || !settled {
			t.Fatal(settled, err)
		}
		settled, w := databaseNow(t, pool), <-done
		if late := w.at.Sub(w.res.RunAt); settled.Before(w.res.RunAt) && late < times*699*time.Millisecond {
			t.Errorf("started %v after its first RunAt, want %v for the seven tokens before it",
				late, times*700*time.Millisecond)
		}
		return settled, w
	})
}

// What was settled in one shard, at any time, neither delays nor hastens callers that wait in
// another one. Where the turn of such a caller would come after its deadline, it fails at once.
func TestAWaiterIsMovedBySettlementsOfItsOwnShardOnly(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ before, meanwhile float64 }{
		"charged before":                   {100_000, 0},
		"given back before, charged since": {-100_000, 80_000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool, clock := pgtest.Pool(t), rig.Clock()
			a := rig.Limiter(t, ratelimit.Config{Clock: clock.Now}).Autocommit(pool)
			k := ratelimit.MustDefine("k", ratelimit.TokenBucket{Rate: 10, Period: time.Second},
				ratelimit.Shards(2)).For("k")
			settle := func(r ratelimit.Result, used float64) {
				t.Helper()
				if ok, err := a.Settle(t.Context(), r.Reservation(), k.Count(used)); err != nil || !ok {
					t.Fatal(ok, err)
				}
			}
			reserved := max(0, -tc.before)
			takeOK(t, first(a.RateLimit(t.Context(), k.Count(10))))
			for range 2 { // both shards
				takeOK(t, first(a.RateLimit(t.Context(), k.Count(1).OrReserve())))
				res := takeOK(t, first(a.RateLimit(t.Context(), k.Count(reserved).OrReserve())))
				settle(res, reserved+tc.before)
			}
			if err := a.ResetRateLimit(t.Context(), k); err != nil {
				t.Fatal(err)
			}
			taken := takeOK(t, first(a.RateLimit(t.Context(), k.Count(10))))
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			done := waitAside(ctx, t, a, pool, k)
			settle(taken, 10+tc.meanwhile)
			clock.Add(200 * time.Millisecond)
			w := <-done
			if late := tc.meanwhile > 0; late != errors.Is(w.err, context.DeadlineExceeded) || late == w.res.OK {
				t.Errorf("%+v, %v, and its turn is now: %v", w.res, w.err, !late)
			}
		})
	}
}

func TestWaitInsideATransactionIsRefused(t *testing.T) {
	t.Parallel()
	pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
	k := ratelimit.MustDefine("nested", ratelimit.TokenBucket{Rate: 10, Period: rig.Never}).For("k")
	err := l.InTx(t.Context(), pool, func(ctx context.Context, _ pgx.Tx) error {
		_, err := l.Autocommit(pool).Wait(ctx, k)
		return err
	})
	if !errors.Is(err, ratelimit.ErrNested) {
		t.Error(err)
	}
}
