package integration

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// A transaction that gave a limit its shards and rolled back has given it none, whatever the
// process has seen in it.
func TestShardsThatWereRolledBackAreNotThere(t *testing.T) {
	t.Parallel()
	limit := ratelimit.MustDefine("rolledBack", ratelimit.TokenBucket{Rate: 10, Period: rig.Never}, ratelimit.Shards(5))
	for _, w := range rig.Ways {
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t, func(*pgxpool.Config) {})
			l, other := rig.Limiter(t, ratelimit.Config{Portable: w.Portable}), rig.Limiter(t, ratelimit.Config{})
			tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if res, err := l.RateLimit(t.Context(), tx, limit.For("k")); err != nil || !res.OK {
				t.Fatal(res.OK, err)
			}
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			v := w.Verbs(t, l, pool)
			for range 4 {
				if res, err := v.RateLimit(t.Context(), limit.For("k")); err != nil || !res.OK {
					t.Fatal(res.OK, err)
				}
			}
			wantLeft(t, other.Autocommit(pool), limit.For("k"), 6)
		})
	}
}

// A process does not try such shards first: its next call needs no more round trips than that of a
// process that has seen none.
func TestShardsThatWereRolledBackAreNotTried(t *testing.T) {
	t.Parallel()
	limit := ratelimit.MustDefine("notTried", ratelimit.TokenBucket{Rate: 10, Period: rig.Never}, ratelimit.Shards(5))
	trips := func(seesThem bool) int {
		var seen watcher
		pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{Observer: &seen})
		if seesThem {
			tx := rig.Begin(t, pool, pgx.ReadCommitted)
			for range 2 { // the second call knows the shards that the first has made
				takeOK(t, first(l.RateLimit(t.Context(), tx, limit.For("k"))))
			}
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		seen.decided = nil
		takeOK(t, first(l.Autocommit(pool).RateLimit(t.Context(), limit.For("k"))))
		return seen.last(t).Trips
	}
	if after, without := trips(true), trips(false); after > without {
		t.Errorf("%d round trips after a rollback, %d without", after, without)
	}
}

// A caller that comes while another one makes the shards of a limit waits for that before it locks
// any row. So it never holds what the other transaction may still need.
func TestACallThatWaitsForNewShardsHoldsNothing(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it watches the locks of one server")
	rule := ratelimit.TokenBucket{Rate: 40, Period: rig.Never}
	row := ratelimit.MustDefine("a", rule).For("k")
	sharded := ratelimit.MustDefine("b", rule, ratelimit.Shards(4)).For("k")
	pool := pgtest.Pool(t)
	l := rig.Limiter(t, ratelimit.Config{})
	makes, waits := rig.Begin(t, pool, pgx.ReadCommitted), rig.Begin(t, pool, pgx.ReadCommitted)
	for range 2 { // the first one makes them
		takeOK(t, first(l.RateLimit(t.Context(), makes, sharded)))
	}
	done := waiting(t, pool, waits, func() (ratelimit.Result, error) {
		return l.RateLimit(t.Context(), waits, row, sharded)
	})
	takeOK(t, first(l.RateLimit(t.Context(), makes, row)))
	rig.Commit(t, makes)
	if a := <-done; a.err != nil || !a.res.OK {
		t.Errorf("%+v, %v, want it granted", a.res, a.err)
	}
	rig.Commit(t, waits)
}
