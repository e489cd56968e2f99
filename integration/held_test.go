package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
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

// beside is another pool on the schema of a pool.
func beside(t testing.TB, pool *pgxpool.Pool, configure ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	cfg := pool.Config()
	for _, c := range configure {
		c(cfg)
	}
	other, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(other.Close)
	return other
}

func most(n int32) func(*pgxpool.Config) { return func(c *pgxpool.Config) { c.MaxConns = n } }

// bothForms runs a test with the statements of Postgres and with the portable ones.
func bothForms(t *testing.T, test func(t *testing.T, cfg ratelimit.Config)) {
	for _, portable := range []bool{false, true} {
		t.Run(fmt.Sprintf("Portable=%v", portable), func(t *testing.T) {
			t.Parallel()
			test(t, ratelimit.Config{Portable: portable})
		})
	}
}

// As many rows are held and asked for as the pool has connections. Other keys, and the application's
// own queries, go on. The calls for a held row are then granted in their order.
func TestHeldRowsLeaveThePoolToOthers(t *testing.T) {
	t.Parallel()
	bothForms(t, func(t *testing.T, cfg ratelimit.Config) {
		pool := pgtest.Pool(t, most(4))
		holders := beside(t, pool, most(8))
		c := coalesce(t, limiter(t, cfg), pool)
		limit := ratelimit.MustDefine("held", ratelimit.FixedWindow{Rate: 3, Period: century})
		var releases []func()
		for i := range 4 {
			takeOK(t, first(c.RateLimit(t.Context(), limit.For(fmt.Sprint("held", i)))))
			releases = append(releases, hold(t, holders, "held", fmt.Sprint("held", i)))
		}
		var waiting sync.WaitGroup
		var free atomic.Bool
		for i := range 4 {
			for k := range 4 { // two of them can be granted
				p := park(t.Context())
				waiting.Go(func() {
					res, err := c.RateLimit(p, limit.For(fmt.Sprint("held", i)))
					if err != nil || res.OK != (k < 2) {
						t.Errorf("call %d for row %d: %+v, %v", k, i, res, err)
					}
					if !free.Load() {
						t.Error("decided while another transaction holds the row")
					}
				})
				p.wait(t)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), hung)
		defer cancel()
		for i := range 50 {
			takeOK(t, first(c.RateLimit(ctx, limit.For(fmt.Sprint("free", i)))))
			if _, err := pool.Exec(ctx, `SELECT 1`); err != nil {
				t.Fatal(err)
			}
		}
		free.Store(true)
		for _, release := range releases {
			release()
		}
		waiting.Wait()
	})
}

// busyLanes makes a call for each of some keys while the gate is shut, until each lane has a batch that
// stands at the gate. What is called then comes together, in the next batches.
func busyLanes(t *testing.T, g *gate, call func(key string)) {
	t.Helper()
	g.shut()
	for i := range 20 {
		call(fmt.Sprint("early", i))
	}
	for range 2 {
		g.next(t)
	}
}

// A call for a held row and calls for free rows come together, whether rows are expected that do not
// exist or not. Only the call for the held row waits.
func TestABatchWaitsForNoHeldRow(t *testing.T) {
	t.Parallel()
	for _, known := range []bool{false, true} { // lately no row was inserted
		t.Run(fmt.Sprintf("Known=%v", known), func(t *testing.T) {
			t.Parallel()
			g := newGate()
			pool := pgtest.Pool(t, g.through)
			holders := beside(t, pool, func(c *pgxpool.Config) { c.PrepareConn = nil })
			c := coalesce(t, limiter(t, ratelimit.Config{}), pool)
			limit := ratelimit.MustDefine("batch", ratelimit.FixedWindow{Rate: 1_000_000, Period: century})
			for i := range 20 { // enough for each lane
				for _, key := range []string{"early", "free"} {
					takeOK(t, first(c.RateLimit(t.Context(), limit.For(fmt.Sprint(key, i)))))
				}
			}
			takeOK(t, first(c.RateLimit(t.Context(), limit.For("held"))))
			for i := 0; known && i < 200; i++ {
				takeOK(t, first(c.RateLimit(t.Context(), limit.For("held"))))
			}
			defer hold(t, holders, "batch", "held")()
			waits, leave := context.WithCancel(t.Context())
			var free, held sync.WaitGroup
			call := func(key string) {
				ctx, wg := t.Context(), &free
				if key == "held" {
					ctx, wg = waits, &held
				}
				p := park(ctx)
				wg.Go(func() {
					res, err := c.RateLimit(p, limit.For(key))
					switch {
					case key == "held" && !errors.Is(err, context.Canceled):
						t.Errorf("%s: %+v, %v, while another transaction holds the row", key, res, err)
					case key != "held" && (err != nil || !res.OK):
						t.Errorf("%s: %+v, %v", key, res, err)
					}
				})
				p.wait(t)
			}
			defer g.open()
			busyLanes(t, g, call)
			call("held")
			for i := range 20 {
				call(fmt.Sprint("free", i))
			}
			g.open()
			free.Wait()
			leave()
			held.Wait()
		})
	}
}

// A call waits for its row for longer than the database has for an answer.
func TestACallOutwaitsWhoHoldsItsRow(t *testing.T) {
	t.Parallel()
	bothForms(t, func(t *testing.T, cfg ratelimit.Config) {
		pool := pgtest.Pool(t)
		c := coalesce(t, limiter(t, cfg), pool)
		limit := ratelimit.MustDefine("outwaits", ratelimit.FixedWindow{Rate: 10, Period: century})
		takeOK(t, first(c.RateLimit(t.Context(), limit.For("k"))))
		release := hold(t, pool, "outwaits", "k")
		defer release()
		done := make(chan outcome, 1)
		go func() { done <- first(c.RateLimit(t.Context(), limit.For("k"))) }()
		time.Sleep(7 * time.Second)
		release()
		takeOK(t, <-done)
		wantLeft(t, c, limit.For("k"), 8)
	})
}

// Another transaction inserts one of many rows that are inserted together. Only the calls for this row
// wait for it.
func TestFirstUsesDoNotWaitForTheRowOfAnother(t *testing.T) {
	t.Parallel()
	bothForms(t, func(t *testing.T, cfg ratelimit.Config) {
		g := newGate()
		pool := pgtest.Pool(t, g.through)
		holders := beside(t, pool, func(c *pgxpool.Config) { c.PrepareConn = nil })
		l := limiter(t, cfg)
		c := coalesce(t, l, pool)
		limit := ratelimit.MustDefine("firsts", ratelimit.FixedWindow{Rate: 10, Period: century})
		tx := begin(t, holders, pgx.ReadCommitted)
		takeOK(t, first(l.RateLimit(t.Context(), tx, limit.For("made"))))
		var free, made sync.WaitGroup
		var committed atomic.Bool
		call := func(key string) {
			p, wg := park(t.Context()), &free
			if key == "made" {
				wg = &made
			}
			wg.Go(func() {
				res, err := c.RateLimit(p, limit.For(key))
				if err != nil || !res.OK {
					t.Errorf("%s: %+v, %v", key, res, err)
				}
				if key == "made" && !committed.Load() {
					t.Error("granted while another transaction makes the row")
				}
			})
			p.wait(t)
		}
		defer g.open()
		busyLanes(t, g, call)
		call("made")
		for i := range 20 {
			call(fmt.Sprint("free", i))
		}
		g.open()
		free.Wait()
		committed.Store(true)
		commit(t, tx)
		made.Wait()
		wantLeft(t, c, limit.For("made"), 8)
	})
}

// A call that the committed balance denies does not wait for the row, nor for others of its batch.
func TestADenialDoesNotWaitForAHeldRow(t *testing.T) {
	t.Parallel()
	bothForms(t, func(t *testing.T, cfg ratelimit.Config) {
		pool := pgtest.Pool(t)
		c := coalesce(t, limiter(t, cfg), pool)
		limit := ratelimit.MustDefine("spent", ratelimit.FixedWindow{Rate: 1, Period: century})
		ample := ratelimit.MustDefine("ample", ratelimit.FixedWindow{Rate: 9, Period: century})
		takeOK(t, first(c.RateLimit(t.Context(), limit.For("k"), ample.For("k"))))
		defer hold(t, pool, "spent", "k")()
		defer hold(t, pool, "ample", "k")()
		waits, leave := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := c.RateLimit(waits, ample.For("k")); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
		ctx, cancel := context.WithTimeout(t.Context(), hung)
		defer cancel()
		for _, requests := range [][]ratelimit.Request{{limit.For("k")}, {limit.For("k")}, {ample.For("k"), limit.For("k")}} {
			if res, err := c.RateLimit(ctx, requests...); err != nil || res.OK {
				t.Errorf("%+v, %v", res, err)
			}
		}
		leave()
		wg.Wait()
	})
}

// A row that always one of several transactions holds serves its coalesced calls as well.
func TestARowThatIsAlwaysHeldServesItsCallers(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, most(4))
	holders := beside(t, pool, most(4))
	l := limiter(t, ratelimit.Config{})
	c := coalesce(t, l, pool)
	limit := ratelimit.MustDefine("hot", ratelimit.FixedWindow{Rate: 1_000_000, Period: century})
	takeOK(t, first(c.RateLimit(t.Context(), limit.Global())))
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				tx := begin(t, holders, pgx.ReadCommitted)
				takeOK(t, first(l.RateLimit(t.Context(), tx, limit.Global())))
				time.Sleep(5 * time.Millisecond)
				commit(t, tx)
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

// Rows are held for short times, one after the other and many at once. At most one connection of the
// pool waits for a row.
func TestShortHoldsAreWaitedForByOneConnection(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it reads the statistics of one server")
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = "convoy" })
	holders := beside(t, pool, most(8), func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["application_name"] = "holders"
	})
	l := limiter(t, ratelimit.Config{})
	c := coalesce(t, l, pool)
	limit := ratelimit.MustDefine("convoy", ratelimit.FixedWindow{Rate: 1_000_000, Period: century})
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range 8 {
		busy := limit.For(fmt.Sprint("busy", i))
		wg.Go(func() {
			for ctx.Err() == nil {
				tx := begin(t, holders, pgx.ReadCommitted)
				takeOK(t, first(l.RateLimit(t.Context(), tx, busy)))
				time.Sleep(20 * time.Millisecond)
				commit(t, tx)
			}
		})
		wg.Go(func() {
			for ctx.Err() == nil {
				takeOK(t, first(c.RateLimit(t.Context(), busy)))
			}
		})
	}
	waits := func() (waiting []string) {
		t.Helper()
		if err := pool.QueryRow(t.Context(), `SELECT coalesce(array_agg(pid || ' since ' || query_start), '{}') FROM pg_stat_activity
			WHERE application_name = 'convoy' AND wait_event_type = 'Lock' AND wait_event IN ('tuple', 'transactionid')
			AND query NOT LIKE '%INSERT%'`).Scan(&waiting); err != nil {
			t.Error(err)
		}
		return waiting
	}
	for i := range 100 {
		takeOK(t, first(c.RateLimit(t.Context(), limit.For(fmt.Sprint("free", i%5)))))
		// One reading is not of one instant: one connection may end its wait, and another one begin, while it is made.
		// Two that wait at once are in the next one, too, with the same statements.
		if waiting := waits(); len(waiting) > 1 {
			again := waits()
			if waiting = slices.DeleteFunc(waiting, func(w string) bool { return !slices.Contains(again, w) }); len(waiting) > 1 {
				t.Errorf("%d connections wait for rows: %q", len(waiting), waiting)
			}
		}
	}
	stop()
	wg.Wait()
}

// muteConn is a connection that goes silent: what is written to it goes nowhere, and the server does
// not learn that it is closed.
type muteConn struct {
	net.Conn
	is   func() bool          // it is silent by now
	sent func(written []byte) // told of what was written before
	left func(net.Conn)       // told of what was not closed
}

// Close ends reads, as closing does.
func (c muteConn) Close() error {
	if !c.is() {
		return c.Conn.Close()
	}
	c.left(c.Conn)
	return c.SetReadDeadline(time.Now())
}

func (c muteConn) Write(b []byte) (int, error) {
	if c.is() {
		return len(b), nil
	}
	n, err := c.Conn.Write(b)
	c.sent(b)
	return n, err
}

// goesSilent makes muteConns of the connections of a pool. Each asks is and tells sent of itself, by
// its number.
func goesSilent(
	t *testing.T, is func(nr int64) bool, sent func(nr int64, written []byte),
) func(*pgxpool.Config) {
	return func(cfg *pgxpool.Config) {
		dial := cfg.ConnConfig.DialFunc
		var made atomic.Int64
		cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			nr := made.Add(1)
			return muteConn{conn,
				func() bool { return is(nr) },
				func(written []byte) { sent(nr, written) },
				func(conn net.Conn) { t.Cleanup(func() { _ = conn.Close() }) }}, nil
		}
	}
}

// A process is cut off between the two trips of a transaction. The server ends it, and its rows are
// free again. Until then other processes wait for these rows only.
func TestTheRowsOfAProcessThatIsCutOffComeFree(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, most(4))
	l := limiter(t, ratelimit.Config{})
	limit := ratelimit.MustDefine("cut", ratelimit.FixedWindow{Rate: 100, Period: century})
	here := coalesce(t, l, pool)
	for i := range 20 {
		takeOK(t, first(here.RateLimit(t.Context(), limit.For(fmt.Sprint(i)))))
	}
	var cut atomic.Bool
	away := coalesce(t, l, beside(t, pool, func(c *pgxpool.Config) {
		c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // each statement goes out as text
	}, goesSilent(t, func(int64) bool { return cut.Load() }, func(_ int64, written []byte) {
		if bytes.Contains(written, []byte("idle_in_transaction_session_timeout")) {
			cut.Store(true) // the rows are locked, and nothing follows
		}
	})))
	var wg sync.WaitGroup
	for i := range 20 {
		p := park(t.Context())
		wg.Go(func() {
			if res, err := away.RateLimit(p, limit.For(fmt.Sprint(i)).OrReserve()); err == nil {
				t.Errorf("%+v without a connection", res)
			}
		})
		p.wait(t)
	}
	until(t, func() bool { return cut.Load() })
	ctx, cancel := context.WithTimeout(t.Context(), hung)
	defer cancel()
	var waiting sync.WaitGroup
	for i := range 20 {
		waiting.Go(func() { takeOK(t, first(here.RateLimit(ctx, limit.For(fmt.Sprint(i))))) })
	}
	for i := range 50 {
		takeOK(t, first(here.RateLimit(ctx, limit.For(fmt.Sprint("free", i)))))
		if _, err := pool.Exec(ctx, `SELECT 1`); err != nil {
			t.Fatal(err)
		}
	}
	waiting.Wait()
	wg.Wait()
	for i := range 20 {
		wantLeft(t, here, limit.For(fmt.Sprint(i)), 98)
	}
}

// A connection goes silent. The call that was sent on it gets an error in the end. Until then others
// are decided on other connections, whichever lane they are in, and Close returns.
func TestASilentConnectionStopsNoOtherKey(t *testing.T) {
	t.Parallel()
	for range 10 { // a machine that stands still may take longer than the call has for its answer
		if decidedBesideASilentConnection(t) || t.Failed() {
			return
		}
	}
	t.Error("other keys wait for the call on the silent connection")
}

// decidedBesideASilentConnection makes calls for other keys, one after the other, while a call has got
// no answer as its connection is silent. It reports whether they were decided before that one. They
// are so many that all of them use the other lane only once in a million times.
func decidedBesideASilentConnection(t *testing.T) bool {
	var cut atomic.Bool
	var silent atomic.Int64 // the first connection that is written to after that
	pool := beside(t, pgtest.Pool(t), most(8), goesSilent(t, func(nr int64) bool {
		return cut.Load() && (silent.CompareAndSwap(0, nr) || silent.Load() == nr)
	}, func(int64, []byte) {}))
	c := limiter(t, ratelimit.Config{}).Coalesce(pool)
	limit := ratelimit.MustDefine("silent", ratelimit.FixedWindow{Rate: 100, Period: century})
	for i := range 21 {
		takeOK(t, first(c.RateLimit(t.Context(), limit.For(fmt.Sprint(i)))))
	}
	cut.Store(true)
	stuck := make(chan error, 1)
	go func() { stuck <- granted(c.RateLimit(t.Context(), limit.For("0"))) }()
	until(t, func() bool { return silent.Load() != 0 })
	for i := range 20 {
		takeOK(t, first(c.RateLimit(t.Context(), limit.For(fmt.Sprint(1+i)))))
	}
	before := len(stuck) == 0
	if err := <-stuck; err == nil {
		t.Error("granted on a connection that is silent")
	}
	c.Close()
	return before
}

// Close does not wait for ever for a row that another transaction holds.
func TestCloseGivesUpHeldRows(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	c := limiter(t, ratelimit.Config{}).Coalesce(pool)
	limit := ratelimit.MustDefine("closes", ratelimit.FixedWindow{Rate: 100, Period: century})
	takeOK(t, first(c.RateLimit(t.Context(), limit.Global())))
	defer hold(t, pool, "closes", "")()
	var wg sync.WaitGroup
	for range 10 {
		p := park(t.Context())
		wg.Go(func() {
			if res, err := c.RateLimit(p, limit.Global()); !errors.Is(err, ratelimit.ErrClosed) {
				t.Errorf("%+v, %v", res, err)
			}
		})
		p.wait(t)
	}
	c.Close()
	wg.Wait()
}

// Callers leave at random, of calls that are on their way or not. Each token that is gone from the
// balance was granted to a caller who got it, or to one who was told that nobody knows.
func TestFaultsOfLeaversLoseNothing(t *testing.T) {
	t.Parallel()
	bothForms(t, func(t *testing.T, cfg ratelimit.Config) {
		plain := pgtest.Pool(t, most(10))
		p, err := delay.Listen(fmt.Sprintf("%s:%d", plain.Config().ConnConfig.Host, plain.Config().ConnConfig.Port), time.Millisecond)
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

// A caller whose context ends while the database is deciding waits for the answer for a while, and is
// then told that nobody knows it. What the database has granted is given back.
func TestWhoLeavesTheDatabaseAtWorkIsToldSo(t *testing.T) {
	t.Parallel()
	direct := pgtest.Pool(t)
	pool := through(t, direct, far(t, direct, time.Second))
	c := coalesce(t, limiter(t, ratelimit.Config{}), pool)
	limit := ratelimit.MustDefine("atWork", ratelimit.FixedWindow{Rate: 100, Period: century})
	var left float64 = 100
	var connections int64
	for sent := false; !sent; {
		for range 2 { // until all is prepared
			if err := granted(c.RateLimit(t.Context(), limit.For("k"))); err != nil {
				t.Fatal(err)
			}
			left--
		}
		connections = pool.Stat().NewConnsCount()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		res, err := c.RateLimit(ctx, limit.For("k"))
		cancel()
		sent = errors.Is(err, ratelimit.ErrOutcomeUnknown) // or the machine was so busy that it left before that
		if !errors.Is(err, context.DeadlineExceeded) || res.OK || left < 50 {
			t.Fatalf("%+v, %v", res, err)
		}
	}
	c.Close() // which waits for what is given back
	wantLeft(t, limiter(t, ratelimit.Config{}).Autocommit(direct), limit.For("k"), left)
	if n := pool.Stat().NewConnsCount(); n != connections { // one that is opened to give back may come too late for that
		t.Errorf("%d connections were opened", n)
	}
}
