package integration

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

// A limit with shards answers as one balance would, in an order that respects which transactions had ended when others began.
// Next to nothing flows in and nothing is given back: a shard that is full gains nothing, which one balance would not know.
func TestALimitWithShardsIsLinearizable(t *testing.T) {
	t.Parallel()
	for _, r := range roads {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 9 })
			run := r.open(t, limiter(t, ratelimit.Config{Portable: r.portable}), pool)
			var seen tally
			for round := range rounds(t, 12) { // small ones find more: a search of many operations finds an excuse
				shards := []int{2, 5, 16}[round%3]
				rule := []ratelimit.Rule{
					ratelimit.TokenBucket{Rate: 10, Period: century, MaxReserved: ratelimit.Tokens(5)},
					ratelimit.FixedWindow{Rate: 10, Period: century, MaxReserved: ratelimit.Tokens(5)},
				}[round/3%2]
				b := balances{{rule, ratelimit.MustDefine(fmt.Sprint("shards", round), rule, ratelimit.Shards(shards)), "k"}}
				m := mix{balances: b, clients: 4, calls: 6, sharded: true, noGivings: true, single: r.name == "DatabaseSQL", counts: []float64{0, 1, 1, 2, 3.5, 10}}
				h := m.record(t, r, run)
				seen.add(t, h)
				h.mustBeExplained(t, false)
			}
			seen.mustHaveAll(t)
		})
	}
}
