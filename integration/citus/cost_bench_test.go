package citus

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/pair"
	"github.com/weir-go/weir/internal/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

var ample = ratelimit.MustDefine("ample", ratelimit.TokenBucket{Rate: 1e9, Period: time.Hour})

const upsertSQL = `INSERT INTO bare AS b (name, key, shard, value, ts, capacity, rate, period)
VALUES ($1, $2, $3, 0, clock_timestamp(), 1, 1, 1)
ON CONFLICT (name, key, shard) DO UPDATE SET value = b.value - 1, ts = excluded.ts RETURNING value`

// BenchmarkCitus takes a token of one of 10,000 keys, by eight callers, against an upsert of a row of a
// table of the same shape on the same cluster, with the same commit protocol on both sides: InTx and
// Autocommit on one node, TwoPhase with a row of the coordinator. x-upsert is the upsert's time by ours.
func BenchmarkCitus(b *testing.B) {
	cluster(b)
	const callers, keys = 8, 10_000
	pool := pgtest.Pool(b, func(c *pgxpool.Config) {
		c.MaxConns = callers
		c.ConnConfig.RuntimeParams["synchronous_commit"] = "off"
	})
	l := limiter(b, ratelimit.Config{Citus: true})
	exec(b, pool, `CREATE TABLE bare (LIKE weir_balance INCLUDING ALL)`,
		`SELECT create_distributed_table('bare', 'key', colocate_with => 'weir_balance')`,
		`CREATE TABLE work (id bigint GENERATED ALWAYS AS IDENTITY, key text NOT NULL)`)
	for i := range keys {
		if err := l.Autocommit(pool).Consume(b.Context(), ample.For(fmt.Sprint("k", i))); err != nil {
			b.Fatal(err)
		}
	}
	exec(b, pool, `INSERT INTO bare SELECT * FROM weir_balance`)
	upsert := func(ctx context.Context, tx pgx.Tx, key string) error {
		var left float64
		return tx.QueryRow(ctx, upsertSQL, "ample", key, 0).Scan(&left)
	}
	work := func(ctx context.Context, tx pgx.Tx, key string) error {
		_, err := tx.Exec(ctx, `INSERT INTO work (key) VALUES ($1)`, key)
		return err
	}
	for _, way := range []struct {
		name       string
		base, ours func(ctx context.Context, key string) error
	}{
		{"InTx", func(ctx context.Context, key string) error {
			return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error { return upsert(ctx, tx, key) })
		}, func(ctx context.Context, key string) error {
			return l.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error { return l.Consume(ctx, tx, ample.For(key)) })
		}},
		{"TwoPhase", func(ctx context.Context, key string) error {
			return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
				if err := upsert(ctx, tx, key); err != nil {
					return err
				}
				if err := work(ctx, tx, key); err != nil {
					return err
				}
				_, err := tx.Exec(ctx, `DELETE FROM weir_two_phase`)
				return err
			})
		}, func(ctx context.Context, key string) error {
			return l.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
				if err := l.Consume(ctx, tx, ample.For(key)); err != nil {
					return err
				}
				return work(ctx, tx, key)
			})
		}},
		{"Autocommit", func(ctx context.Context, key string) error {
			var left float64
			return pool.QueryRow(ctx, upsertSQL, "ample", key, 0).Scan(&left)
		}, func(ctx context.Context, key string) error {
			return l.Autocommit(pool).Consume(ctx, ample.For(key))
		}},
	} {
		b.Run(way.name, func(b *testing.B) {
			sides := make([]pair.Sides, callers)
			for i := range sides {
				r := rand.New(rand.NewPCG(1, uint64(i)))
				key := func() string { return fmt.Sprint("k", r.IntN(keys)) }
				sides[i] = pair.Sides{
					Metric: "x-upsert",
					Base:   func(ctx context.Context) error { return way.base(ctx, key()) },
					Ours:   func(ctx context.Context) error { return way.ours(ctx, key()) },
				}
			}
			pair.Together(b, sides...)
		})
	}
}
