package integration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// A row that somebody holds holds no caller without a deadline for ever. One with a deadline waits
// until that, and one who waits in line waits for its turn.
func TestACallerWithoutADeadlineGetsOne(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	rule := ratelimit.TokenBucket{Rate: 100, Period: 10 * time.Second}
	limit := ratelimit.MustDefine("bound", rule)
	bounded := rig.Limiter(t, ratelimit.Config{Timeout: 300 * time.Millisecond})
	auto, together := bounded.Autocommit(pool), rig.Coalesce(t, bounded, pool)
	usual := rig.Limiter(t, ratelimit.Config{}).Autocommit(pool)
	res := takeOK(t, first(usual.RateLimit(t.Context(), limit.For("k"))))
	release := hold(t, pool, "bound", "k")
	k, ctx := limit.For("k"), context.Background()
	for name, call := range map[string]func() error{
		"Autocommit": func() error { return second(auto.RateLimit(ctx, k)) },
		"Coalesced":  func() error { return second(together.RateLimit(ctx, k)) },
		"Wait":       func() error { return second(auto.Wait(ctx, k)) },
		"GiveBack":   func() error { return auto.GiveBack(ctx, res) },
		"Pause":      func() error { return auto.Pause(ctx, time.Second, k) },
		"Reset":      func() error { return auto.ResetRateLimit(ctx, k) },
		"ResetKey":   func() error { return auto.ResetKey(ctx, "k") },
		"Settle": func() error {
			_, err := auto.Settle(ctx, res.Reservation(), k.Count(0))
			return err
		},
		"Release": func() error {
			_, err := auto.Release(ctx, res.Reservation())
			return err
		},
	} {
		done := make(chan error, 1)
		go func() { done <- call() }()
		select {
		case err := <-done:
			if !errors.Is(err, context.DeadlineExceeded) ||
				!strings.Contains(err.Error(), "Config.Timeout is 300ms") {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(30 * time.Second):
			release()
			t.Fatalf("%s waits on: %v", name, <-done)
		}
	}

	unbounded := rig.Limiter(t, ratelimit.Config{Timeout: -1}).Autocommit(pool)
	for _, v := range []rig.Verbs{auto, together, unbounded} {
		ctx := context.Background()
		if v == rig.Verbs(auto) || v == rig.Verbs(together) {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, time.Minute)
			defer cancel()
		}
		done := make(chan error, 1)
		go func() { done <- second(v.RateLimit(ctx, k)) }()
		select {
		case err := <-done:
			t.Errorf("a call that may wait did not: %v", err)
		case <-time.After(500 * time.Millisecond):
		}
		release()
		if err := <-done; err != nil {
			t.Error(err)
		}
		release = hold(t, pool, "bound", "k")
	}
	release()

	inLine, count := bounded, 5.0 // which come after half a second
	if pgtest.Citus() {
		// A trip there may take longer than 300 ms.
		inLine, count = rig.Limiter(t, ratelimit.Config{Timeout: 2 * time.Second}), 25
	}
	comes := time.Duration(count * float64(rule.Period) / rule.Rate)
	for tries := 1; ; tries++ {
		line, began := limit.For(fmt.Sprint("line", tries)), time.Now()
		takeOK(t, first(usual.RateLimit(t.Context(), line.Count(100))))
		res, err := inLine.Autocommit(pool).Wait(ctx, line.Count(count))
		if err == nil && res.OK && !res.RunAt.IsZero() {
			return
		}
		// On a busy machine the database may take longer to answer, or the tokens may be there.
		there := err == nil && res.OK && time.Since(began) >= comes
		if !errors.Is(err, context.DeadlineExceeded) && !there || tries == 20 {
			t.Fatalf("did not wait: %+v, %v", res, err)
		}
	}
}

// If a call's timer fires just when the call is answered, no later call times out because of it
// before its own Config.Timeout is over.
func TestNoCallFailsBeforeItsTimeIsOver(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	limit := ratelimit.MustDefine("ample", ratelimit.TokenBucket{Rate: 1e9, Period: time.Second})
	var granted, late atomic.Int64
	for timeout := time.Millisecond; granted.Load() < 10_000 || late.Load() < 100; timeout = timeout * 5 / 4 {
		if timeout > 10*time.Second {
			timeout = time.Millisecond
		}
		c := rig.Coalesce(t, rig.Limiter(t, ratelimit.Config{Timeout: timeout}), pool)
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() {
				for range 32 {
					began := time.Now()
					res, err := c.RateLimit(context.Background(), limit.For("k"))
					took := time.Since(began)
					switch {
					case err == nil && res.OK:
						granted.Add(1)
					case !errors.Is(err, context.DeadlineExceeded):
						t.Errorf("%+v, %v", res, err)
					case took < timeout:
						t.Errorf("after %v of %v: %v", took, timeout, err)
					default:
						late.Add(1)
					}
				}
			})
		}
		wg.Wait()
		if t.Failed() {
			return
		}
	}
}

// The shadows of a call have what is left of its time.
func TestACallWithShadowsHasOneTimeout(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	rule := ratelimit.TokenBucket{Rate: 100, Period: 10 * time.Second}
	all := []ratelimit.Request{ratelimit.MustDefine("enforced", rule).For("k")}
	for i := range 20 {
		all = append(all, ratelimit.MustDefine(fmt.Sprint("shadow", i), rule, ratelimit.Shadow()).For("k"))
	}
	tx := rig.Begin(t, pool, pgx.ReadCommitted)
	takeOK(t, first(rig.Limiter(t, ratelimit.Config{}).RateLimit(t.Context(), tx, all[1:]...)))
	const timeout = time.Second
	c := rig.Coalesce(t, rig.Limiter(t, ratelimit.Config{Timeout: timeout}), pool)
	began := time.Now()
	takeOK(t, first(c.RateLimit(context.Background(), all...)))
	if took := time.Since(began); took > 10*timeout { // with a timeout for each shadow it would be 20
		t.Errorf("it took %v", took)
	}
	rollback(t, tx)
}
