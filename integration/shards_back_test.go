package integration

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// What comes back to shards that were merged or divided since takes no room that others need, whose
// tokens come back later. So all tokens are there in the end, however often the number of shards
// changes in between.
func TestWhatComesBackTakesNoRoomOfOthers(t *testing.T) {
	t.Parallel()
	const capacity = 840 // whole tokens in each of 1 to 8 shards
	for name, rule := range map[string]ratelimit.Rule{
		"Bucket": ratelimit.TokenBucket{Rate: capacity, Period: rig.Century},
		"Window": ratelimit.FixedWindow{Rate: capacity, Period: rig.Century, Start: time.Unix(0, 0)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t)
			limit := ratelimit.MustDefine("back"+name, rule, ratelimit.Shards(4))
			v := rig.Limiter(t, ratelimit.Config{}).Autocommit(pool)
			for round := range 60 {
				r := limit.For(fmt.Sprint(round))
				var took []ratelimit.Reservation
				used := 0.0
				settle := func() {
					i := rand.IntN(len(took))
					n := float64(rand.IntN(4)) / 2 * took[i].Takes[0].Count // nothing, half, all, or more
					if len(took[i].Takes) > 1 {
						n = 0
					}
					if ok, err := v.Settle(t.Context(), took[i], r.Count(n)); err != nil || !ok {
						t.Fatal(ok, err)
					}
					used += n
					took[i] = took[len(took)-1]
					took = took[:len(took)-1]
				}
				for range 15 {
					switch kind := rand.IntN(4); {
					case kind == 0:
						reshard(t, pool, nil, 1+rand.IntN(8), r)
					case kind == 1 && len(took) > 0:
						settle()
					default:
						res, err := v.RateLimit(t.Context(), r.Count(float64(1+rand.IntN(100))))
						if err != nil {
							t.Fatal(err)
						}
						if res.OK { // otherwise most of the tokens are taken
							took = append(took, res.Reservation())
						}
					}
				}
				for len(took) > 0 {
					settle()
				}
				wantLeft(t, v, r, capacity-used)
			}
		})
	}
}

// If the shards that tokens should come back to are full, the others get them.
func TestWhatComesBackFindsRoomElsewhere(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	limit := ratelimit.MustDefine("elsewhere", ratelimit.TokenBucket{Rate: 12, Period: rig.Century}, ratelimit.Shards(4))
	v := rig.Limiter(t, ratelimit.Config{}).Autocommit(pool)
	for nr := range 20 { // which shard is taken from is chance
		last := []string{"min", "max"}[nr%2] // the shard that has room
		r := limit.For(fmt.Sprint(nr))
		took := takeOK(t, first(v.RateLimit(t.Context(), r.Count(3)))).Reservation()
		reshard(t, pool, nil, 2, r)
		rig.Exec(t, pool, `UPDATE weir_balance b SET value = CASE WHEN b.shard = s.shard THEN 0 ELSE 6 END
			FROM (SELECT `+last+`(shard) AS shard FROM weir_balance WHERE key = '`+r.Key()+`' AND shard > 0 AND value > '-Infinity') s
			WHERE b.key = '`+r.Key()+`' AND b.shard > 0 AND b.value > '-Infinity'`)
		if ok, err := v.Release(t.Context(), took); err != nil || !ok {
			t.Fatal(ok, err)
		}
		wantLeft(t, v, r, 6+3)
	}
}
