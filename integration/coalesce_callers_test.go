package integration

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/delay"
	"github.com/weir-go/weir/internal/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

// A call whose context ends keeps nothing, whether it is decided or not.
func TestACoalescedCallWhoseContextEndsKeepsNothing(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	c := limiter(t, ratelimit.Config{}).Coalesce(pool)
	limit := ratelimit.MustDefine("ends", ratelimit.FixedWindow{Rate: 100, Period: century})
	takeOK(t, first(c.RateLimit(t.Context(), limit.For("k"))))
	release := hold(t, pool, "ends", "k")
	var wg sync.WaitGroup
	var stay atomic.Int64
	for i := range 40 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i+1)*time.Millisecond)
			defer cancel()
			if i%4 == 0 {
				ctx = t.Context()
			}
			res, err := c.RateLimit(ctx, limit.For("k"))
			switch {
			case err == nil && res.OK:
				stay.Add(1)
			case !errors.Is(err, context.DeadlineExceeded):
				t.Errorf("%+v, %v", res, err)
			}
		})
		time.Sleep(time.Millisecond)
	}
	time.Sleep(20 * time.Millisecond)
	release()
	wg.Wait()
	if n := stay.Load(); n < 10 {
		t.Errorf("%d calls were granted, of at least 10 that had no deadline", n)
	}
	closeGivenBack(t, c, limiter(t, ratelimit.Config{}).Autocommit(pool), limit.For("k"), 99-float64(stay.Load()))
}

// closeGivenBack closes c once the tokens of callers that have left are given back, for which Close
// itself waits for only five seconds, and checks what is left.
func closeGivenBack(t *testing.T, c *ratelimit.Coalesced, v verbs, r ratelimit.Request, want float64) {
	t.Helper()
	until(t, func() bool { return math.Abs(left(t, v, r)-want) <= flown })
	c.Close()
	wantLeft(t, v, r, want)
}

// Close waits for the calls that are under way; those that come later are refused, and none is
// lost.
func TestCloseDecidesWhatWasAsked(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	c := limiter(t, ratelimit.Config{}).Coalesce(pool)
	limit := ratelimit.MustDefine("close", ratelimit.FixedWindow{Rate: 1e9, Period: century})
	takeOK(t, first(c.RateLimit(t.Context(), limit.Global())))
	var granted atomic.Int64
	var wg sync.WaitGroup
	for range 30 {
		wg.Go(func() {
			for {
				res, err := c.RateLimit(t.Context(), limit.Global())
				if errors.Is(err, ratelimit.ErrClosed) {
					return
				}
				if err != nil || !res.OK {
					t.Errorf("%+v, %v", res, err)
					return
				}
				granted.Add(1)
			}
		})
	}
	time.Sleep(30 * time.Millisecond)
	c.Close()
	c.Close()
	wg.Wait()
	if n := pool.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections are held", n)
	}
	wantLeft(t, limiter(t, ratelimit.Config{}).Autocommit(pool), limit.Global(), 1e9-1-float64(granted.Load()))
}

// An outage is an error to those who ask in it, and nothing after it.
func TestCoalescedCallsAfterAnOutage(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it reads the statistics of one server")
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = "outage" })
	c := coalesce(t, limiter(t, ratelimit.Config{}), pool)
	limit := ratelimit.MustDefine("outage", ratelimit.FixedWindow{Rate: 1e9, Period: century})
	takeOK(t, first(c.RateLimit(t.Context(), limit.Global())))
	admin, err := pgxpool.New(t.Context(), pgtest.URL(t, pool))
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	stop := make(chan struct{})
	var failed, granted, unknown atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				res, err := c.RateLimit(t.Context(), limit.Global())
				switch {
				case errors.Is(err, ratelimit.ErrOutcomeUnknown):
					unknown.Add(1)
				case err != nil:
					failed.Add(1)
				case res.OK:
					granted.Add(1)
				}
			}
		})
	}
	for range 10 {
		time.Sleep(10 * time.Millisecond)
		execSQL(t, admin, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'outage'`)
	}
	close(stop)
	wg.Wait()
	until(t, func() bool { // connections that have ended are found out one by one
		res, err := c.RateLimit(t.Context(), limit.Global())
		if errors.Is(err, ratelimit.ErrOutcomeUnknown) {
			unknown.Add(1)
		}
		return err == nil && res.OK
	})
	s, err := c.Value(t.Context(), limit.Global())
	if err != nil {
		t.Fatal(err)
	}
	gone := 1e9 - 2 - s.Value
	if gone < float64(granted.Load()) || gone > float64(granted.Load()+unknown.Load()) {
		t.Errorf("%v tokens are gone; %d granted, %d unknown, %d failed", gone, granted.Load(),
			unknown.Load(), failed.Load())
	}
}

// Who leaves while others wait for the same transaction gets back what it takes.
func TestWhoLeavesADecisionUnderWayKeepsNothing(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it watches the locks of one server")
	g := newGate()
	pool := pgtest.Pool(t, g.through)
	beside, err := pgxpool.New(t.Context(), pgtest.URL(t, pool))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(beside.Close)
	c := limiter(t, ratelimit.Config{}).Coalesce(pool)
	limit := ratelimit.MustDefine("leaves", ratelimit.FixedWindow{Rate: 100, Period: century})
	takeOK(t, first(c.RateLimit(t.Context(), limit.For("k"))))

	g.shut()
	defer g.open()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	var stay, left sync.WaitGroup
	stays := func() {
		p := park(t.Context())
		stay.Go(func() { takeOK(t, first(c.RateLimit(p, limit.For("k")))) })
		p.wait(t)
	}
	stays() // the first is decided alone; all that come meanwhile are decided together
	g.next(t)
	for range 10 {
		stays()
		p := park(ctx)
		left.Go(func() {
			if res, err := c.RateLimit(p, limit.For("k")); !errors.Is(err, context.Canceled) {
				t.Errorf("%+v, %v", res, err)
			}
		})
		p.wait(t)
	}
	g.let()
	g.next(t) // the first is decided, and the others are under way
	release := hold(t, beside, "leaves", "k")
	g.open()
	waitsForALock(t, beside)
	leave()
	left.Wait()
	release()
	stay.Wait()
	c.Close()
	wantLeft(t, limiter(t, ratelimit.Config{}).Autocommit(beside), limit.For("k"), 99-11)
}

// What cannot be given back at first is given back later, together, and once: also if the limit has
// been divided into shards by then, and waiting work has moved up by it.
func TestTokensOfLeaversAreGivenBackLater(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "Citus has no triggers on distributed tables")
	for name, change := range map[string][]ratelimit.Option{"Row": nil, "Resharded": {ratelimit.Shards(4)}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const leavers = 200
			var counter trips
			g := newGate()
			pool := pgtest.Pool(t, counter.through, g.through)
			direct, err := pgxpool.New(t.Context(), pgtest.URL(t, pool))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(direct.Close)
			execSQL(t, direct, `CREATE SEQUENCE refused`)
			execSQL(t, direct, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
				BEGIN PERFORM nextval('refused'); RAISE EXCEPTION 'not now'; END $$`)
			execSQL(t, direct, `CREATE TRIGGER refuse BEFORE UPDATE ON weir_balance FOR EACH ROW
				WHEN (NEW.shard = 0 AND NEW.value > OLD.value) EXECUTE FUNCTION refuse()`)
			c := limiter(t, ratelimit.Config{}).Coalesce(pool)
			rule := ratelimit.FixedWindow{Rate: 1000, Period: century}
			limit := ratelimit.MustDefine("later", rule)
			takeOK(t, first(c.RateLimit(t.Context(), limit.For("k"))))

			g.shut()
			defer g.open()
			ctx := &slowlyEnded{Context: t.Context(), ends: make(chan struct{}), goesOn: make(chan struct{})}
			var left sync.WaitGroup
			for i := range leavers {
				p := park(ctx)
				left.Go(func() {
					if res, err := c.RateLimit(p, limit.For("k")); !errors.Is(err, context.Canceled) {
						t.Errorf("%+v, %v", res, err)
					}
				})
				if p.wait(t); i == 0 {
					g.next(t)
				}
			}
			close(ctx.ends)
			until(t, func() bool { return ctx.asked.Load() == leavers })
			g.open()
			until(t, func() bool { return sumOf(t, direct, limit, "k") == 999-leavers })
			n := counter.of(func() {
				close(ctx.goesOn) // they have been granted, and see that their context has ended
				left.Wait()
				until(t, func() (refused bool) {
					if err := direct.QueryRow(t.Context(), `SELECT is_called FROM refused`).Scan(&refused); err != nil {
						t.Fatal(err)
					}
					return refused
				})
				if change != nil {
					sharded := ratelimit.MustDefine("later", rule, change...)
					takeOK(t, first(limiter(t, ratelimit.Config{}).Autocommit(direct).RateLimit(t.Context(), sharded.For("k").Count(0))))
				}
				execSQL(t, direct, `DROP TRIGGER refuse ON weir_balance`)
				c.Close() // which waits for what is given back
			})
			if n > leavers/2 {
				t.Errorf("%d round trips", n)
			}
			wantLeft(t, limiter(t, ratelimit.Config{}).Autocommit(direct), limit.For("k"), 999)
			var moved float64
			if err := direct.QueryRow(t.Context(), `SELECT coalesce(moved, 0) FROM weir_balance
				WHERE name = 'later' AND key = 'k' AND shard = 0`).Scan(&moved); err != nil {
				t.Fatal(err)
			}
			t.Logf("%d trips, moved %v", n, moved)
			if change != nil && moved > leavers {
				t.Errorf("work that waits in the closed row has moved up by %v, for %d tokens", moved, leavers)
			}
		})
	}
}

// slowlyEnded is a context that ends with ends, and holds up who asks why until goesOn.
type slowlyEnded struct {
	context.Context
	ends, goesOn chan struct{}
	asked        atomic.Int64 // how many wait for goesOn
}

func (c *slowlyEnded) Done() <-chan struct{} { return c.ends }

func (c *slowlyEnded) Err() error {
	select {
	case <-c.ends:
		c.asked.Add(1)
		<-c.goesOn
		return context.Canceled
	default:
		return nil
	}
}

// However many goroutines call, two connections are enough, and nobody is refused.
func TestManyGoroutinesShareTwoConnections(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "a pool of two is soon waited for there")
	for range 20 {
		n, took := connectionsOfMany(t)
		if n <= 2 {
			return
		}
		// Beside a trip of half a second there may be more.
		if t.Logf("%d connections, in %v", n, took); took < 500*time.Millisecond {
			break
		}
	}
	t.Error("want two connections at the most")
}

// connectionsOfMany is how many connections many calls use that come at once, and how long they take.
func connectionsOfMany(t *testing.T) (int32, time.Duration) {
	pool, err := pgxpool.New(t.Context(), pgtest.URL(t, pgtest.Pool(t)))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	c := limiter(t, ratelimit.Config{}).Coalesce(pool)
	defer c.Close()
	limit := ratelimit.MustDefine("many", ratelimit.FixedWindow{Rate: 10, Period: century})
	var granted atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for i := range 5000 {
		wg.Go(func() {
			res, err := c.RateLimit(t.Context(), limit.For(fmt.Sprint(i%100)))
			if err != nil {
				t.Error(err)
			}
			if res.OK {
				granted.Add(1)
			}
		})
	}
	wg.Wait()
	took := time.Since(began)
	if n := granted.Load(); n != 1000 {
		t.Errorf("%d granted of 1000", n)
	}
	return pool.Stat().TotalConns(), took
}

// Nor does a row that another transaction has made and not yet committed.
func TestARowThatIsBeingMadeHoldsUpOnlyThoseWhoWantIt(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 12 })
	l := limiter(t, ratelimit.Config{Timeout: -1})
	c := coalesce(t, l, pool)
	limit := ratelimit.MustDefine("made", ratelimit.FixedWindow{Rate: 1000, Period: century})
	tx := begin(t, pool, pgx.ReadCommitted)
	takeOK(t, first(l.RateLimit(t.Context(), tx, limit.For("new"))))
	release := sync.OnceFunc(func() { commit(t, tx) })
	defer release()
	var waiting sync.WaitGroup
	var free atomic.Bool
	for range 20 {
		waiting.Go(func() {
			takeOK(t, first(c.RateLimit(t.Context(), limit.For("new"))))
			if !free.Load() {
				t.Error("granted while another transaction makes the row")
			}
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), hung)
	defer cancel()
	var wg sync.WaitGroup
	for i := range 200 { // of rows that there are not, either
		wg.Go(func() { takeOK(t, first(c.RateLimit(ctx, limit.For(fmt.Sprint(i))))) })
	}
	wg.Wait()
	free.Store(true)
	release()
	waiting.Wait()
	wantLeft(t, c, limit.For("new"), 979)
}

// Callers leave at random, of calls that are on their way or not. Each token that is gone from the
// balance was granted to a caller who got it, or to one who was told that nobody knows.
func TestFaultsOfLeaversLoseNothing(t *testing.T) {
	t.Parallel()
	bothForms(t, func(t *testing.T, cfg ratelimit.Config) {
		plain := pgtest.Pool(t, most(10))
		p, err := delay.Listen(fmt.Sprintf("%s:%d", plain.Config().ConnConfig.Host,
			plain.Config().ConnConfig.Port), time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Close() })
		pool := beside(t, plain, func(cfg *pgxpool.Config) {
			cfg.ConnConfig.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, "tcp", p.Addr())
			}
		})
		limit := ratelimit.MustDefine("leavers", ratelimit.FixedWindow{Rate: 1_000_000, Period: century})
		c := limiter(t, cfg).Coalesce(pool)
		want, unknown := map[string]float64{}, map[string]float64{}
		var mu sync.Mutex
		for range rounds(t, 3) {
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() {
					for range 50 {
						key := fmt.Sprint(rand.IntN(3))
						requests := []ratelimit.Request{limit.For(key)}
						if i%4 == 0 {
							requests[0] = requests[0].OrReserve()
						}
						ctx, cancel := context.WithTimeout(t.Context(), rand.N(6*time.Millisecond))
						res, err := c.RateLimit(ctx, requests...)
						cancel()
						switch {
						case err == nil && res.OK:
							mu.Lock()
							want[key]++
							mu.Unlock()
						case errors.Is(err, ratelimit.ErrOutcomeUnknown):
							mu.Lock()
							unknown[key]++
							mu.Unlock()
						case !errors.Is(err, context.DeadlineExceeded):
							t.Errorf("%+v, %v", res, err)
						}
					}
				})
			}
			wg.Wait()
		}
		c.Close()
		for key, n := range want {
			s, err := limiter(t, cfg).Autocommit(plain).Value(t.Context(), limit.For(key))
			if gone := 1_000_000 - s.Value; err != nil || gone < n || gone > n+unknown[key] {
				t.Errorf("%v tokens are gone, of which callers got %v, and %v were told of an unknown outcome, %v",
					gone, n, unknown[key], err)
			}
			t.Logf("%v granted, %v of an unknown outcome", n, unknown[key])
		}
	})
}

// A caller whose context ends while the database is deciding waits for the answer for a while, and
// is then told that nobody knows it. What the database has granted is given back.
func TestWhoLeavesTheDatabaseAtWorkIsToldSo(t *testing.T) {
	t.Parallel()
	direct := pgtest.Pool(t)
	pool := through(t, direct, far(t, direct, 400*time.Millisecond))
	if err := pool.Ping(t.Context()); err != nil { // that takes a busy machine longer than a call waits
		t.Fatal(err)
	}
	c := coalesce(t, limiter(t, ratelimit.Config{}), pool)
	limit := ratelimit.MustDefine("atWork", ratelimit.FixedWindow{Rate: 100, Period: century})
	var left float64 = 100
	var connections int64
	var before time.Time
	written := func() (at time.Time) {
		if err := direct.QueryRow(t.Context(), `SELECT max(ts) FROM weir_balance`).Scan(&at); err != nil {
			t.Fatal(err)
		}
		return at
	}
	for sent := false; !sent; {
		for range 2 { // until all is prepared
			if err := granted(c.RateLimit(t.Context(), limit.For("k"))); err != nil {
				t.Fatal(err)
			}
			left--
		}
		connections, before = pool.Stat().NewConnsCount(), written()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		res, err := c.RateLimit(ctx, limit.For("k"))
		cancel()
		switch { // on a busy machine it may leave before anything is sent, or after it is answered
		case errors.Is(err, ratelimit.ErrOutcomeUnknown):
			sent = true
		case err == nil && res.OK:
			left--
		case !errors.Is(err, context.DeadlineExceeded) || res.OK || left < 50:
			t.Fatalf("%+v, %v", res, err)
		}
	}
	until(t, func() bool { return written().After(before) }) // it is granted
	closeGivenBack(t, c, limiter(t, ratelimit.Config{}).Autocommit(direct), limit.For("k"), left)
	// one that is opened to give back may come too late for that
	if n := pool.Stat().NewConnsCount(); n != connections {
		t.Errorf("%d connections were opened", n)
	}
}
