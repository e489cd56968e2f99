package integration

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/shard"
)

// Any count up to the capacity is granted, however little a shard has, until nothing is left.
func TestTheShardsOfALimitAreOneBalance(t *testing.T) {
	t.Parallel()
	rig.EachWay(t, func(t *testing.T, v rig.Verbs, _ *pgxpool.Pool) {
		for _, shards := range []int{2, 3, 16, 64} {
			limit := ratelimit.MustDefine(fmt.Sprint("of ", shards),
				ratelimit.TokenBucket{Rate: 10, Period: rig.Never}, ratelimit.Shards(shards))
			left := 10.0
			for _, n := range []float64{3, 0.5, 4, 1, 0, 1.5} {
				res, err := v.RateLimit(t.Context(), limit.For("k").Count(n))
				if left -= n; err != nil || !res.OK || !res.RunAt.IsZero() {
					t.Fatalf("%d shards, %v left after %v: %+v, %v", shards, left, n, res, err)
				}
				if s, err := v.Value(t.Context(), limit.For("k")); err != nil || math.Abs(s.Value-left) > flown {
					t.Fatalf("%d shards: %v of %v, %v", shards, s.Value, left, err)
				}
			}
			res, err := v.RateLimit(t.Context(), limit.For("k"))
			if err != nil || res.OK || res.RetryAt.Sub(res.At) < time.Hour {
				t.Fatalf("%d shards, nothing left: %+v, %v", shards, res, err)
			}
			if err := v.ResetRateLimit(t.Context(), limit.For("k")); err != nil {
				t.Fatal(err)
			}
			if res, err := v.RateLimit(t.Context(), limit.For("k").Count(10)); err != nil || !res.OK {
				t.Fatalf("%d shards, reset: %+v, %v", shards, res, err)
			}
			if err := v.GiveBack(t.Context(), res); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A take writes the share of its shard, to the last bit: the first has more where the numbers do not
// divide evenly.
func TestEachShardHasItsShare(t *testing.T) {
	t.Parallel()
	rig.EachWay(t, func(t *testing.T, v rig.Verbs, pool *pgxpool.Pool) {
		limit := ratelimit.MustDefine("share", ratelimit.TokenBucket{Rate: 20, Period: rig.Never,
			Capacity: ratelimit.Tokens(10)}, ratelimit.Shards(3))
		for range 30 { // one without shards of its own, such as Autocommit, takes from all of them
			if err := rig.Granted(v.RateLimit(t.Context(), limit.For("k").Count(0.25))); err != nil {
				t.Fatal(err)
			}
		}
		capacity, others := shard.Split(10, 3)
		rate, othersRate := shard.Split(20, 3)
		want := []float64{capacity, others, others, rate, othersRate, othersRate}
		var capacities, rates []float64
		if err := pool.QueryRow(t.Context(), `SELECT array_agg(capacity ORDER BY shard), array_agg(rate ORDER BY shard)
			FROM weir_balance WHERE name = 'share' AND key = 'k' AND shard > 0`).Scan(&capacities, &rates); err != nil {
			t.Fatal(err)
		}
		if got := slices.Concat(capacities, rates); !slices.Equal(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	})
}

// The first call of a limit tells what is left in all of its shards, also where it makes them.
func TestTheFirstCallOfALimitWithShardsTellsWhatIsLeft(t *testing.T) {
	t.Parallel()
	rig.EachWay(t, func(t *testing.T, v rig.Verbs, _ *pgxpool.Pool) {
		limit := ratelimit.MustDefine("tells", ratelimit.TokenBucket{Rate: 3, Period: rig.Never}, ratelimit.Shards(3))
		for key, count := range map[string]float64{"a shard": 1, "two": 2, "all": 3, "none": 0} {
			res, err := v.RateLimit(t.Context(), limit.For(key).Count(count))
			if err := rig.Granted(res, err); err != nil {
				t.Fatal(err)
			}
			if left := res.Outcomes[0].Value; math.Abs(left-(3-count)) > flown {
				t.Errorf("%v of 3 were taken, and the answer says that %v are left", count, left)
			}
		}
	})
}
