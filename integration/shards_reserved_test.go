package integration

import (
	"testing"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// The shards of a limit together owe at most MaxReserved, and a lone caller gets all of that.
func TestShardsTogetherOweNoMoreThanMaxReserved(t *testing.T) {
	t.Parallel()
	const capacity, most = 80, 40
	limit := ratelimit.MustDefine("owed by shards", ratelimit.TokenBucket{Rate: capacity, Period: rig.Century,
		Capacity: ratelimit.Tokens(capacity), MaxReserved: ratelimit.Tokens(most)}, ratelimit.Shards(8))
	for name, cfg := range map[string]ratelimit.Config{"Postgres": {}, "Portable": {Portable: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := rig.Limiter(t, cfg).Autocommit(pgtest.Pool(t))
			r := limit.For("k").OrReserve()
			granted := 0
			for ; granted <= capacity+most; granted++ {
				res, err := v.RateLimit(t.Context(), r)
				if err != nil {
					t.Fatal(err)
				}
				if !res.OK {
					break
				}
			}
			if granted != capacity+most {
				t.Errorf("%d were granted, want the %d that there are and %d that may be owed", granted, capacity, most)
			}
		})
	}
}
