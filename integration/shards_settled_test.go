package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/weirtest"
)

// Work ends by settling what it has reserved, in a transaction that may do more after that. Nobody
// waits for it as long as other shards can serve: not those who take tokens that are there, nor
// those who reserve others.
func TestNobodyWaitsForAShardInWhichWorkIsSettled(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it has no advisory locks to tell which shards are held, and a call may wait for one")
	limits := []ratelimit.Limit{
		ratelimit.MustDefine("bucket", ratelimit.TokenBucket{Rate: 400, Period: rig.Century}, ratelimit.Shards(4)),
		ratelimit.MustDefine("window", ratelimit.FixedWindow{Rate: 400, Period: rig.Century}, ratelimit.Shards(4)),
	}
	for _, w := range rig.Ways {
		if w.Portable {
			continue // it has no advisory locks
		}
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t, func(c *pgxpool.Config) {
				c.ConnConfig.RuntimeParams["lock_timeout"] = "5s"
			})
			here, there := rig.Limiter(t, ratelimit.Config{}), rig.Limiter(t, ratelimit.Config{})
			for _, limit := range limits {
				for _, used := range []float64{2, 8} { // less than was reserved, and more
					r := limit.For(fmt.Sprint("k", used)).Count(5)
					reserved := takeOK(t, first(here.Autocommit(pool).RateLimit(t.Context(), r))).Reservation()
					open := rig.Begin(t, pool, pgx.ReadCommitted)
					if settled, err := there.Settle(t.Context(), open, reserved, r.Count(used)); err != nil || !settled {
						t.Fatal(settled, err)
					}
					for _, l := range []*ratelimit.Limiter{here, there, rig.Limiter(t, ratelimit.Config{})} {
						v := w.Verbs(t, l, pool)
						for range 30 { // more than the others have at once: they are reserved
							takeOK(t, first(v.RateLimit(t.Context(), r.OrReserve())))
						}
					}
					rig.Commit(t, open)
				}
			}
		})
	}
}

// A call that gathers tokens does without a shard in which work is settled, even if that has the
// most, where the others have enough.
func TestTokensAreGatheredFromShardsThatNobodyHolds(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it has no advisory locks to tell which shards are held, and a call may wait for one")
	limit := ratelimit.MustDefine("gathered", ratelimit.TokenBucket{Rate: 40, Period: rig.Century}, ratelimit.Shards(4))
	for _, w := range rig.Ways {
		if w.Portable || w.Name == "DatabaseSQL" || w.Name == "InSQLTx" {
			continue // it has no advisory locks, or cannot begin again to take from an earlier shard
		}
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t, func(c *pgxpool.Config) {
				c.ConnConfig.RuntimeParams["lock_timeout"] = "5s"
			})
			l := rig.Limiter(t, ratelimit.Config{})
			reserved := takeOK(t, first(l.Autocommit(pool).RateLimit(t.Context(), limit.For("k")))).Reservation()
			rig.Exec(t, pool, `UPDATE weir_balance SET value = 8 WHERE name = 'gathered' AND shard > 0 AND value > 9.5`)
			open := rig.Begin(t, pool, pgx.ReadCommitted)
			if settled, err := l.Settle(t.Context(), open, reserved, limit.For("k").Count(0)); err != nil || !settled {
				t.Fatal(settled, err)
			}
			v := w.Verbs(t, rig.Limiter(t, ratelimit.Config{}), pool)
			takeOK(t, first(v.RateLimit(t.Context(), limit.For("k").Count(20)))) // the others have 24
			rig.Commit(t, open)
			wantLeft(t, v, limit.For("k"), 40-6-20)
		})
	}
}

// Work that was reserved two windows ahead has the tokens of its second window yet to come when that
// begins. They come back, whatever has become of its shards meanwhile: a line of a new shard may be
// made of several, which repays faster and moves more often.
func TestTokensThatMergedShardsAreYetToRepayComeBack(t *testing.T) {
	t.Parallel()
	eachWayTwice(t, func(
		t *testing.T, here, there rig.Verbs, clock *weirtest.Clock, pool *pgxpool.Pool,
	) {
		for _, release := range []bool{false, true} {
			for _, shards := range [][2]int{{2, 1}, {2, 3}, {4, 2}, {4, 3}, {4, 8}} {
				name := fmt.Sprint("repaid", release, shards)
				r := ratelimit.MustDefine(name, ratelimit.FixedWindow{Rate: 24, Period: time.Minute,
					Start: clock.Now()}, ratelimit.Shards(shards[0])).For("k")
				takeOK(t, first(here.RateLimit(t.Context(), r.Count(24).OrReserve())))
				res := takeOK(t, first(here.RateLimit(t.Context(), r.Count(48).OrReserve())))
				if wait := res.RunAt.Sub(clock.Now()); wait != 2*time.Minute {
					t.Fatalf("%s: it runs in %v", name, wait)
				}
				reshard(t, pool, clock.Now, shards[1], r)
				clock.Add(2 * time.Minute)
				wantLeft(t, there, r, 0)
				var ok bool
				var err error
				if release {
					ok, err = there.Release(t.Context(), res.Reservation())
				} else {
					ok, err = there.Settle(t.Context(), res.Reservation(), r.Count(0))
				}
				if err != nil || !ok {
					t.Fatal(ok, err)
				}
				wantLeft(t, here, r, 24)
			}
		}
	})
}
