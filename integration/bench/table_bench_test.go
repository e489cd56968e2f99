package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pair"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// BenchmarkSmallTable is eight callers who take, each of keys that no other takes of, in
// SERIALIZABLE transactions that work for 1 ms after that: of a table of 200 rows, against one of
// 10,000. The planner knows how small it is and would read it whole, which under SERIALIZABLE is a
// conflict with whoever writes any row of it. x-large is the throughput by the base's.
func BenchmarkSmallTable(b *testing.B) {
	const callers = 8
	c := newCrowd(b, callers)
	sideOf := func(keys int) counted {
		l := tableOf(b, func(pool *pgxpool.Pool) { fill(b, pool, "sendMessage", keys, ample, "NULL") })
		return c.takeAndSleep(l, pgx.Serializable, "0.001", func(worker int) string {
			return key(worker + callers*rand.IntN(keys/callers))
		})
	}
	base, ours := sideOf(10_000), sideOf(200)
	pair.Slices(b, pair.Crowd{Metric: "x-large", Base: base.do, Ours: ours.do, Workers: callers})
	b.ReportMetric(ours.abortsPerCommit(), "aborts/commit")
	b.ReportMetric(base.abortsPerCommit(), "base-aborts/commit")
}

// tableOf is a Limiter on an analysed table of its own, in a schema of its own.
func tableOf(b *testing.B, fill func(pool *pgxpool.Pool)) *ratelimit.Limiter {
	b.Helper()
	pool := pgtest.Pool(b)
	fill(pool)
	rig.Exec(b, pool, `VACUUM ANALYZE weir_balance`)
	return rig.Limiter(b, ratelimit.Config{Schema: schemaOf(pool)})
}

func schemaOf(pool *pgxpool.Pool) string {
	return pool.Config().ConnConfig.RuntimeParams["search_path"]
}

// BenchmarkTableSize takes by InTx of a table of 10,000 keys, with one of many keys for the base:
// so x-small is how many times as long it takes there. B/key is what the large table takes of the
// disk for each key, index-B/key what its index does of that. The environment variable
// WEIR_TEST_KEYS says how many keys are many.
func BenchmarkTableSize(b *testing.B) {
	const few = 10_000
	many := keysToTest(b)
	var all, index float64
	base := tableOf(b, func(pool *pgxpool.Pool) {
		fillScattered(b, pool, many)
		all, index = sizeOf(b, pool)
	})
	ours := tableOf(b, func(pool *pgxpool.Pool) { fillScattered(b, pool, few) })
	b.Logf("%d keys against %d, at %.1f bytes each", many, few, all/float64(many))

	conn := newCrowd(b, 1).conns[0]
	r := rand.New(rand.NewPCG(1, 1))
	take := func(l *ratelimit.Limiter, keys int) func(context.Context) error {
		return func(ctx context.Context) error {
			return l.InTx(ctx, conn, func(ctx context.Context, tx pgx.Tx) error {
				return rig.Granted(l.RateLimit(ctx, tx, sized.For(fmt.Sprintf(scattered, r.IntN(keys)))))
			})
		}
	}
	pair.Run(b, pair.Sides{Metric: "x-small", Base: take(base, many), Ours: take(ours, few)})
	b.ReportMetric(all/float64(many), "B/key")
	b.ReportMetric(index/float64(many), "index-B/key")
	b.ReportMetric(float64(many), "keys")
}

func keysToTest(b *testing.B) int {
	b.Helper()
	text := os.Getenv("WEIR_TEST_KEYS")
	if text == "" {
		return 1_000_000
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > 10_000_000 {
		b.Fatalf("WEIR_TEST_KEYS=%s: want a number of keys, at most 10000000", text)
	}
	return n
}

// sized has a name of eight bytes, and scattered makes keys of twelve.
var sized = ratelimit.MustDefine("messages", ratelimit.TokenBucket{Rate: 1e6, Period: time.Hour})

const scattered = "user-%07d"

// fillScattered writes a row for each key, in no order of the keys, as they come in production: it
// leaves an index with less in each page.
func fillScattered(b *testing.B, pool *pgxpool.Pool, n int) {
	b.Helper()
	const stride = 7_368_787 // a prime: each key once, unless it divides n
	rig.Exec(b, pool, fmt.Sprintf(`INSERT INTO weir_balance (name, key, value, ts, capacity, rate, period)
		SELECT 'messages', 'user-' || lpad((i * %d %% %d)::text, 7, '0'), %d, clock_timestamp(), 1, 1, 1e6
		FROM generate_series(0::bigint, %d) i`, stride, n, ample, n-1))
}

// sizeOf is what the table takes of the disk, in bytes, and what of that is its index.
func sizeOf(b *testing.B, pool *pgxpool.Pool) (all, index float64) {
	b.Helper()
	const sql = `SELECT pg_total_relation_size('weir_balance')::float8, pg_indexes_size('weir_balance')::float8`
	if err := pool.QueryRow(b.Context(), sql).Scan(&all, &index); err != nil {
		b.Fatal(err)
	}
	return all, index
}
