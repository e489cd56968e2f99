package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// A grant from a shard holds one advisory lock, that of the shard, and none of the candidates that
// were not chosen; and it leaves no predicate lock.
func TestAGrantFromAShardHoldsOneAdvisoryLock(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it watches the locks of one server")
	limit := ratelimit.MustDefine("locks", ratelimit.TokenBucket{Rate: 1000, Period: rig.Never}, ratelimit.Shards(32))
	for _, level := range rig.Levels {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
			if _, err := l.Autocommit(pool).RateLimit(t.Context(), limit.For("k")); err != nil {
				t.Fatal(err)
			}
			other := rig.Begin(t, pool, level) // holds a shard, which is one of the candidates sooner or later
			if res, err := l.RateLimit(t.Context(), other, limit.For("k")); err != nil || !res.OK {
				t.Fatal(res.OK, err)
			}
			for range 20 {
				tx := rig.Begin(t, pool, level)
				if res, err := l.RateLimit(t.Context(), tx, limit.For("k")); err != nil || !res.OK {
					t.Fatal(res.OK, err)
				}
				var advisory int
				if err := tx.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'`).Scan(&advisory); err != nil || advisory != 1 {
					t.Errorf("%d advisory locks (%v)", advisory, err)
				}
				if n := predicateLocks(t, tx); n != 0 {
					t.Errorf("%d predicate locks", n)
				}
				rig.Commit(t, tx)
			}
		})
	}
}

// Transactions that are open at the same time have different shards, and do not wait for each
// other.
func TestOpenTransactionsHaveShardsOfTheirOwn(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it has no advisory locks to tell which shards are held, and a call may wait for one")
	limit := ratelimit.MustDefine("own", ratelimit.TokenBucket{Rate: 320, Period: rig.Never}, ratelimit.Shards(16))
	for _, level := range rig.Levels {
		t.Run(string(level), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 10 })
			l := rig.Limiter(t, ratelimit.Config{})
			if _, err := l.Autocommit(pool).RateLimit(t.Context(), limit.For("k")); err != nil {
				t.Fatal(err)
			}
			for range 8 { // one that waited would wait for ever
				if res, err := l.RateLimit(t.Context(), rig.Begin(t, pool, level),
					limit.For("k").Count(2)); err != nil || !res.OK {
					t.Fatal(res.OK, err)
				}
			}
		})
	}
}

// What a call is about to take, others of its process keep clear of before it is answered.
func TestCallsKeepOutOfTheWayOfThoseUnderWay(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it watches the locks of one server")
	limit := ratelimit.MustDefine("underWay", ratelimit.TokenBucket{Rate: 40, Period: rig.Never}, ratelimit.Shards(4))
	var seen watcher
	pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{Observer: &seen})
	a := l.Autocommit(pool)
	for try := range 20 {
		k := limit.For(fmt.Sprint(try))
		rig.Take(t, a, k)
		rig.Exec(t, pool, `UPDATE weir_balance SET value = CASE WHEN shard % 4 = 0 THEN 10 ELSE 1 END WHERE name = 'underWay' AND shard > 0`)
		if res, err := a.CheckRateLimit(t.Context(), k); err != nil || !res.OK {
			t.Fatal(res.OK, err)
		}
		other := rig.Begin(t, pool, pgx.ReadCommitted)
		if _, err := other.Exec(t.Context(),
			`SELECT FROM weir_balance WHERE name = 'underWay' AND key = $1 AND value = 10 FOR UPDATE`,
			fmt.Sprint(try)); err != nil {
			t.Fatal(err)
		}
		slow := rig.Begin(t, pool, pgx.ReadCommitted)
		// Others keep clear of a take for a second.
		ctx, cancel := context.WithTimeout(t.Context(), 900*time.Millisecond)
		answer := waiting(t, pool, slow, func() (ratelimit.Result, error) {
			return l.RateLimit(context.Background(), slow, k.Count(5)) // of the only shard that has as many
		})
		seen.decided = nil
		answered := 0
		for range 3 {
			res, err := a.RateLimit(ctx, k.Count(12).OrReserve())
			if ctx.Err() != nil {
				break
			}
			takeOK(t, outcome{res, err})
			if e := seen.last(t); e.Trips > 2 || len(res.Reservation().Takes) < 2 { // BEGIN, the parts, COMMIT
				t.Errorf("%d trips for %+v", e.Trips, res.Reservation().Takes)
			}
			answered++
		}
		cancel()
		rig.Commit(t, other)
		if got := <-answer; got.err != nil || !got.res.OK {
			t.Error(got.res.OK, got.err)
		}
		rig.Commit(t, slow)
		if answered == 3 {
			return
		}
	}
	t.Error("at no try were the others answered within a second: they waited, or the machine is very slow")
}

// A transaction that has done nothing but to take from a shard, and lost it to somebody else,
// begins anew by itself: what the caller does in it runs once.
func TestWhoLosesAShardAtFirstRunsOnce(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it watches the locks of one server")
	limit := ratelimit.MustDefine("lost", ratelimit.TokenBucket{Rate: 40, Period: rig.Century}, ratelimit.Shards(4))
	pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
	rig.Take(t, l.Autocommit(pool), limit.For("k"))
	other := rig.Begin(t, pool, pgx.ReadCommitted)
	if _, err := other.Exec(t.Context(),
		`UPDATE weir_balance SET value = 9 WHERE name = 'lost' AND shard > 0`); err != nil {
		t.Fatal(err)
	}
	runs := 0
	ended := make(chan answer, 1)
	go func() {
		var res ratelimit.Result
		err := l.InTx(context.Background(), pool, func(ctx context.Context, tx pgx.Tx) (err error) {
			runs++
			res, err = l.RateLimit(ctx, tx, limit.For("k"))
			return err
		})
		ended <- answer{res, err}
	}()
	until(t, func() bool { return rig.IsWaitedFor(t, pool, other) })
	rig.Commit(t, other)
	if got := <-ended; got.err != nil || !got.res.OK || runs != 1 {
		t.Errorf("%v, %v in %d runs", got.res.OK, got.err, runs)
	}
	if s, err := l.Autocommit(pool).Value(t.Context(), limit.For("k")); err != nil || math.Abs(s.Value-35) > 1e-6 {
		t.Errorf("%v are left, %v: want 35", s.Value, err)
	}
}

// What callers of a limit and key in another schema of the database hold denies nobody here:
// neither their shards nor the place of the one who gathers.
func TestCallersInAnotherSchemaDenyNobody(t *testing.T) {
	t.Parallel()
	limit := ratelimit.MustDefine("tenants", ratelimit.TokenBucket{Rate: 10, Period: rig.Never}, ratelimit.Shards(2))
	here, there := pgtest.Pool(t), pgtest.Pool(t)
	for _, pool := range []*pgxpool.Pool{here, there} {
		rig.Take(t, rig.Limiter(t, ratelimit.Config{}).Autocommit(pool), limit.For("k"))
	}
	tx := rig.Begin(t, there, pgx.ReadCommitted)
	// of both shards
	takeOK(t, first(rig.Limiter(t, ratelimit.Config{}).RateLimit(t.Context(), tx, limit.For("k").Count(8))))
	a := rig.Limiter(t, ratelimit.Config{}).Autocommit(here)
	takeOK(t, first(a.RateLimit(t.Context(), limit.For("k"))))
	takeOK(t, first(a.RateLimit(t.Context(), limit.For("k").Count(8))))
	rig.Commit(t, tx)
}

// A call of no more than a shard's share locks one shard, however many there are, also if it is a
// reservation that is owed.
func TestTheLocksOfACallDoNotGrowWithTheShards(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it watches the locks of one server")
	pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
	rule := ratelimit.TokenBucket{Rate: 2048, Period: rig.Never}
	for _, shards := range []int{16, 1024} {
		r := ratelimit.MustDefine(fmt.Sprint("locks", shards), rule, ratelimit.Shards(shards)).For("k")
		rig.Take(t, l.Autocommit(pool), r.Count(2048))
		share := 2048 / float64(shards)
		for _, count := range []float64{share / 2, share} {
			tx := rig.Begin(t, pool, pgx.ReadCommitted)
			res := takeOK(t, first(l.RateLimit(t.Context(), tx, r.Count(count).OrReserve())))
			var advisory, others int
			if err := tx.QueryRow(t.Context(),
				`SELECT count(*) FILTER (WHERE locktype = 'advisory'), count(*) FILTER (WHERE locktype <> 'advisory')
				FROM pg_locks WHERE pid = pg_backend_pid()`).Scan(&advisory, &others); err != nil {
				t.Fatal(err)
			}
			if rows := len(res.Reservation().Takes); rows != 1 || advisory > 1 || others > 20 {
				t.Errorf("%d shards, a reservation of %v: %d rows, %d advisory locks and %d others",
					shards, count, rows, advisory, others)
			}
			rig.Commit(t, tx)
		}
	}
}

// If more was used than reserved, few shards are charged, however many there are: the one of the
// reservation, if it has the tokens.
func TestTheLocksOfASettlementDoNotGrowWithTheShards(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "the rows are on several nodes")
	pool, l := pgtest.Pool(t), rig.Limiter(t, ratelimit.Config{})
	for _, c := range []struct {
		shards     int
		left, used float64 // of 64 tokens a shard; of a reservation of 1
		most       int
	}{
		{16, 63, 9, 1}, {256, 63, 9, 1},
		{16, 1, 9, 6}, {256, 1, 9, 6}, // nearly empty
		{16, 0, 9, 1}, {256, 0, 9, 1},
		{16, 63, 129, 3}, {256, 63, 129, 3}, // more than a shard ever has
	} {
		r := ratelimit.MustDefine(fmt.Sprint("settles", c), ratelimit.TokenBucket{
			Rate: 64 * float64(c.shards), Period: rig.Never}, ratelimit.Shards(c.shards)).For("k")
		res := takeOK(t, first(l.Autocommit(pool).RateLimit(t.Context(), r.Count(1))))
		rig.Exec(t, pool, fmt.Sprintf(`UPDATE weir_balance SET value = %v WHERE name = '%s' AND shard > 0`,
			c.left, r.Limit().Name()))
		var before, after float64
		var charged int
		const sum = `SELECT sum(value), count(*) FILTER (WHERE xmin = pg_current_xact_id()::xid)
			FROM weir_balance WHERE name = $1 AND shard > 0`
		tx := rig.Begin(t, pool, pgx.ReadCommitted)
		if err := tx.QueryRow(t.Context(), sum, r.Limit().Name()).Scan(&before, &charged); err != nil {
			t.Fatal(err)
		}
		if ok, err := l.Settle(t.Context(), tx, res.Reservation(), r.Count(c.used)); err != nil || !ok {
			t.Fatal(ok, err)
		}
		if err := tx.QueryRow(t.Context(), sum, r.Limit().Name()).Scan(&after, &charged); err != nil {
			t.Fatal(err)
		}
		if charged > c.most || math.Abs(before-after-(c.used-1)) > 1e-3 {
			t.Errorf("%+v: %d shards were charged %v", c, charged, before-after)
		}
		rig.Commit(t, tx)
	}
}

// In a table of few rows a sequential scan would take a predicate lock on all of it.
func TestShardsAreLookedAtByTheIndex(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it watches the locks of one server")
	pool := pgtest.Pool(t)
	limit := ratelimit.MustDefine("few", ratelimit.TokenBucket{Rate: 9, Period: rig.Never}, ratelimit.Shards(8))
	l := rig.Limiter(t, ratelimit.Config{})
	rig.Take(t, l.Autocommit(pool), limit.For("k"))
	rig.Exec(t, pool, `ANALYZE weir_balance`)
	tx := rig.Begin(t, pool, "serializable")
	for range 3 { // also the plan that a prepared statement is left with
		if _, err := l.Value(t.Context(), tx, limit.For("k")); err != nil {
			t.Fatal(err)
		}
	}
	rows, err := tx.Query(t.Context(),
		`SELECT locktype::text || coalesce(' ' || relation::regclass::text, '') FROM pg_locks
		WHERE pid = pg_backend_pid() AND mode = 'SIReadLock' AND locktype = 'relation'`)
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		var lock string
		if err := rows.Scan(&lock); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(lock, "weir_balance") {
			t.Errorf("a predicate lock on all of it: %s", lock)
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	var scans int64
	if err := tx.QueryRow(t.Context(), `SELECT pg_stat_get_xact_numscans('weir_balance_pkey'::regclass)`).
		Scan(&scans); err != nil ||
		scans < 3 {
		t.Errorf("the index was scanned %d times (%v)", scans, err)
	}
}

// A count between one capacity of a shard and two, or with more shards than tokens, is granted of a
// fresh limit; what there is is the sum.
func TestACountAboveAShardsCapacityIsGranted(t *testing.T) {
	t.Parallel()
	rig.EachWay(t, func(t *testing.T, v rig.Verbs, _ *pgxpool.Pool) {
		for _, c := range []struct {
			capacity, count float64
			shards          int
		}{{10, 1.5, 8}, {10, 7, 2}, {3, 1, 40}, {3, 2.5, 40}, {0.5, 0.5, 7}, {1, 1, 1000}} {
			limit := ratelimit.MustDefine(fmt.Sprint("above", c), ratelimit.TokenBucket{Rate: 1,
				Period: rig.Never, Capacity: ratelimit.Tokens(c.capacity)}, ratelimit.Shards(c.shards))
			left := c.capacity
			for ; left >= c.count; left -= c.count {
				if res, err := v.RateLimit(t.Context(), limit.For("k").Count(c.count)); err != nil || !res.OK {
					t.Fatalf("%+v with %v left: %v, %v", c, left, res.OK, err)
				}
			}
			if s, err := v.Value(t.Context(), limit.For("k")); err != nil || math.Abs(s.Value-left) > flown {
				t.Errorf("%+v: %v left (%v), want %v", c, s.Value, err, left)
			}
		}
	})
}

// A reservation of many shards survives its JSON, and what it took goes back.
func TestAReservationOfShardsGoesThroughJSON(t *testing.T) {
	t.Parallel()
	rig.EachWay(t, func(t *testing.T, v rig.Verbs, _ *pgxpool.Pool) {
		limit := ratelimit.MustDefine("json", ratelimit.TokenBucket{Rate: 10, Period: rig.Never}, ratelimit.Shards(7))
		for i, count := range []float64{0, 1, 3.5, 10, 13} {
			r := limit.For(fmt.Sprint(i)).Count(count)
			res, err := v.RateLimit(t.Context(), r.OrReserve())
			if err != nil || !res.OK {
				t.Fatal(res.OK, err)
			}
			text, err := json.Marshal(res.Reservation())
			if err != nil {
				t.Fatal(err)
			}
			var back ratelimit.Reservation
			if err := json.Unmarshal(text, &back); err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			if ok, err := v.Settle(t.Context(), back, r.Count(count/2)); err != nil || !ok {
				t.Fatalf("%s: %v, %v", text, ok, err)
			}
			if s, err := v.Value(t.Context(), r); err != nil || math.Abs(s.Value-(10-count/2)) > flown {
				t.Errorf("%v of %v used: %v left (%v)", count/2, count, s.Value, err)
			}
		}
	})
}
