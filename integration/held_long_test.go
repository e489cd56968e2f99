package integration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// A row that always one of several transactions holds serves its coalesced calls as well.
func TestARowThatIsAlwaysHeldServesItsCallers(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, rig.Most(4))
	holders := rig.Beside(t, pool, rig.Most(4))
	l := rig.Limiter(t, ratelimit.Config{})
	c := rig.Coalesce(t, l, pool)
	limit := ratelimit.MustDefine("hot", ratelimit.FixedWindow{Rate: 1_000_000, Period: rig.Century})
	takeOK(t, first(c.RateLimit(t.Context(), limit.Global())))
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				tx := rig.Begin(t, holders, pgx.ReadCommitted)
				takeOK(t, first(l.RateLimit(t.Context(), tx, limit.Global())))
				time.Sleep(5 * time.Millisecond)
				rig.Commit(t, tx)
			}
		})
	}
	within, cancel := context.WithTimeout(t.Context(), hung)
	for range 5 {
		takeOK(t, first(c.RateLimit(within, limit.Global())))
	}
	cancel()
	stop()
	wg.Wait()
}

// Rows are held for short times, one after the other and many at once. At most one connection of
// the pool waits for a row.
func TestShortHoldsAreWaitedForByOneConnection(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it reads the statistics of one server")
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = "convoy" })
	holders := rig.Beside(t, pool, rig.Most(8), func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["application_name"] = "holders"
	})
	l := rig.Limiter(t, ratelimit.Config{})
	c := rig.Coalesce(t, l, pool)
	limit := ratelimit.MustDefine("convoy", ratelimit.FixedWindow{Rate: 1_000_000, Period: rig.Century})
	for i := range 8 { // who inserts a row waits for others that do
		takeOK(t, first(c.RateLimit(t.Context(), limit.For(fmt.Sprint("busy", i)))))
	}
	for i := range 150 { // then batches insert no rows any more
		takeOK(t, first(c.RateLimit(t.Context(), limit.For(fmt.Sprint("free", i%8)))))
	}
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range 8 {
		busy := limit.For(fmt.Sprint("busy", i))
		wg.Go(func() {
			for ctx.Err() == nil {
				tx := rig.Begin(t, holders, pgx.ReadCommitted)
				takeOK(t, first(l.RateLimit(t.Context(), tx, busy)))
				time.Sleep(20 * time.Millisecond)
				rig.Commit(t, tx)
			}
		})
		wg.Go(func() {
			for ctx.Err() == nil {
				takeOK(t, first(c.RateLimit(t.Context(), busy)))
			}
		})
	}
	// Of the connections that wait, one has Many.Wait, which waits for one row.
	waits := func() (forOne, batches []string) {
		t.Helper()
		if err := pool.QueryRow(t.Context(), `SELECT
				coalesce(array_agg(pid || ' since ' || query_start) FILTER (WHERE query LIKE 'SELECT 1::bigint %'), '{}'),
				coalesce(array_agg(pid || ' since ' || query_start) FILTER (WHERE query NOT LIKE 'SELECT 1::bigint %'), '{}')
			FROM pg_stat_activity WHERE application_name = 'convoy'
				AND wait_event_type = 'Lock' AND wait_event IN ('tuple', 'transactionid')`).Scan(&forOne, &batches); err != nil {
			t.Error(err)
		}
		return forOne, batches
	}
	// Statements of batches skip held rows. But see together.go: in rare cases Postgres waits all
	// the same. In 60 runs 11 such waits were seen, at most two in a run. Without SKIP LOCKED there
	// were 29 to 78 in each of eight.
	const mostByChance = 10
	seen, ones := map[string]bool{}, map[string]bool{}
	end := time.Now().Add(hung)
	for i := 0; i < 100 || len(ones) < 10; i++ {
		if time.Now().After(end) {
			t.Fatalf("of the waits for one row only %d were seen", len(ones))
		}
		takeOK(t, first(c.RateLimit(t.Context(), limit.For(fmt.Sprint("free", i%8)))))
		// One reading is not of one instant: one connection may end its wait, and another one
		// begin, while it is made. Two that wait at once are in the next one, too, with the same
		// statements.
		forOne, batches := waits()
		for _, w := range batches {
			seen[w] = true
		}
		for _, w := range forOne {
			ones[w] = true
		}
		if len(forOne) > 1 {
			again, _ := waits()
			if forOne = slices.DeleteFunc(forOne, func(w string) bool {
				return !slices.Contains(again, w)
			}); len(forOne) > 1 {
				t.Errorf("%d connections wait for one row each: %q", len(forOne), forOne)
			}
		}
	}
	t.Logf("%d waits for one row were seen, and %d of batches", len(ones), len(seen))
	if len(seen) > mostByChance {
		t.Errorf("%d batches waited for rows: %q", len(seen), slices.Collect(maps.Keys(seen)))
	}
	stop()
	wg.Wait()
}

// Close does not wait for ever for a row that another transaction holds.
func TestCloseGivesUpHeldRows(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	c := rig.Limiter(t, ratelimit.Config{}).Coalesce(pool)
	limit := ratelimit.MustDefine("closes", ratelimit.FixedWindow{Rate: 100, Period: rig.Century})
	shards := ratelimit.MustDefine("closesShards", ratelimit.FixedWindow{Rate: 100, Period: rig.Century}, ratelimit.Shards(2))
	takeOK(t, first(c.RateLimit(t.Context(), limit.Global())))
	defer hold(t, pool, "closes", "")()
	var wg sync.WaitGroup
	for i := range 10 {
		requests := []ratelimit.Request{limit.Global()}
		if i%5 == 0 {
			requests = append(requests, shards.For("k"))
		}
		p := park(t.Context())
		wg.Go(func() {
			if res, err := c.RateLimit(p, requests...); !errors.Is(err, ratelimit.ErrClosed) {
				t.Errorf("%+v, %v", res, err)
			}
		})
		p.wait(t)
	}
	c.Close()
	wg.Wait()
}
