package integration

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// A transaction of the caller's own takes from the shards that come after the one that denied it,
// whatever other limits the call names, and may take again from those that it has locked.
func TestAWrongGuessDeniesNothingThatLaterShardsHave(t *testing.T) {
	t.Parallel()
	few := ratelimit.MustDefine("a", ratelimit.TokenBucket{Rate: 80, Period: rig.Never}, ratelimit.Shards(2))
	many := ratelimit.MustDefine("b", ratelimit.TokenBucket{Rate: 80, Period: rig.Never}, ratelimit.Shards(8))
	ahead := ratelimit.MustDefine("c", ratelimit.TokenBucket{Rate: 80, Period: rig.Never}, ratelimit.Shards(8))
	for name, c := range map[string]struct {
		emptied  string
		requests []ratelimit.Request
	}{
		"the last shard has the tokens": {
			`UPDATE weir_balance SET value = 0 WHERE name = 'b' AND shard > 0
				AND shard < (SELECT max(shard) FROM weir_balance WHERE name = 'b')`,
			[]ratelimit.Request{few.For("k"), many.For("k")}},
		"all reserve": {
			`UPDATE weir_balance SET value = -1000 WHERE name = 'c' AND shard > 0`,
			[]ratelimit.Request{ahead.For("k").OrReserve()}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t)
			for _, portable := range []bool{false, true} {
				for range 10 { // as each draws where it begins
					l := rig.Limiter(t, ratelimit.Config{Portable: portable})
					if _, err := pool.Exec(t.Context(), `DELETE FROM weir_balance`); err != nil {
						t.Fatal(err)
					}
					for range 2 { // the first makes the shards, the second learns what they have
						for _, r := range c.requests {
							takeOK(t, first(l.Autocommit(pool).RateLimit(t.Context(), r)))
						}
					}
					if _, err := pool.Exec(t.Context(), c.emptied); err != nil {
						t.Fatal(err)
					}
					tx := rig.Begin(t, pool, pgx.ReadCommitted)
					takeOK(t, first(l.RateLimit(t.Context(), tx, c.requests...)))
					if err := tx.Rollback(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
			}
		})
	}
}
