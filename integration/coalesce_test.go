package integration

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// hold locks the row of a request, which must be there, until the function that it returns is
// called.
func hold(t *testing.T, pool *pgxpool.Pool, name, key string) (release func()) {
	t.Helper()
	tx := rig.Begin(t, pool, pgx.ReadCommitted)
	tag, err := tx.Exec(t.Context(), `SELECT 1 FROM weir_balance WHERE name = $1 AND key = $2 FOR UPDATE`, name, key)
	if err != nil || tag.RowsAffected() == 0 {
		t.Fatal(tag, err)
	}
	return sync.OnceFunc(func() { rig.Commit(t, tx) })
}

// A lone call takes one round trip, and so do all that come while one is under way.
func TestCallsThatComeTogetherAreDecidedTogether(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it counts trips, of which a cluster takes more")
	for range 20 {
		lone, n, took := tripsTogether(t)
		if lone == 1 && n == 2 {
			return
		}
		// The others do not wait for a trip of half a second, and use another connection.
		if t.Logf("%d and %d round trips in %v", lone, n, took); took < 500*time.Millisecond {
			break
		}
	}
	t.Error("want one round trip for a lone call, and two for a call and all that come meanwhile")
}

// tripsTogether is how many trips a lone call takes, and how many a call and those that come while
// it is under way, and how long all of that takes.
func tripsTogether(t *testing.T) (lone, n int64, took time.Duration) {
	var counter trips
	g := newGate()
	pool := pgtest.Pool(t, counter.through, g.through)
	c := rig.Coalesce(t, rig.Limiter(t, ratelimit.Config{}), pool)
	limit := ratelimit.MustDefine("together", ratelimit.FixedWindow{Rate: 1000, Period: rig.Century})
	began := time.Now()
	for range 3 { // the statement is prepared first
		takeOK(t, first(c.RateLimit(t.Context(), limit.For("k"))))
	}
	lone = counter.of(func() { takeOK(t, first(c.RateLimit(t.Context(), limit.For("k")))) })

	const callers = 200
	g.shut()
	defer g.open()
	var wg sync.WaitGroup
	call := func() {
		p := park(t.Context())
		wg.Go(func() { takeOK(t, first(c.RateLimit(p, limit.For("k")))) })
		p.wait(t)
	}
	n = counter.of(func() {
		call()
		g.next(t) // it is under way
		for range callers - 1 {
			call()
		}
		g.open()
		wg.Wait()
	})
	took = time.Since(began)
	wantLeft(t, c, limit.For("k"), 1000-4-callers)
	return lone, n, took
}

// A distributed engine has the rows of a key on one node, so only calls of one key are decided
// together there.
func TestCallsOfDifferentKeysAreDecidedApartInThePortableForm(t *testing.T) {
	t.Parallel()
	const keys, callers = 200, 10
	var seen watcher
	g := newGate()
	pool := pgtest.Pool(t, rig.Most(64), g.through) // one for each lane, so that none waits for another
	var open []*pgxpool.Conn
	for range 64 {
		conn, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, conn)
	}
	for _, conn := range open {
		conn.Release()
	}
	c := rig.Coalesce(t, rig.Limiter(t, ratelimit.Config{Portable: true, Observer: &seen}), pool)
	limit := ratelimit.MustDefine("apart", ratelimit.FixedWindow{Rate: callers - 1, Period: rig.Century})
	g.shut()
	defer g.open()
	var wg sync.WaitGroup
	var granted [keys]atomic.Int64
	for range callers {
		for k := range keys {
			p := park(t.Context())
			wg.Go(func() {
				res, err := c.RateLimit(p, limit.For(fmt.Sprint(k)))
				if err != nil {
					t.Error(err)
				}
				if res.OK {
					granted[k].Add(1)
				}
			})
			p.wait(t)
		}
	}
	g.open()
	wg.Wait()
	for k := range granted {
		if n := granted[k].Load(); n != callers-1 {
			t.Errorf("key %d: %d were granted", k, n)
		}
	}
	most := 0
	for _, e := range seen.decided {
		most = max(most, e.Together)
	}
	// Of so many keys, some have not begun: there are fewer lanes. On Citus the calls of keys in one
	// range may be decided together.
	if most < callers || most > callers && !pgtest.Citus() {
		t.Errorf("%d calls were decided together: want those of a key, %d", most, callers)
	}
}

// Of the calls for one key the earlier are granted, and each of the others is told when it would
// be.
func TestCoalescedCallsAreGrantedInTheOrderOfTheirArrival(t *testing.T) {
	t.Parallel()
	clock := rig.Clock()
	limit := ratelimit.MustDefine("order", ratelimit.TokenBucket{Rate: 10, Period: 10 * time.Second})
	for _, counts := range [][]float64{
		{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
		{3, 9, 3, 2.5, 2, 1, 0.5, 4},
	} {
		g := newGate()
		c := rig.Coalesce(t, rig.Limiter(t, ratelimit.Config{Clock: clock.Now}), pgtest.Pool(t, g.through))
		takeOK(t, first(c.RateLimit(t.Context(), limit.For("k").Count(0)))) // makes the row
		g.shut()
		defer g.open()
		results := make([]ratelimit.Result, len(counts))
		var wg sync.WaitGroup
		ahead := park(t.Context())
		wg.Go(func() { takeOK(t, first(c.RateLimit(ahead, limit.For("k").Count(0)))) })
		ahead.wait(t)
		g.next(t) // it is decided alone, and all others together
		for i, n := range counts {
			p := park(t.Context())
			wg.Go(func() {
				var err error
				if results[i], err = c.RateLimit(p, limit.For("k").Count(n)); err != nil {
					t.Error(err)
				}
			})
			p.wait(t)
		}
		g.open()
		wg.Wait()
		left := 10.0
		for i, n := range counts {
			want, err := ratelimit.Decide(limit.For("k").Count(n),
				ratelimit.State{Value: left, TS: clock.Now()}, clock.Now())
			if err != nil {
				t.Fatal(err)
			}
			got := results[i].Outcomes[0]
			if got.OK != want.OK || !got.RetryAt.Equal(want.RetryAt) ||
				!rig.Near(got.Value, want.State.Value) || results[i].OK != want.OK {
				t.Errorf("%v: call %d met %+v, want %+v", counts, i, got, want)
			}
			left = want.State.Value
		}
	}
}

// What only one of the callers has caused is not told to the others.
func TestAnErrorOfTheDatabaseIsToldToItsCallerOnly(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "Citus has no triggers on distributed tables")
	pool := pgtest.Pool(t)
	rig.Exec(t, pool, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not this one'; END $$`)
	rig.Exec(t, pool, `CREATE TRIGGER refuse BEFORE INSERT ON weir_balance FOR EACH ROW WHEN (NEW.key = 'bad') EXECUTE FUNCTION refuse()`)
	c := rig.Coalesce(t, rig.Limiter(t, ratelimit.Config{}), pool)
	limit := ratelimit.MustDefine("told", ratelimit.FixedWindow{Rate: 1000, Period: rig.Century})
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			key := fmt.Sprint(i)
			if i%10 == 0 {
				key = "bad"
			}
			res, err := c.RateLimit(t.Context(), limit.For(key))
			if key == "bad" && (err == nil || !strings.Contains(err.Error(), "not this one")) ||
				key != "bad" && (err != nil || !res.OK) {
				t.Errorf("%s: %+v, %v", key, res, err)
			}
		})
		wg.Go(func() {
			if _, err := c.RateLimit(t.Context(),
				limit.For(fmt.Sprint(i)).Count(-1)); !errors.Is(err, ratelimit.ErrInvalid) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// Calls of several limits are all or none, whoever else takes from them.
func TestCoalescedCallsOfSeveralLimitsAreAllOrNone(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	l := rig.Limiter(t, ratelimit.Config{})
	c := rig.Coalesce(t, l, pool)
	tenants := ratelimit.MustDefine("tenants", ratelimit.FixedWindow{Rate: 15, Period: rig.Century})
	global := ratelimit.MustDefine("global",
		ratelimit.FixedWindow{Rate: 100, Period: rig.Century, MaxReserved: ratelimit.Tokens(20)})
	var granted, ahead, alone atomic.Int64
	var wg sync.WaitGroup
	for i := range 24 {
		wg.Go(func() {
			for k := range 20 {
				tenant := tenants.For(fmt.Sprint((i + k) % 12))
				switch k % 5 {
				case 0:
					res, err := c.RateLimit(t.Context(), global.Global())
					if err != nil {
						t.Error(err)
					} else if res.OK {
						alone.Add(1)
					}
				case 1:
					res, err := c.RateLimit(t.Context(), tenant, global.Global().OrReserve())
					if err != nil {
						t.Error(err)
					} else if res.OK {
						ahead.Add(1)
					}
				default:
					res, err := c.RateLimit(t.Context(), tenant, global.Global())
					if err != nil {
						t.Error(err)
					} else if res.OK {
						granted.Add(1)
					}
				}
			}
		})
	}
	wg.Wait()
	left := 0.0
	for i := range 12 {
		s, err := c.Value(t.Context(), tenants.For(fmt.Sprint(i)))
		if err != nil {
			t.Fatal(err)
		}
		left += s.Value
	}
	wantLeft(t, c, global.Global(), 100-float64(granted.Load()+ahead.Load()+alone.Load()))
	if taken := 12*15 - left; !rig.Near(taken, float64(granted.Load()+ahead.Load())) {
		t.Errorf("%v of the tenants' tokens are gone, for %d calls", taken, granted.Load()+ahead.Load())
	}
	if n := granted.Load() + alone.Load(); n > 100 || n+ahead.Load() < 100 {
		t.Errorf("%d granted and %d ahead, of 100", n, ahead.Load())
	}
}

// Calls that come together for a key that nobody has used are granted no more than its capacity,
// also where first uses are common and rows are inserted along with the take.
func TestFirstUsesThatComeTogetherAreGrantedTheCapacity(t *testing.T) {
	t.Parallel()
	direct := pgtest.Pool(t)
	pool := rig.Through(t, direct, rig.Far(t, direct, 30*time.Millisecond)) // so that calls come while a batch is away
	c := rig.Coalesce(t, rig.Limiter(t, ratelimit.Config{}), pool)
	limit := ratelimit.MustDefine("firstUses", ratelimit.TokenBucket{Rate: 10, Period: rig.Never})
	for round := range 5 {
		var wg sync.WaitGroup
		for i := range 8 { // of keys that nobody has used, on each lane
			wg.Go(func() {
				if err := rig.Granted(c.RateLimit(t.Context(), limit.For(fmt.Sprint("before ", round, i)))); err != nil {
					t.Error(err)
				}
			})
		}
		time.Sleep(10 * time.Millisecond)
		var ok atomic.Int64
		for range 30 {
			wg.Go(func() {
				res, err := c.RateLimit(t.Context(), limit.For(fmt.Sprint("new ", round)))
				if err != nil {
					t.Error(err)
				}
				if res.OK {
					ok.Add(1)
				}
			})
		}
		wg.Wait()
		if ok.Load() != 10 {
			t.Errorf("round %d: %d calls were granted, of a capacity of 10", round, ok.Load())
		}
		wantLeft(t, c, limit.For(fmt.Sprint("new ", round)), 0)
	}
}
