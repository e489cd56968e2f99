package integration

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/shard"
)

// A process that knows a key's shards from before they were pruned finds them closed, and looks for
// the head: whatever it does first counts, and no token is there twice.
func TestAPrunedKeyOfShardsIsTheSameForWhoKnewIt(t *testing.T) {
	t.Parallel()
	limit := ratelimit.MustDefine("sharded", ratelimit.TokenBucket{Rate: 40, Period: time.Hour},
		ratelimit.Shards(4)).Global()
	type verb func(context.Context, *ratelimit.Limiter, *pgxpool.Pool, ratelimit.Result) error
	within := func(level pgx.TxIsoLevel) verb {
		return func(ctx context.Context, l *ratelimit.Limiter, pool *pgxpool.Pool, _ ratelimit.Result) error {
			return l.InTxOptions(ctx, pool, pgx.TxOptions{IsoLevel: level}, func(ctx context.Context, tx pgx.Tx) error {
				return second(l.RateLimit(ctx, tx, limit.Count(3)))
			})
		}
	}
	for name, tc := range map[string]struct {
		first verb
		left  float64
	}{
		"InTx":                {within(pgx.Serializable), 37},
		"InTx READ COMMITTED": {within(pgx.ReadCommitted), 37},
		"by hand": {func(ctx context.Context, l *ratelimit.Limiter, pool *pgxpool.Pool, _ ratelimit.Result) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				return second(l.RateLimit(ctx, tx, limit.Count(3)))
			})
		}, 37},
		"alone": {func(ctx context.Context, l *ratelimit.Limiter, pool *pgxpool.Pool, _ ratelimit.Result) error {
			return second(l.Autocommit(pool).RateLimit(ctx, limit.Count(3)))
		}, 37},
		"all of it": {func(ctx context.Context, l *ratelimit.Limiter, pool *pgxpool.Pool, _ ratelimit.Result) error {
			return second(l.Autocommit(pool).RateLimit(ctx, limit.Count(40)))
		}, 0},
		"a reservation": {func(ctx context.Context, l *ratelimit.Limiter, pool *pgxpool.Pool,
			_ ratelimit.Result) error {
			a := l.Autocommit(pool)
			if err := second(a.RateLimit(ctx, limit.Count(40))); err != nil {
				return err
			}
			return second(a.RateLimit(ctx, limit.Count(5).OrReserve()))
		}, -5},
		"give back": {func(ctx context.Context, l *ratelimit.Limiter, pool *pgxpool.Pool, res ratelimit.Result) error {
			return l.Autocommit(pool).GiveBack(ctx, res)
		}, 40},
		"settle beyond": {func(ctx context.Context, l *ratelimit.Limiter, pool *pgxpool.Pool,
			res ratelimit.Result) error {
			_, err := l.Autocommit(pool).Settle(ctx, res.Reservation(), limit.Count(8))
			return err
		}, 35},
		"reset": {func(ctx context.Context, l *ratelimit.Limiter, pool *pgxpool.Pool, _ ratelimit.Result) error {
			return l.Autocommit(pool).ResetRateLimit(ctx, limit)
		}, 40},
		"pause": {func(ctx context.Context, l *ratelimit.Limiter, pool *pgxpool.Pool, _ ratelimit.Result) error {
			return l.Autocommit(pool).Pause(ctx, time.Minute, limit)
		}, 40},
		"resume": {func(ctx context.Context, l *ratelimit.Limiter, pool *pgxpool.Pool, _ ratelimit.Result) error {
			return l.Autocommit(pool).Resume(ctx, limit)
		}, 40},
	} {
		for _, portable := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/portable %v", name, portable), func(t *testing.T) {
				t.Parallel()
				pool, c := pgtest.Pool(t), rig.Clock()
				cfg := ratelimit.Config{Portable: portable, Clock: c.Now}
				knows, other := rig.Limiter(t, cfg), rig.Limiter(t, cfg)
				a, b := knows.Autocommit(pool), other.Autocommit(pool)
				takeOK(t, first(a.RateLimit(t.Context(), limit.Count(3)))) // makes the shards
				res := takeOK(t, first(a.RateLimit(t.Context(), limit.Count(3))))
				c.Add(time.Hour)
				pruned(t, other, pool, ratelimit.PruneConfig{Batch: 2})
				if n := rowsOf(t, pool, "weir_balance"); n != 0 {
					t.Fatalf("%d rows are left of an idle key", n)
				}
				if err := tc.first(t.Context(), knows, pool, res); err != nil {
					t.Fatal(err)
				}
				s, err := b.Value(t.Context(), limit)
				if err != nil || s.Value != tc.left || s.PausedUntil.IsZero() == (name == "pause") {
					t.Errorf("%+v, %v, want %v left", s, err, tc.left)
				}
				c.Add(time.Minute)
				for i, v := range []*ratelimit.Autocommit{a, b} {
					if res, err := v.RateLimit(t.Context(), limit.Count(40)); err != nil ||
						res.OK != (i == 0 && (tc.left == 40)) {
						t.Errorf("%d: all of it again: %+v, %v", i, res, err)
					}
				}
				c.Add(24 * 32 * time.Hour)
				pruned(t, other, pool, ratelimit.PruneConfig{})
				if n := rowsOf(t, pool, "weir_balance"); n != 0 {
					t.Errorf("%d rows are left of an idle key", n)
				}
			})
		}
	}
}

// Who knows shards that were pruned takes nothing from them once the key has others.
func TestWhoKnewItTakesNothingFromAPrunedLayout(t *testing.T) {
	t.Parallel()
	rule := ratelimit.TokenBucket{Rate: 40, Period: time.Hour}
	four := ratelimit.MustDefine("laid out", rule, ratelimit.Shards(4)).Global()
	eight := ratelimit.MustDefine("laid out", rule, ratelimit.Shards(8)).Global()
	for _, portable := range []bool{false, true} {
		t.Run(fmt.Sprintf("portable %v", portable), func(t *testing.T) {
			t.Parallel()
			pool, c := pgtest.Pool(t), rig.Clock()
			cfg := ratelimit.Config{Portable: portable, Clock: c.Now}
			knows, other := rig.Limiter(t, cfg), rig.Limiter(t, cfg)
			for range 2 { // the first call makes the shards, and the second one gets to know them
				takeOK(t, first(knows.Autocommit(pool).RateLimit(t.Context(), four.Count(3))))
			}
			c.Add(time.Hour)
			pruned(t, other, pool, ratelimit.PruneConfig{})
			takeOK(t, first(other.Autocommit(pool).RateLimit(t.Context(), eight.Count(40))))
			for range 5 {
				res, err := knows.Autocommit(pool).RateLimit(t.Context(), four.Count(1))
				if err != nil || res.OK {
					t.Errorf("of a limit that is used up was granted: %+v, %v", res, err)
				}
			}
		})
	}
}

// A key of which somebody holds a shard, or uses one, stays whole; and what a hand has deleted of
// one comes back full.
func TestAKeyOfShardsIsPrunedWhollyOrNotAtAll(t *testing.T) {
	t.Parallel()
	pool, c := pgtest.Pool(t), rig.Clock()
	l := rig.Limiter(t, ratelimit.Config{Clock: c.Now})
	a := l.Autocommit(pool)
	limit := ratelimit.MustDefine("sharded", ratelimit.TokenBucket{Rate: 40, Period: time.Hour},
		ratelimit.Shards(4)).Global()
	takeOK(t, first(a.RateLimit(t.Context(), limit.Count(3))))
	all := rowsOf(t, pool, "weir_balance")
	stay := func(why string) {
		t.Helper()
		if pruned(t, l, pool, ratelimit.PruneConfig{}); rowsOf(t, pool, "weir_balance") != all {
			t.Errorf("%s: %d rows are left of %d", why, rowsOf(t, pool, "weir_balance"), all)
		}
	}
	stay("not full")
	c.Add(time.Hour)
	tx := rig.Begin(t, pool, pgx.ReadCommitted)
	takeOK(t, first(l.RateLimit(t.Context(), tx, limit)))
	stay("held")
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	loseShards(t, pool)
	for _, v := range []*ratelimit.Autocommit{a, rig.Limiter(t, ratelimit.Config{Clock: c.Now}).Autocommit(pool)} {
		takeOK(t, first(v.RateLimit(t.Context(), limit.Count(20))))
	}
	if res, err := a.RateLimit(t.Context(), limit); err != nil || res.OK {
		t.Errorf("%+v, %v, want it denied: all 40 are taken", res, err)
	}
}

// loseShards deletes two rows of the first layout of a limit, as somebody may have by hand.
func loseShards(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	first := shard.Layout{Shards: 4, Generation: 1}
	tag, err := pool.Exec(t.Context(), `DELETE FROM weir_balance WHERE shard IN ($1, $2)`, first.Row(1), first.Row(2))
	if err != nil || tag.RowsAffected() != 2 {
		t.Fatal(tag, err)
	}
}

// Of two transactions that find the same shards missing, the second one has nothing left to do.
func TestTwoCallersMendTheSameShards(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it watches the locks of one server")
	pool := pgtest.Pool(t)
	limit := ratelimit.MustDefine("mended", ratelimit.TokenBucket{Rate: 40, Period: rig.Never},
		ratelimit.Shards(4)).Global()
	takeOK(t, first(rig.Limiter(t, ratelimit.Config{}).Autocommit(pool).RateLimit(t.Context(), limit)))
	loseShards(t, pool)
	one, two := rig.Begin(t, pool, pgx.ReadCommitted), rig.Begin(t, pool, pgx.ReadCommitted)
	takeOK(t, first(rig.Limiter(t, ratelimit.Config{}).RateLimit(t.Context(), one, limit)))
	second := waiting(t, pool, two, func() (ratelimit.Result, error) {
		return rig.Limiter(t, ratelimit.Config{}).RateLimit(t.Context(), two, limit)
	})
	rig.Commit(t, one)
	if a := <-second; a.err != nil || !a.res.OK {
		t.Errorf("%+v, %v, want it granted", a.res, a.err)
	}
	rig.Commit(t, two)
}
