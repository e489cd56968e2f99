package integration

import (
	"context"
	"errors"
	"fmt"
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

// bothForms runs a test with the statements of Postgres and with the portable ones.
func bothForms(t *testing.T, test func(t *testing.T, cfg ratelimit.Config)) {
	for _, portable := range []bool{false, true} {
		t.Run(fmt.Sprintf("Portable=%v", portable), func(t *testing.T) {
			t.Parallel()
			test(t, ratelimit.Config{Portable: portable})
		})
	}
}

// As many rows are held and asked for as the pool has connections. Other keys, and the
// application's own queries, go on. The calls for a held row are then granted in their order.
func TestHeldRowsLeaveThePoolToOthers(t *testing.T) {
	t.Parallel()
	bothForms(t, func(t *testing.T, cfg ratelimit.Config) {
		pool := pgtest.Pool(t, rig.Most(4))
		holders := rig.Beside(t, pool, rig.Most(8))
		cfg.Timeout = -1
		c := rig.Coalesce(t, rig.Limiter(t, cfg), pool)
		limit := ratelimit.MustDefine("held", ratelimit.FixedWindow{Rate: 3, Period: rig.Century})
		behind := ratelimit.MustDefine("behind", ratelimit.FixedWindow{Rate: 3, Period: rig.Century})
		var releases []func()
		for i := range 4 {
			takeOK(t, first(c.RateLimit(t.Context(), behind.For(fmt.Sprint("held", i)))))
			takeOK(t, first(c.RateLimit(t.Context(), limit.For(fmt.Sprint("held", i)))))
			releases = append(releases, hold(t, holders, "held", fmt.Sprint("held", i)))
		}
		var waiting sync.WaitGroup
		var free atomic.Bool
		var granted [4][4]bool
		began := time.Now()
		for i := range 4 {
			for k := range 4 { // two of them can be granted
				p := park(t.Context())
				waiting.Go(func() {
					res, err := c.RateLimit(p, limit.For(fmt.Sprint("held", i)))
					if err != nil {
						t.Errorf("call %d for row %d: %v", k, i, err)
					}
					granted[i][k] = res.OK
					if !free.Load() {
						t.Error("decided while another transaction holds the row")
					}
				})
				p.wait(t)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), hung)
		defer cancel()
		for i := range 4 { // once these are decided, those of the same keys ahead of them wait for their rows
			takeOK(t, first(c.RateLimit(ctx, behind.For(fmt.Sprint("held", i)))))
		}
		overdue := time.Since(began) >= 500*time.Millisecond // a call may have been overtaken
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
		for i, row := range granted {
			n := 0
			for _, ok := range row {
				if ok {
					n++
				}
			}
			if n != 2 || !overdue && row != [4]bool{true, true} {
				t.Errorf("row %d: granted %v", i, row)
			}
		}
	})
}

// earlyKeys keys are all in one of two lanes once in 2^39 times.
const earlyKeys = 40

// busyLanes makes a call for each of some keys while the gate is shut, until each lane has a batch
// that stands at the gate. What is called then comes together, in the next batches.
func busyLanes(t *testing.T, g *gate, call func(key string)) {
	t.Helper()
	g.shut()
	for i := range earlyKeys {
		call(fmt.Sprint("early", i))
	}
	for range 2 {
		g.next(t)
	}
}

// A call for a held row and calls for free rows come together, whether rows are expected that do
// not exist or not. Only the call for the held row waits.
func TestABatchWaitsForNoHeldRow(t *testing.T) {
	t.Parallel()
	for _, known := range []bool{false, true} { // lately no row was inserted
		t.Run(fmt.Sprintf("Known=%v", known), func(t *testing.T) {
			t.Parallel()
			g := newGate()
			pool := pgtest.Pool(t, g.through)
			holders := rig.Beside(t, pool, func(c *pgxpool.Config) { c.PrepareConn = nil })
			c := rig.Coalesce(t, rig.Limiter(t, ratelimit.Config{}), pool)
			limit := ratelimit.MustDefine("batch", ratelimit.FixedWindow{Rate: 1_000_000, Period: rig.Century})
			for i := range earlyKeys {
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
		c := rig.Coalesce(t, rig.Limiter(t, cfg), pool)
		limit := ratelimit.MustDefine("outwaits", ratelimit.FixedWindow{Rate: 10, Period: rig.Century})
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

// Another transaction inserts one of many rows that are inserted together. Only the calls for this
// row wait for it.
func TestFirstUsesDoNotWaitForTheRowOfAnother(t *testing.T) {
	t.Parallel()
	bothForms(t, func(t *testing.T, cfg ratelimit.Config) {
		g := newGate()
		pool := pgtest.Pool(t, g.through)
		holders := rig.Beside(t, pool, func(c *pgxpool.Config) { c.PrepareConn = nil })
		l := rig.Limiter(t, cfg)
		c := rig.Coalesce(t, l, pool)
		limit := ratelimit.MustDefine("firsts", ratelimit.FixedWindow{Rate: 10, Period: rig.Century})
		tx := rig.Begin(t, holders, pgx.ReadCommitted)
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
		rig.Commit(t, tx)
		made.Wait()
		wantLeft(t, c, limit.For("made"), 8)
	})
}

// Where an insertion takes long by itself, and only whole statements can be bounded, a first use is
// granted all the same.
func TestSlowInsertionsSucceedInThePortableForm(t *testing.T) {
	t.Parallel()
	pgtest.OneServer(t, "Citus has no triggers on distributed tables")
	pool := pgtest.Pool(t)
	rig.Exec(t, pool, `CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.3); RETURN NEW; END $$`)
	rig.Exec(t, pool, `CREATE TRIGGER slow BEFORE INSERT ON weir_balance FOR EACH ROW EXECUTE FUNCTION slow()`)
	c := rig.Coalesce(t, rig.Limiter(t, ratelimit.Config{Portable: true, Timeout: hung}), pool)
	rule := ratelimit.FixedWindow{Rate: 10, Period: rig.Century}
	takeOK(t, first(c.RateLimit(t.Context(), ratelimit.MustDefine("slow", rule).For("k"))))
	takeOK(t, first(c.RateLimit(t.Context(), ratelimit.MustDefine("slowShards", rule, ratelimit.Shards(2)).For("k"))))
}

// A call that the committed balance denies does not wait for the row, nor for others of its batch.
func TestADenialDoesNotWaitForAHeldRow(t *testing.T) {
	t.Parallel()
	bothForms(t, func(t *testing.T, cfg ratelimit.Config) {
		pool := pgtest.Pool(t)
		c := rig.Coalesce(t, rig.Limiter(t, cfg), pool)
		limit := ratelimit.MustDefine("spent", ratelimit.FixedWindow{Rate: 1, Period: rig.Century})
		ample := ratelimit.MustDefine("ample", ratelimit.FixedWindow{Rate: 9, Period: rig.Century})
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
		for _, requests := range [][]ratelimit.Request{{limit.For("k")}, {limit.For("k")},
			{ample.For("k"), limit.For("k")}} {
			if res, err := c.RateLimit(ctx, requests...); err != nil || res.OK {
				t.Errorf("%+v, %v", res, err)
			}
		}
		leave()
		wg.Wait()
	})
}
