package citus

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pair"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

var ample = ratelimit.MustDefine("ample", ratelimit.TokenBucket{Rate: 1e9, Period: time.Hour})

const upsertSQL = `INSERT INTO bare AS b (name, key, shard, value, ts, capacity, rate, period)
VALUES ($1, $2, $3, 0, clock_timestamp(), 1, 1, 1)
ON CONFLICT (name, key, shard) DO UPDATE SET value = b.value - 1, ts = excluded.ts RETURNING value`

// BenchmarkCitus takes a token of one of 10,000 keys, by eight callers, against an upsert of a row
// of a table of the same shape on the same cluster, with the same commit protocol on both sides:
// InTx and Autocommit on one node, TwoPhase with a row of the coordinator. x-upsert is the upsert's
// time divided by ours. Marker shows what two-phase commit costs: both sides are the upsert with a
// row of the coordinator, and only ours has the marker, a statement more, that makes Citus commit in
// two phases. x-unmarked is the time without it divided by the time with it. Coalesced compares the
// throughput of 256 callers with that of eight that upsert; autocommit-x-upsert is that of eight
// that use Autocommit. The CPU that a call takes of the servers is beside it, from a run of each
// side alone: base-coordinator-us is that of the upsert on the coordinator, workers-us that of ours
// on all workers.
func BenchmarkCitus(b *testing.B) {
	cluster(b)
	const callers, keys = 8, 10_000
	pool := pgtest.Pool(b, func(c *pgxpool.Config) {
		c.MaxConns = callers
		c.ConnConfig.RuntimeParams["synchronous_commit"] = "off"
		c.ConnConfig.RuntimeParams["citus.shard_count"] = "32" // the default of Citus
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
	both := func(ctx context.Context, tx pgx.Tx, key string) error {
		if err := upsert(ctx, tx, key); err != nil {
			return err
		}
		return work(ctx, tx, key)
	}
	marked := func(ctx context.Context, key string) error {
		return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
			if err := both(ctx, tx, key); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, `DELETE FROM weir_two_phase`)
			return err
		})
	}
	pids := servers(b, pool)
	var bare func(context.Context, string) error // of the last way
	for _, way := range []struct {
		name, metric string
		base, ours   func(ctx context.Context, key string) error
	}{
		{"InTx", "x-upsert", func(ctx context.Context, key string) error {
			return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
				return upsert(ctx, tx, key)
			})
		}, func(ctx context.Context, key string) error {
			return l.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
				return l.Consume(ctx, tx, ample.For(key))
			})
		}},
		{"TwoPhase", "x-upsert", marked, func(ctx context.Context, key string) error {
			return l.InTx(ctx, pool, func(ctx context.Context, tx pgx.Tx) error {
				if err := l.Consume(ctx, tx, ample.For(key)); err != nil {
					return err
				}
				return work(ctx, tx, key)
			})
		}},
		{"Marker", "x-unmarked", func(ctx context.Context, key string) error {
			return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
				return both(ctx, tx, key)
			})
		}, marked},
		{"Autocommit", "x-upsert", func(ctx context.Context, key string) error {
			var left float64
			return pool.QueryRow(ctx, upsertSQL, "ample", key, 0).Scan(&left)
		}, func(ctx context.Context, key string) error {
			return l.Autocommit(pool).Consume(ctx, ample.For(key))
		}},
	} {
		bare = way.base
		b.Run(way.name, func(b *testing.B) {
			sides := make([]pair.Sides, callers)
			for i := range sides {
				r := rand.New(rand.NewPCG(1, uint64(i)))
				key := func() string { return fmt.Sprint("k", r.IntN(keys)) }
				sides[i] = pair.Sides{
					Metric: way.metric,
					Base:   func(ctx context.Context) error { return way.base(ctx, key()) },
					Ours:   func(ctx context.Context) error { return way.ours(ctx, key()) },
				}
			}
			pair.Together(b, sides...)
			const calls = 4000
			crowd := func(do func(context.Context, string) error) func() error {
				return func() error { return together(b.Context(), callers, calls, keys, do) }
			}
			report(b, pids, "base-", calls, crowd(way.base))
			report(b, pids, "", calls, crowd(way.ours))
		})
	}
	many := l.Coalesce(pool)
	defer many.Close()
	for _, some := range []int{keys, 100} {
		b.Run(fmt.Sprintf("Coalesced/keys=%d", some), func(b *testing.B) {
			const crowd, calls = 256, 4096
			sides := [3]func() error{
				func() error { return together(b.Context(), callers, calls, some, bare) },
				func() error { return together(b.Context(), crowd, calls, some, consumer(many)) },
				func() error { return together(b.Context(), callers, calls, some, consumer(l.Autocommit(pool))) },
			}
			var took [3][]time.Duration
			for b.Loop() {
				for turn := range 9 {
					began := time.Now()
					if err := sides[turn%3](); err != nil {
						b.Fatal(err)
					}
					took[turn%3] = append(took[turn%3], time.Since(began))
				}
			}
			for _, t := range took {
				slices.Sort(t)
			}
			x := func(side int) float64 {
				return float64(took[0][len(took[0])/2]) / float64(took[side][len(took[side])/2])
			}
			b.ReportMetric(x(1), "x-upsert")
			b.ReportMetric(x(2), "autocommit-x-upsert")
			report(b, pids, "", calls, sides[1])
		})
	}
}

// consumer takes a token of a key.
func consumer(by interface {
	Consume(ctx context.Context, requests ...ratelimit.Request) error
}) func(context.Context, string) error {
	return func(ctx context.Context, key string) error { return by.Consume(ctx, ample.For(key)) }
}

// together has callers make calls in all, each for one of some keys.
func together(ctx context.Context, callers, calls, keys int, do func(context.Context, string) error) error {
	errs := make(chan error, callers)
	for range callers {
		go func() {
			for range calls / callers {
				if err := do(ctx, fmt.Sprint("k", rand.IntN(keys))); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	var err error
	for range callers {
		err = errors.Join(err, <-errs)
	}
	return err
}
