package bench

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pair"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// BenchmarkAutocommit takes a token of one of 10,000 keys without a transaction, by eight callers,
// against an upsert of a row of a table of the same shape, sent alone through the same pool.
// x-upsert is the upsert's time by ours.
func BenchmarkAutocommit(b *testing.B) {
	const callers, keys = 8, 10_000
	pool := pgtest.Pool(b, quick, func(c *pgxpool.Config) { c.MaxConns = callers })
	takes := rig.Limiter(b, ratelimit.Config{}).Autocommit(pool)
	rig.Exec(b, pool, `CREATE TABLE bare (LIKE weir_balance INCLUDING ALL) WITH (fillfactor = 80)`)
	fill(b, pool, "sendMessage", keys, ample, "NULL")
	rig.Exec(b, pool, `INSERT INTO bare SELECT * FROM weir_balance`)
	rig.Exec(b, pool, `VACUUM ANALYZE weir_balance, bare`)
	sides := make([]pair.Sides, callers)
	for i := range sides {
		r := rand.New(rand.NewPCG(1, uint64(i)))
		sides[i] = pair.Sides{
			Metric: "x-upsert",
			Base: func(ctx context.Context) error {
				var left float64
				return pool.QueryRow(ctx, upsertSQL, "sendMessage", key(r.IntN(keys)), 0).Scan(&left)
			},
			Ours: func(ctx context.Context) error {
				return rig.Granted(takes.RateLimit(ctx, consumed.For(key(r.IntN(keys)))))
			},
		}
	}
	pair.Together(b, sides...)
}

const upsertSQL = `INSERT INTO bare AS b (name, key, shard, value, ts, capacity, rate, period)
VALUES ($1, $2, $3, 0, clock_timestamp(), 1, 1, 1)
ON CONFLICT (name, key, shard) DO UPDATE SET value = b.value - 1, ts = excluded.ts RETURNING value`
