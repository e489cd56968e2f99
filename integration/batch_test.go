package integration

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// What a batch took goes back like what one call took: all of it together like that call, and any
// part of it like the same Results given back one by one, in their order. That holds in later
// windows, too, in which only a part of it is left.
func TestWhatABatchTookGoesBackLikeWhatOneCallTook(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "shards that are chosen at random are added up in another order")
	pool := pgtest.Pool(t)
	base := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	rules := map[string]ratelimit.Rule{
		"bucket": ratelimit.TokenBucket{Rate: 4, Period: 1 << 20 * time.Microsecond, Capacity: ratelimit.Tokens(16)},
		"window": ratelimit.FixedWindow{Rate: 4, Period: time.Second, Capacity: ratelimit.Tokens(8), Start: base},
	}
	rapid.Check(t, func(t *rapid.T) {
		now := base
		limiter, err := ratelimit.New(ratelimit.Config{Citus: pgtest.Citus(), Clock: func() time.Time { return now }})
		if err != nil {
			t.Fatal(err)
		}
		kind := rapid.SampledFrom([]string{"bucket", "window"}).Draw(t, "rule")
		shards := rapid.SampledFrom([]int{1, 4}).Draw(t, "shards")
		limit := ratelimit.MustDefine(fmt.Sprint(kind, shards), rules[kind], ratelimit.Shards(shards))
		ask := func(n float64) ratelimit.Request { return limit.For("k").Count(n).OrReserve() }
		before := rapid.SampledFrom([]float64{0, 3, 8, 16}).Draw(t, "before")
		counts := rapid.SliceOfN(rapid.SampledFrom([]float64{1, 0, 0.5, 2, 3, 5}), 1, 8).Draw(t, "counts")
		later := time.Duration(rapid.IntRange(0, 6_000).Draw(t, "later")) * time.Millisecond
		order := make([]int, len(counts))
		for i := range order {
			order[i] = i
		}
		order = rapid.Permutation(order).Draw(t, "order")
		some := order[:rapid.IntRange(1, len(order)).Draw(t, "some")]

		// values are what is left if what was taken by take is given back later, by one of its ways
		// each. The ways give back to the same rows, as shards are chosen at random.
		values := func(take func(ctx context.Context, tx pgx.Tx) (ways []func(tx pgx.Tx) error,
			err error)) (left []float64) {
			err := limiter.InTx(context.Background(), pool, func(ctx context.Context, tx pgx.Tx) error {
				now, left = base, nil
				if _, err := limiter.RateLimit(ctx, tx, ask(before)); err != nil {
					return err
				}
				ways, err := take(ctx, tx)
				if err != nil {
					return err
				}
				now = base.Add(later)
				for _, back := range ways {
					savepoint, err := tx.Begin(ctx)
					if err == nil {
						err = back(savepoint)
					}
					if err != nil {
						return err
					}
					s, err := limiter.Value(ctx, savepoint, ask(0))
					if err == nil {
						err = savepoint.Rollback(ctx)
					}
					if err != nil {
						return err
					}
					left = append(left, s.Value)
				}
				return errUndo
			})
			if !errors.Is(err, errUndo) {
				t.Fatal(err)
			}
			return left
		}
		batch := func(ctx context.Context, tx pgx.Tx) []ratelimit.Result {
			calls := make([][]ratelimit.Request, len(counts))
			for i, n := range counts {
				calls[i] = []ratelimit.Request{ask(n)}
			}
			all, each, err := limiter.RateLimitMany(ctx, tx, calls)
			if err != nil || !all.OK || len(each) != len(calls) {
				t.Fatal(all, err)
			}
			return each
		}

		left := values(func(ctx context.Context, tx pgx.Tx) ([]func(tx pgx.Tx) error, error) {
			each := batch(ctx, tx)
			return []func(tx pgx.Tx) error{
				func(tx pgx.Tx) error {
					var back []ratelimit.Result
					for _, i := range some {
						back = append(back, each[i])
					}
					return limiter.GiveBackMany(ctx, tx, back)
				},
				func(tx pgx.Tx) error {
					for _, i := range slices.Sorted(slices.Values(some)) { // in the order of the line
						if err := limiter.GiveBack(ctx, tx, each[i]); err != nil {
							return err
						}
					}
					return nil
				},
			}, nil
		})
		together, oneByOne := left[0], left[1]
		if math.Abs(together-oneByOne) > 1e-9 {
			t.Errorf("%v left if given back together, %v one by one", together, oneByOne)
		}
		if len(some) < len(counts) || shards > 1 && later > 0 { // then how much is lost at full shards is chance
			return
		}
		left = values(func(ctx context.Context, tx pgx.Tx) ([]func(tx pgx.Tx) error, error) {
			var requests []ratelimit.Request
			for _, n := range counts {
				requests = append(requests, ask(n))
			}
			res, err := limiter.RateLimit(ctx, tx, requests...)
			return []func(tx pgx.Tx) error{func(tx pgx.Tx) error { return limiter.GiveBack(ctx, tx, res) }}, err
		})
		if math.Abs(together-left[0]) > 1e-9 {
			t.Errorf("%v left of a batch that was given back, %v of one call", together, left[0])
		}
	})
}

// What is given back together, after the number of shards has changed, goes to shards that have room
// for it, although the one with the fewest tokens has not enough.
func TestWhatIsGivenBackTogetherGoesToShardsWithRoom(t *testing.T) {
	t.Parallel()
	pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
	limit := ratelimit.MustDefine("room", ratelimit.TokenBucket{Rate: 40, Period: rig.Never}).For("k")
	var taken []ratelimit.Result
	for range 20 {
		taken = append(taken, takeOK(t, first(l.Autocommit(pool).RateLimit(t.Context(), limit))))
	}
	reshard(t, pool, nil, 4, limit)
	takeOK(t, first(l.Autocommit(pool).RateLimit(t.Context(), limit.Count(5)))) // all that a shard has
	tx := rig.Begin(t, pool, pgx.ReadCommitted)
	if err := l.GiveBackMany(t.Context(), tx, taken); err != nil {
		t.Fatal(err)
	}
	rig.Commit(t, tx)
	wantLeft(t, l.Autocommit(pool), limit, 35)
}

// Who takes on credit waits for the calls before it, and not for its own tokens: also if all of a
// batch come from one shard.
func TestABatchOnCreditWaitsForNothingOfItsOwn(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	limiter := rig.Limiter(t, ratelimit.Config{})
	for _, shards := range []int{1, 2} {
		limit := ratelimit.MustDefine(fmt.Sprint("credit", shards),
			ratelimit.TokenBucket{Rate: 8, Period: rig.Century}, ratelimit.Shards(shards))
		calls := make([][]ratelimit.Request, 4)
		for i := range calls {
			calls[i] = []ratelimit.Request{limit.For("k").OnCredit().OrReserve()}
		}
		err := limiter.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
			all, each, err := limiter.RateLimitMany(ctx, tx, calls)
			if err != nil || !all.OK {
				return fmt.Errorf("%+v, %w", all, err)
			}
			for i, res := range each {
				if !res.OK || !res.RunAt.IsZero() {
					t.Errorf("of %d shards, call %d runs at %v", shards, i, res.RunAt)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
