package integration

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// endsAt is a clock that ends a context when it is read for the nth time. The limiter reads it once
// for each statement, before it sends the trip.
type endsAt struct {
	n   atomic.Int64
	end func()
}

func (e *endsAt) now() time.Time {
	if e.n.Add(-1) == 0 {
		e.end()
	}
	return rig.Noon
}

// during runs a call of fn whose context ends at the nth reading of the clock, in a transaction that
// commits whatever fn returns.
func (e *endsAt) during(t *testing.T, l *ratelimit.Limiter, pool ratelimit.Beginner, level pgx.TxIsoLevel, n int64,
	fn func(context.Context, pgx.Tx) error) error {
	t.Helper()
	var failed error
	err := l.InTxOptions(t.Context(), pool, pgx.TxOptions{IsoLevel: level}, func(ctx context.Context, tx pgx.Tx) error {
		short, cancel := context.WithCancel(ctx)
		defer cancel()
		e.end = cancel
		e.n.Store(n)
		failed = fn(short, tx)
		e.n.Store(0)
		return nil
	})
	if failed == nil {
		return err
	}
	return failed // whether it could commit or not
}

// A call of shards whose context ends between its trips takes all or nothing.
func TestShardsAreTakenAllOrNoneWheneverTheContextEnds(t *testing.T) {
	t.Parallel()
	rule := ratelimit.TokenBucket{Rate: 100, Period: rig.Never}
	sharded := ratelimit.MustDefine("a", rule, ratelimit.Shards(4)).For("k")
	empty := ratelimit.MustDefine("b", rule).For("k")
	for _, level := range rig.Levels {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			pool, e := pgtest.Pool(t), &endsAt{}
			for n := int64(1); n < 14; n++ {
				l := rig.Limiter(t, ratelimit.Config{Clock: e.now})
				auto := l.Autocommit(pool)
				if err := auto.ResetRateLimit(t.Context(), sharded, empty); err != nil {
					t.Fatal(err)
				}
				takeOK(t, first(auto.RateLimit(t.Context(), sharded)))
				takeOK(t, first(auto.RateLimit(t.Context(), empty.Count(100))))
				l = rig.Limiter(t, ratelimit.Config{Clock: e.now})
				if _, err := l.Autocommit(pool).CheckRateLimit(t.Context(), sharded); err != nil {
					t.Fatal(err)
				}
				err := e.during(t, l, pool, level, n, func(ctx context.Context, tx pgx.Tx) error {
					return l.Consume(ctx, tx, sharded, empty)
				})
				if err == nil {
					t.Errorf("reading %d: granted", n)
				}
				wantValue(t, l, pool, sharded, 99)
			}
		})
	}
}

// A reservation counts as settled only if its tokens are given back with it.
func TestAReservationIsSettledAsAWholeWheneverTheContextEnds(t *testing.T) {
	t.Parallel()
	pool, e := pgtest.Pool(t), &endsAt{}
	l := rig.Limiter(t, ratelimit.Config{Clock: e.now})
	auto := l.Autocommit(pool)
	k := ratelimit.MustDefine("settled", ratelimit.TokenBucket{Rate: 100, Period: rig.Never}).For("k")
	for n := int64(1); n < 5; n++ {
		res := takeOK(t, first(auto.RateLimit(t.Context(), k.Count(5))))
		var settled bool
		err := e.during(t, l, pool, pgx.ReadCommitted, n, func(ctx context.Context, tx pgx.Tx) (err error) {
			settled, err = l.Settle(ctx, tx, res.Reservation(), k.Count(0))
			return err
		})
		again, failed := auto.Settle(t.Context(), res.Reservation(), k.Count(0))
		if failed != nil || settled == again || settled != (err == nil) {
			t.Errorf("reading %d: settled %v (%v), and again %v (%v)", n, settled, err, again, failed)
		}
		wantValue(t, l, pool, k, 100)
	}
}

// What is enforced is taken with what its shadow notes, or not at all.
func TestAShadowFollowsWheneverTheContextEnds(t *testing.T) {
	t.Parallel()
	pool, e := pgtest.Pool(t), &endsAt{}
	l := rig.Limiter(t, ratelimit.Config{Clock: e.now})
	rule := ratelimit.TokenBucket{Rate: 100, Period: rig.Never}
	k := ratelimit.MustDefine("enforced", rule).For("k")
	shadow := ratelimit.MustDefine("noted", rule, ratelimit.Shadow()).For("k")
	for what, take := range map[string]func(ctx context.Context, tx pgx.Tx) error{
		"RateLimit": func(ctx context.Context, tx pgx.Tx) error { return l.Consume(ctx, tx, k, shadow) },
		"RateLimitMany": func(ctx context.Context, tx pgx.Tx) error {
			_, _, err := l.RateLimitMany(ctx, tx, [][]ratelimit.Request{{k, shadow}})
			return err
		},
	} {
		for n := int64(1); n < 4; n++ {
			if err := l.Autocommit(pool).ResetRateLimit(t.Context(), k, shadow); err != nil {
				t.Fatal(err)
			}
			want := 99.0
			if err := e.during(t, l, pool, pgx.ReadCommitted, n, take); err != nil {
				want = 100
			}
			t.Log(what, n, want)
			wantValue(t, l, pool, k, want)
		}
	}
}
