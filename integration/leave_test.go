package integration

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// By every way of calling, and with shards, who leaves something is denied when no more is there,
// and the others are not.
func TestByEveryWayAShareIsLeft(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]ratelimit.Limit{
		"row": ratelimit.MustDefine("left", ratelimit.TokenBucket{Rate: 10, Period: rig.Never}),
		"shards": ratelimit.MustDefine("leftOfShards",
			ratelimit.TokenBucket{Rate: 10, Period: rig.Never}, ratelimit.Shards(4)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rig.EachWay(t, func(t *testing.T, v rig.Verbs, _ *pgxpool.Pool) {
				k := limit.For("k")
				for range 3 {
					takeOK(t, first(v.RateLimit(t.Context(), k.Count(2).Leave(4))))
				}
				if res, err := v.RateLimit(t.Context(), k.Leave(4)); err != nil || res.OK || res.Outcomes[0].Value < 4 {
					t.Errorf("%+v, %v", res, err)
				}
				takeOK(t, first(v.RateLimit(t.Context(), k.Count(1).Leave(3))))
				takeOK(t, first(v.RateLimit(t.Context(), k.Count(3))))
			})
		})
	}
}

// Under concurrency those who leave something never go below it.
func TestConcurrentCallersLeaveWhatTheyShould(t *testing.T) {
	t.Parallel()
	rig.EachWay(t, func(t *testing.T, v rig.Verbs, _ *pgxpool.Pool) {
		limit := ratelimit.MustDefine("left", ratelimit.TokenBucket{Rate: 60, Period: rig.Never})
		var granted atomic.Int64
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 10 {
					res, err := v.RateLimit(t.Context(), limit.For("k").Leave(20))
					if err != nil {
						t.Error(err)
					} else if res.OK {
						granted.Add(1)
					}
				}
			})
		}
		wg.Wait()
		if n, there := granted.Load(), left(t, v, limit.For("k")); n != 40 || there < 20 || there > 20.1 {
			t.Errorf("%d were granted, and %v are left", n, there)
		}
	})
}

func TestAResetKeepsNobodyFromLeaving(t *testing.T) {
	t.Parallel()
	v := rig.Limiter(t, ratelimit.Config{}).Autocommit(pgtest.Pool(t))
	k := ratelimit.MustDefine("left", ratelimit.TokenBucket{Rate: 10, Period: rig.Never}).For("k").Leave(9.5)
	if err := v.ResetRateLimit(t.Context(), k); err != nil { // whatever the request is for
		t.Fatal(err)
	}
	if s, err := v.Value(t.Context(), k); err != nil || s.Value != 10 {
		t.Errorf("%+v, %v", s, err)
	}
}
