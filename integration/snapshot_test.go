package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// While somebody holds a snapshot (a dump, a report) no version of a row can go: each take of a hot
// one then walks over all that were written since. Shards divide them among them. Nothing is
// granted twice for it.
func TestAHeldSnapshotSlowsShardsLessThanOneRow(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it reads the statistics of one server")
	const callers, takes, shards = 8, 250, 16
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = callers + 2 })
	l := rig.Limiter(t, ratelimit.Config{})
	rule := ratelimit.TokenBucket{Rate: callers * takes, Period: rig.Century}
	one, many := ratelimit.MustDefine("one", rule), ratelimit.MustDefine("many", rule, ratelimit.Shards(shards))

	report, err := pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = report.Rollback(context.Background()) }()
	if _, err := report.Exec(t.Context(), `SELECT 1`); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*hung)
	defer cancel()
	for _, limit := range []ratelimit.Limit{one, many} {
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				for took := 0; took < takes; {
					err := l.InTxOptions(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted},
						func(ctx context.Context, tx pgx.Tx) error {
							return l.Consume(ctx, tx, limit.Global())
						})
					switch {
					case err == nil:
						took++
					case !errors.Is(err, ratelimit.ErrDenied):
						// while somebody else gathers the last tokens of the shards
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		if res, err := l.Autocommit(pool).RateLimit(t.Context(), limit.Global()); err != nil || res.OK {
			t.Errorf("%s: more was granted than there was: %+v, %v", limit.Name(), res, err)
		}
	}
	// pages that a read of the row, or of the worst of the shards, has to visit
	pages := func(name string) (most int) {
		t.Helper()
		for row := range 1 + shards*(shards+1)/2 {
			var plan []byte
			sql := fmt.Sprintf(`EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT value FROM weir_balance WHERE name = '%s' AND key = '' AND shard = %d`, name, row)
			if err := pool.QueryRow(t.Context(), sql).Scan(&plan); err != nil {
				t.Fatal(err)
			}
			var parsed []struct {
				Plan struct {
					Hit int `json:"Shared Hit Blocks"`
				}
			}
			if err := json.Unmarshal(plan, &parsed); err != nil {
				t.Fatal(err)
			}
			most = max(most, parsed[0].Plan.Hit)
		}
		return most
	}
	of1, ofMany := pages("one"), pages("many")
	t.Logf("a read of one row visits %d pages, of a shard %d", of1, ofMany)
	if ofMany*2 > of1 {
		t.Errorf("a read of one row visits %d pages, of a shard %d", of1, ofMany)
	}
}
