package integration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

var silent = slog.New(slog.DiscardHandler)

// guidesFailOpen has the line of docs/operations.md.
func guidesFailOpen(limiter *ratelimit.Limiter, pool *pgxpool.Pool) *ratelimit.FailOpen {
	limits := &ratelimit.FailOpen{Limiter: limiter.Coalesce(pool), For: time.Minute, Timeout: 200 * time.Millisecond}

	return limits
}

func TestTheFailOpenOfTheGuideIsTested(t *testing.T) {
	t.Parallel()
	_, rest, _ := strings.Cut(read(t, "../docs/operations.md"), "limits := &ratelimit.FailOpen{")
	line, _, ok := strings.Cut(rest, "\n")
	want := "\tlimits := &ratelimit.FailOpen{" + line + "\n"
	if !ok || !strings.Contains(read(t, "failopen_test.go"), want) {
		t.Errorf("failopen_test.go does not have the guide's line: %s", line)
	}
}

// While a row is held, calls for it wait, and calls for keys that are used up are denied as ever.
// Nobody is let through: the database is well.
func TestNobodyIsLetThroughWhileARowIsHeld(t *testing.T) {
	t.Parallel()
	for range 5 {
		let, denied, slowest := beyondAHeldRow(t)
		if let == 0 {
			return
		}
		// a probe may rightly have failed
		t.Logf("%d were let through, and %d denied; a query took %v", let, denied, slowest)
	}
	t.Error("calls were let through by a database that is well")
}

// beyondAHeldRow tells how many calls were let through and denied, and how long the slowest query of
// somebody else took meanwhile.
func beyondAHeldRow(t *testing.T) (through, refused int64, slowest time.Duration) {
	const victims = 40
	pool := pgtest.Pool(t)
	l := rig.Limiter(t, ratelimit.Config{})
	used := ratelimit.MustDefine("used", ratelimit.TokenBucket{Rate: 1, Period: rig.Never})
	orders := ratelimit.MustDefine("orders", ratelimit.TokenBucket{Rate: 1e6, Period: rig.Never})
	limits := guidesFailOpen(l, pool)
	limits.Logger = silent
	defer limits.Limiter.(*ratelimit.Coalesced).Close()
	for i := range victims {
		takeOK(t, first(limits.Limiter.RateLimit(t.Context(), used.For(fmt.Sprint(i)))))
	}
	takeOK(t, first(limits.Limiter.RateLimit(t.Context(), orders.For("tenant"))))
	release := hold(t, pool, "orders", "tenant")

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var denied, granted, let atomic.Int64
	call := func(r ratelimit.Request) {
		res, err := limits.RateLimit(ctx, r)
		switch {
		case err != nil:
			if ctx.Err() == nil {
				t.Error(err)
			}
		case !res.Decided():
			let.Add(1)
		case res.OK:
			granted.Add(1)
		default:
			denied.Add(1)
		}
	}
	var wg sync.WaitGroup
	for i := range 3 { // callers of a tenant whose transaction takes long come again
		wg.Go(func() {
			time.Sleep(time.Duration(i) * 60 * time.Millisecond)
			for ctx.Err() == nil {
				call(orders.For("tenant"))
			}
		})
	}
	for i := range victims {
		wg.Go(func() {
			for ctx.Err() == nil {
				call(used.For(fmt.Sprint(i)))
				time.Sleep(50 * time.Millisecond)
			}
		})
	}
	other := rig.Beside(t, pool, rig.Most(1))
	wg.Go(func() {
		for ctx.Err() == nil {
			began := time.Now()
			time.Sleep(10 * time.Millisecond)
			rig.Exec(t, other, `SELECT 1`)
			slowest = max(slowest, time.Since(began))
		}
	})
	time.Sleep(3 * time.Second)
	if n := granted.Load(); n > 0 {
		t.Errorf("%d were granted of a row that is held", n)
	}
	release()
	until(t, func() bool { return granted.Load() > 0 && denied.Load() > 4*victims })
	cancel()
	wg.Wait()
	return max(let.Load(), limits.Opened()), denied.Load(), slowest
}

// The same for one caller alone, beside whom nothing is decided, and for callers who have all of
// the pool's connections.
func TestACallerWhoWaitsAloneIsNotLetThrough(t *testing.T) {
	t.Parallel()
	limit := ratelimit.MustDefine("alone", ratelimit.TokenBucket{Rate: 100, Period: rig.Never})
	for _, callers := range []int{1, 6} {
		for _, w := range rig.Ways {
			if w.Name != "Autocommit" && w.Name != "Coalesced" {
				continue
			}
			t.Run(fmt.Sprint(w.Name, callers), func(t *testing.T) {
				t.Parallel()
				pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 2 })
				other, err := pgxpool.New(t.Context(), pgtest.URL(t, pool))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(other.Close)
				v := w.Verbs(t, rig.Limiter(t, ratelimit.Config{}), pool)
				takeOK(t, first(v.RateLimit(t.Context(), limit.For("k"))))
				// wait tells how many calls fail and how many are let through of those for a row that is held.
				// A call may be let through where its probe takes two seconds: then they are made again.
				wait := func(held, timeout time.Duration) (failed, let int64) {
					for range 20 {
						release := hold(t, other, "alone", "k")
						later := time.AfterFunc(held, release)
						ctx, cancel := context.WithTimeout(t.Context(), timeout)
						f := &ratelimit.FailOpen{Limiter: v, Timeout: 20 * time.Millisecond, Logger: silent}
						began := time.Now()
						var n atomic.Int64
						var wg sync.WaitGroup
						for range callers {
							wg.Go(func() {
								if _, err := f.RateLimit(ctx, limit.For("k")); err != nil {
									n.Add(1)
									if !errors.Is(err, context.DeadlineExceeded) {
										t.Error(err)
									}
								}
							})
						}
						wg.Wait()
						took := time.Since(began)
						cancel()
						later.Stop()
						release()
						if failed, let = n.Load(), f.Opened(); let == 0 || took < 2*time.Second {
							break
						}
					}
					return failed, let
				}
				if n, let := wait(hung, time.Second); n != int64(callers) || let > 0 {
					t.Errorf("of %d calls %d failed, %d were let through", callers, n, let)
				}
				if n, let := wait(300*time.Millisecond, hung); n > 0 || let > 0 {
					t.Errorf("of %d that wait %d failed, %d were let through", callers, n, let)
				}
			})
		}
	}
}

// A call that the database refuses is not let through while others are decided, or could be.
func TestACallThatFailsByItselfIsNotLetThrough(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	limit := ratelimit.MustDefine("refused", ratelimit.TokenBucket{Rate: 100, Period: rig.Never})
	rig.Exec(t, pool, `ALTER TABLE weir_balance ADD CHECK (key <> 'bad')`)
	auto := rig.Limiter(t, ratelimit.Config{}).Autocommit(pool)
	var refused int
	var let int64
	for range 20 { // a call may be let through where its probe takes two seconds
		f := &ratelimit.FailOpen{Limiter: auto, Logger: silent}
		began := time.Now()
		refused = 0
		for range 5 {
			if _, err := f.RateLimit(t.Context(), limit.For("bad")); rig.SQLState(err) == "23514" {
				refused++
			} else if err != nil {
				t.Error(err)
			}
		}
		took := time.Since(began)
		if let = f.Opened(); let == 0 || took < 2*time.Second {
			break
		}
		t.Logf("%d were let through, in %v", let, took)
	}
	if refused != 5 || let > 0 {
		t.Errorf("of 5 calls %d were refused, and %d let through", refused, let)
	}
	var left int
	err := pool.QueryRow(t.Context(), `SELECT count(*) FROM weir_balance`).Scan(&left)
	if err != nil || left > 0 {
		t.Errorf("%d rows are left, %v", left, err)
	}
}

// A database that hangs is away: calls get their share from memory until it decides again.
func TestCallsAreLetThroughWhileTheDatabaseHangs(t *testing.T) {
	t.Parallel()
	const capacity = 8
	for _, share := range []float64{0, 0.5, -1} {
		t.Run(fmt.Sprint("Share", share), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t)
			rule := ratelimit.TokenBucket{Rate: capacity, Period: rig.Never}
			limit, together := ratelimit.MustDefine("hangs", rule), rig.Coalesce(t, rig.Limiter(t, ratelimit.Config{}), pool)
			f := &ratelimit.FailOpen{Limiter: together, Timeout: 20 * time.Millisecond, Share: share, Logger: silent}
			takeOK(t, first(together.RateLimit(t.Context(), limit.For("k"))))
			blocker := rig.Begin(t, pool, "")
			lock := `LOCK TABLE weir_balance IN ACCESS EXCLUSIVE MODE`
			if _, err := blocker.Exec(t.Context(), lock); err != nil {
				t.Fatal(err)
			}
			var wg sync.WaitGroup
			for range 3 * capacity {
				wg.Go(func() {
					res, err := f.RateLimit(t.Context(), limit.For("k"))
					denied := res.RetryAfter() > 0 && errors.Is(res.Err(), ratelimit.ErrDenied)
					if err != nil || res.Decided() || !res.OK && !denied {
						t.Errorf("%+v, %v", res, err)
					}
				})
			}
			wg.Wait()
			want := map[float64]int64{0: capacity, 0.5: capacity / 2, -1: 3 * capacity}[share]
			if f.Opened() != want {
				t.Errorf("%d were let through, want %d", f.Opened(), want)
			}
			rig.Commit(t, blocker)
			until(t, func() bool { // of their own key the last of those calls may have all tokens
				res, err := f.RateLimit(t.Context(), limit.For("another"))
				return err == nil && res.OK && res.Decided()
			})
		})
	}
}
