package integration

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

func TestKeysOfEveryShapeAreKeptApart(t *testing.T) {
	t.Parallel()
	names := []string{"name", "na", "näme", "'; DROP TABLE weir_balance; --",
		strings.Repeat("n", ratelimit.MaxNameBytes)}
	keys := []string{
		"k", "K", "k ", " k", "\t", "0", "a:b", "a/b", "a\x1fb", `a"b`, `a'b`, `a\b`, "$1", "%s",
		"NULL", "null", "🦆", "é", "e\u0301", "\u200b",
		"\x01", strings.Repeat("x", ratelimit.MaxKeyBytes),
		strings.Repeat("x", ratelimit.MaxKeyBytes-1) + "y", strings.Repeat("🦆", 256),
	}
	rig.EachWay(t, func(t *testing.T, v rig.Verbs, _ *pgxpool.Pool) {
		for _, name := range names {
			limit, err := ratelimit.Define(name, ratelimit.TokenBucket{Rate: 1, Period: rig.Never})
			if err != nil {
				t.Fatal(err)
			}
			requests := []ratelimit.Request{limit.Global()}
			for _, key := range keys {
				requests = append(requests, limit.For(key))
			}
			for _, want := range []bool{true, false} {
				for _, r := range requests {
					if res, err := v.RateLimit(t.Context(), r); err != nil || res.OK != want {
						t.Fatalf("name %.40q: %+v: got %+v and %v, want granted %v", name, r, res, err, want)
					}
				}
			}
		}
	})
}

func TestKeysThatPostgresCannotHoldAreRefusedBeforeItSeesThem(t *testing.T) {
	t.Parallel()
	limit := ratelimit.MustDefine("refuse", ratelimit.TokenBucket{Rate: 1, Period: rig.Never})
	rig.EachWay(t, func(t *testing.T, v rig.Verbs, pool *pgxpool.Pool) {
		for _, key := range []string{"", "a\x00b", "\xff", "a\xc3",
			strings.Repeat("x", ratelimit.MaxKeyBytes+1), strings.Repeat("x", 10_240)} {
			r := limit.For(key)
			_, limitErr := v.RateLimit(t.Context(), r)
			_, checkErr := v.CheckRateLimit(t.Context(), limit.For("good"), r)
			_, valueErr := v.Value(t.Context(), r)
			for _, err := range []error{limitErr, checkErr, valueErr, v.ResetRateLimit(t.Context(), r)} {
				if !errors.Is(err, ratelimit.ErrInvalid) ||
					!strings.Contains(err.Error(), `limit "refuse"`) || len(err.Error()) > 400 {
					t.Errorf("key %.20q: got %v, want an ErrInvalid that names the limit", key, err)
				}
			}
		}
		var rows int
		if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM weir_balance`).Scan(&rows); err != nil || rows != 0 {
			t.Errorf("%d rows were written (%v)", rows, err)
		}
	})
}

// A hot key must not grow the table: each take is a HOT update, which needs no new index entry and
// is pruned in its page. Not parallel: snapshots of other tests on this server would keep dead
// versions alive, which then fill the page. Those of the server's own processes do so, too, for a
// while: so it tries several times.
func TestTakesAreHOTUpdates(t *testing.T) {
	pgtest.OneServer(t, "it reads the statistics of one server")
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 1 })
	a := rig.Limiter(t, ratelimit.Config{}).Autocommit(pool)
	limit := ratelimit.MustDefine("hot", ratelimit.TokenBucket{Rate: 1e9, Period: rig.Never})
	const takes = 500
	rig.Take(t, a, limit.For("k"))
	var updated, hot, size int
	read := func(atLeast int) {
		t.Helper()
		until(t, func() bool { // statistics are sent now and then
			rig.Exec(t, pool, `SELECT pg_stat_clear_snapshot()`)
			err := pool.QueryRow(t.Context(), `SELECT n_tup_upd, n_tup_hot_upd, pg_relation_size(relid)
				FROM pg_stat_user_tables WHERE relid = 'weir_balance'::regclass`).Scan(&updated, &hot, &size)
			if err != nil {
				t.Fatal(err)
			}
			return updated >= atLeast
		})
	}
	read(0)
	for try := 1; ; try++ {
		wasUpdated, wasHot, wasSize := updated, hot, size
		for range takes {
			rig.Take(t, a, limit.For("k"))
		}
		read(wasUpdated + takes)
		n, hots, grown := updated-wasUpdated, hot-wasHot, size-wasSize
		if hots >= n*9/10 && grown <= 16*8192 {
			break
		}
		t.Logf("%d of %d updates were HOT, and the table of one row has grown by %d bytes", hots, n, grown)
		if try == 10 {
			t.Fatal("takes are not HOT updates")
		}
	}
}
