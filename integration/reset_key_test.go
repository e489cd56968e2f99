package integration

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// All that a key has used is forgotten, of limits with shards, in debt and in other programs, and
// nothing of other keys.
func TestAKeyIsResetInAllOfItsLimits(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	l := rig.Limiter(t, ratelimit.Config{})
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = db.Close() })
	limits := []ratelimit.Limit{
		ratelimit.MustDefine("api", ratelimit.TokenBucket{Rate: 10, Period: rig.Never}),
		ratelimit.MustDefine("hot", ratelimit.TokenBucket{Rate: 10, Period: rig.Never}, ratelimit.Shards(4)),
		ratelimit.MustDefine("jobs", ratelimit.FixedWindow{Rate: 10, Period: rig.Never}),
		ratelimit.MustDefine("zz", ratelimit.TokenBucket{Rate: 10, Period: rig.Never}),
	}
	for name, reset := range map[string]func(ctx context.Context, key string) error{
		"Autocommit": l.Autocommit(pool).ResetKey,
		"InTx": func(ctx context.Context, key string) error {
			return l.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error { return l.ResetKey(ctx, tx, key) })
		},
		"raw": func(ctx context.Context, key string) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return l.ResetKey(ctx, tx, key) })
		},
		"DatabaseSQL": func(ctx context.Context, key string) error {
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			if err := l.InSQL(tx).ResetKey(ctx, key); err != nil {
				return errors.Join(err, tx.Rollback())
			}
			return tx.Commit()
		},
	} {
		auto := l.Autocommit(pool)
		for _, key := range []string{"acme", "acme2", "acm", "b"} {
			for i, limit := range limits {
				n := 7.0
				if i == 2 {
					n = 15 // owing
				}
				takeOK(t, first(auto.RateLimit(t.Context(), limit.For(key).Count(n).OrReserve())))
			}
		}
		denied := first(auto.RateLimit(t.Context(), limits[0].For("acme").Count(9)))
		if denied.err != nil || denied.res.OK {
			t.Fatalf("%s: %+v", name, denied)
		}
		if err := auto.Pause(t.Context(), time.Hour, limits[3].For("acme")); err != nil {
			t.Fatal(err)
		}
		if err := reset(t.Context(), "acme"); err != nil {
			t.Fatal(name, err)
		}
		for i, limit := range limits {
			if got := left(t, auto, limit.For("acme")); got != 10 {
				t.Errorf("%s: %s has %v left", name, limit.Name(), got)
			}
			want := 3.0
			if i == 2 {
				want = -5
			}
			for _, key := range []string{"acme2", "acm", "b"} {
				if got := left(t, auto, limit.For(key)); got < want || got > want+0.1 {
					t.Errorf("%s: %s of %s has %v left, want %v", name, limit.Name(), key, got, want)
				}
			}
		}
		takeOK(t, first(auto.RateLimit(t.Context(), limits[0].For("acme").Count(9))))
		takeOK(t, first(auto.RateLimit(t.Context(), limits[1].For("acme").Count(10))))
		// Nor has it opened the row in which the limit was before it had shards.
		unaware := ratelimit.MustDefine("hot", ratelimit.TokenBucket{Rate: 10, Period: rig.Never}).For("acme")
		if res, err := rig.Limiter(t, ratelimit.Config{}).Autocommit(pool).RateLimit(t.Context(),
			unaware); err != nil || res.OK {
			t.Errorf("%s: tokens from nowhere: %+v, %v", name, res, err)
		}
		if res, err := auto.RateLimit(t.Context(), limits[3].For("acme")); err != nil || res.OK {
			t.Errorf("%s: the pause is over: %+v, %v", name, res, err)
		}
		if _, err := pool.Exec(t.Context(), `DELETE FROM weir_balance`); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range []string{"", "a\x00"} {
		if err := l.Autocommit(pool).ResetKey(t.Context(), key); !errors.Is(err, ratelimit.ErrInvalid) {
			t.Errorf("key %q: %v", key, err)
		}
	}
	if err := l.Autocommit(pool).ResetKey(t.Context(), "of nobody"); err != nil {
		t.Error(err)
	}
}

// It locks rows in the order in which calls do, and finds them by the index.
func TestResettingAKeyNeverDeadlocksWithItsCallers(t *testing.T) {
	t.Parallel()
	var met deadlocks
	pool := pgtest.Pool(t, met.watch)
	l := rig.Limiter(t, ratelimit.Config{})
	a := ratelimit.MustDefine("a", ratelimit.TokenBucket{Rate: 1e6, Period: time.Hour})
	b := ratelimit.MustDefine("b", ratelimit.TokenBucket{Rate: 1e6, Period: time.Hour}, ratelimit.Shards(3))
	c := ratelimit.MustDefine("c", ratelimit.TokenBucket{Rate: 1e6, Period: time.Hour})
	auto := l.Autocommit(pool)
	takeOK(t, first(auto.RateLimit(t.Context(), a.For("k"), b.For("k").Count(5e5), c.For("k"))))
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Go(func() {
			for range 40 {
				var err error
				if i == 0 {
					err = auto.ResetKey(t.Context(), "k")
				} else {
					_, err = auto.RateLimit(t.Context(), c.For("k"), b.For("k").Count(4e5), a.For("k"))
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := met.n.Load(); n > 0 {
		t.Errorf("%d deadlocks", n)
	}
}

// A reset of a key that meets a change of shards finds the shards.
func TestAKeyIsResetWhileALimitGetsOtherShards(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it watches the locks of one server")
	rule := ratelimit.TokenBucket{Rate: 100, Period: rig.Never}
	plain, hot := ratelimit.MustDefine("hot", rule).For("k"), ratelimit.MustDefine("hot", rule, ratelimit.Shards(4)).For("k")
	for name, change := range map[string]func(l *ratelimit.Limiter, tx pgx.Tx) error{
		"Reshard": func(l *ratelimit.Limiter, tx pgx.Tx) error { return l.Reshard(t.Context(), tx, 4, plain) },
		"first shards": func(l *ratelimit.Limiter, tx pgx.Tx) error {
			return rig.Granted(l.RateLimit(t.Context(), tx, hot))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t)
			l, other := rig.Limiter(t, ratelimit.Config{}), rig.Limiter(t, ratelimit.Config{}).Autocommit(pool)
			rig.Take(t, l.Autocommit(pool), plain.Count(90))
			tx := rig.Begin(t, pool, pgx.ReadCommitted)
			if err := change(l, tx); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- other.ResetKey(t.Context(), "k") }()
			until(t, func() bool { return rig.IsWaitedFor(t, pool, tx) })
			rig.Commit(t, tx)
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			wantLeft(t, rig.Limiter(t, ratelimit.Config{}).Autocommit(pool), plain, 100)
		})
	}
}
