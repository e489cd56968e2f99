package integration

import (
	"context"
	"errors"
	"fmt"
	"math"
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

// Close waits for the calls that are under way; those that come later are refused, and none is
// lost.
func TestCloseDecidesWhatWasAsked(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	c := rig.Limiter(t, ratelimit.Config{}).Coalesce(pool)
	limit := ratelimit.MustDefine("close", ratelimit.FixedWindow{Rate: 1e9, Period: rig.Century})
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
	wantLeft(t, rig.Limiter(t, ratelimit.Config{}).Autocommit(pool), limit.Global(), 1e9-1-float64(granted.Load()))
}

// An outage is an error to those who ask in it, and nothing after it.
func TestCoalescedCallsAfterAnOutage(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "it reads the statistics of one server")
	pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = "outage" })
	c := rig.Coalesce(t, rig.Limiter(t, ratelimit.Config{}), pool)
	limit := ratelimit.MustDefine("outage", ratelimit.FixedWindow{Rate: 1e9, Period: rig.Century})
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
		rig.Exec(t, admin, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'outage'`)
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
			rig.Exec(t, direct, `CREATE SEQUENCE refused`)
			rig.Exec(t, direct, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
				BEGIN PERFORM nextval('refused'); RAISE EXCEPTION 'not now'; END $$`)
			rig.Exec(t, direct, `CREATE TRIGGER refuse BEFORE UPDATE ON weir_balance FOR EACH ROW
				WHEN (NEW.shard = 0 AND NEW.value > OLD.value) EXECUTE FUNCTION refuse()`)
			c := rig.Limiter(t, ratelimit.Config{}).Coalesce(pool)
			rule := ratelimit.FixedWindow{Rate: 1000, Period: rig.Century}
			limit := ratelimit.MustDefine("later", rule)
			takeOK(t, first(c.RateLimit(t.Context(), limit.For("k"))))

			g.shut()
			defer g.open()
			ctx := &slowlyEnded{Context: t.Context(), ends: make(chan struct{}), goesOn: make(chan struct{})}
			var leaving sync.WaitGroup
			for i := range leavers {
				p := park(ctx)
				leaving.Go(func() {
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
			auto := rig.Limiter(t, ratelimit.Config{}).Autocommit(direct)
			n := counter.of(func() {
				close(ctx.goesOn) // they have been granted, and see that their context has ended
				leaving.Wait()
				until(t, func() (refused bool) {
					if err := direct.QueryRow(t.Context(), `SELECT is_called FROM refused`).Scan(&refused); err != nil {
						t.Fatal(err)
					}
					return refused
				})
				if change != nil {
					sharded := ratelimit.MustDefine("later", rule, change...)
					takeOK(t, first(rig.Limiter(t, ratelimit.Config{}).Autocommit(direct).RateLimit(t.Context(), sharded.For("k").Count(0))))
				}
				rig.Exec(t, direct, `DROP TRIGGER refuse ON weir_balance`)
				// Close also waits for what is given back, but only for five seconds.
				until(t, func() bool {
					return math.Abs(left(t, auto, limit.For("k"))-999) <= flown
				})
				c.Close()
			})
			if n > leavers/2 {
				t.Errorf("%d round trips", n)
			}
			wantLeft(t, auto, limit.For("k"), 999)
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
	c := rig.Limiter(t, ratelimit.Config{}).Coalesce(pool)
	defer c.Close()
	limit := ratelimit.MustDefine("many", ratelimit.FixedWindow{Rate: 10, Period: rig.Century})
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
	l := rig.Limiter(t, ratelimit.Config{Timeout: -1})
	c := rig.Coalesce(t, l, pool)
	limit := ratelimit.MustDefine("made", ratelimit.FixedWindow{Rate: 1000, Period: rig.Century})
	tx := rig.Begin(t, pool, pgx.ReadCommitted)
	takeOK(t, first(l.RateLimit(t.Context(), tx, limit.For("new"))))
	release := sync.OnceFunc(func() { rig.Commit(t, tx) })
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
