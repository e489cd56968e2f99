package integration

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// A count that no shard has alone is granted, although another transaction holds one of the shards,
// if the others have it.
func TestACountOfSeveralShardsIsGrantedBesideAHeldOne(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, noLocksOnCitus)
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.Serializable} {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t)
			limit := ratelimit.MustDefine("apart", ratelimit.TokenBucket{Rate: 40, Period: rig.Never}, ratelimit.Shards(4))
			for i := range 20 {
				l, other := rig.Limiter(t, ratelimit.Config{}), rig.Limiter(t, ratelimit.Config{})
				key := limit.For(fmt.Sprint("k", i))
				rig.Take(t, l.Autocommit(pool), key)
				rig.Take(t, l.Autocommit(pool), key.Count(0)) // which looks at all shards
				rig.Exec(t, pool, `UPDATE weir_balance SET value = 3, ts = clock_timestamp() WHERE shard > 0`)
				tx := rig.Begin(t, pool, pgx.ReadCommitted)
				rig.Take(t, other.In(tx), key)
				err := l.InTxOptions(t.Context(), pool, pgx.TxOptions{IsoLevel: level}, func(ctx context.Context, tx pgx.Tx) error {
					return rig.Granted(l.RateLimit(ctx, tx, key.Count(5)))
				})
				if err != nil {
					t.Errorf("5 of 9 that nobody holds: %v", err)
				}
				rollback(t, tx)
			}
		})
	}
}
