package integration

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// A connection takes from the shard that it took from last. If another process holds that one it
// goes to another, and does not wait for its own.
func TestAShardThatAnotherProcessHoldsIsLeftToIt(t *testing.T) {
	t.Parallel()
	shardsOfOthers(t, ratelimit.MustDefine("left", leftOfMany, ratelimit.Shards(4)).Global(), 0)
}

// In debt it does so in the same round trip.
func TestAReservationFromAShardThatIsHeldTakesOneTrip(t *testing.T) {
	t.Parallel()
	shardsOfOthers(t, ratelimit.MustDefine("owes", leftOfMany, ratelimit.Shards(4)).Global().OrReserve(), 1)
}

var leftOfMany = ratelimit.TokenBucket{Rate: 1e6, Period: rig.Never}

// shardsOfOthers has four connections take from four shards, each from one for its own; then once
// more while another process holds three of them. If trips is not 0, the limit is in debt, and each
// of these takes as many trips.
func shardsOfOthers(t *testing.T, r ratelimit.Request, trips int) {
	t.Helper()
	pgtest.OneServer(t, "it watches the locks of one server")
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["lock_timeout"] = "1s" })
	var seen watcher
	here, there := rig.Limiter(t, ratelimit.Config{Observer: &seen}), rig.Limiter(t, ratelimit.Config{})

	const most = 4
	var conns [most]*pgxpool.Conn
	for i := range conns {
		conn, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
		conns[i] = conn
	}
	take := func(l *ratelimit.Limiter, conn *pgxpool.Conn) pgx.Tx {
		t.Helper()
		tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
		if err != nil {
			t.Fatal(err)
		}
		if err := rig.Granted(l.RateLimit(t.Context(), tx, r)); err != nil {
			t.Fatal(err)
		}
		return tx
	}
	end := func(txs ...pgx.Tx) {
		t.Helper()
		for _, tx := range txs {
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}

	end(take(here, conns[0])) // makes the shards
	if trips > 0 {
		rig.Exec(t, pool, `UPDATE weir_balance SET value = -100 WHERE shard > 0 AND value > '-Infinity'`)
	}
	var all []pgx.Tx
	for _, conn := range conns { // each has one for its own
		all = append(all, take(here, conn))
	}
	end(all...)
	var held []pgx.Tx
	for range most - 1 {
		conn, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
		held = append(held, take(there, conn))
	}
	for _, conn := range conns {
		seen.decided = nil
		end(take(here, conn))
		if e := seen.last(t); trips > 0 && e.Trips != trips {
			t.Errorf("%d trips, want %d", e.Trips, trips)
		}
	}
	end(held...)
}
