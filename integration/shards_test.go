package integration

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
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
