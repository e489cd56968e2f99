package integration

import (
	"bytes"
	"context"
	"fmt"
	"net"
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

// muteConn is a connection that goes silent: what is written to it goes nowhere, and the server
// does not learn that it is closed.
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

// goesSilent makes muteConns of the connections of a pool. Each asks is and tells sent of itself,
// by its number.
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
	pool := pgtest.Pool(t, rig.Most(4))
	l := rig.Limiter(t, ratelimit.Config{})
	limit := ratelimit.MustDefine("cut", ratelimit.FixedWindow{Rate: 100, Period: rig.Century})
	here := rig.Coalesce(t, l, pool)
	for i := range 20 {
		takeOK(t, first(here.RateLimit(t.Context(), limit.For(fmt.Sprint(i)))))
	}
	var cut atomic.Bool
	away := rig.Coalesce(t, l, rig.Beside(t, pool, func(c *pgxpool.Config) {
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

// A connection goes silent. The call that was sent on it gets an error in the end. Until then
// others are decided on other connections, whichever lane they are in, and Close returns.
func TestASilentConnectionStopsNoOtherKey(t *testing.T) {
	t.Parallel()
	for range 10 { // a machine that stands still may take longer than the call has for its answer
		if decidedBesideASilentConnection(t) || t.Failed() {
			return
		}
	}
	t.Error("other keys wait for the call on the silent connection")
}

// decidedBesideASilentConnection makes calls for other keys, one after the other, while a call has
// got no answer as its connection is silent. It reports whether they were decided before that one.
// They are so many that all of them use the other lane only once in a million times.
func decidedBesideASilentConnection(t *testing.T) bool {
	var cut atomic.Bool
	var silent atomic.Int64 // the first connection that is written to after that
	pool := rig.Beside(t, pgtest.Pool(t), rig.Most(8), goesSilent(t, func(nr int64) bool {
		return cut.Load() && (silent.CompareAndSwap(0, nr) || silent.Load() == nr)
	}, func(int64, []byte) {}))
	c := rig.Limiter(t, ratelimit.Config{}).Coalesce(pool)
	limit := ratelimit.MustDefine("silent", ratelimit.FixedWindow{Rate: 100, Period: rig.Century})
	for i := range 21 {
		takeOK(t, first(c.RateLimit(t.Context(), limit.For(fmt.Sprint(i)))))
	}
	cut.Store(true)
	stuck := make(chan error, 1)
	go func() { stuck <- rig.Granted(c.RateLimit(t.Context(), limit.For("0"))) }()
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

// All connections go silent while a crowd on a limit with shards waits for its tokens, of which a
// few callers could have all. They wait for one answer, and not one after the other.
func TestACrowdOnALimitWithShardsWaitsForASilentServerOnce(t *testing.T) {
	t.Parallel()
	const callers = 24
	var counter trips
	g := newGate()
	var cut atomic.Bool
	var asked sync.Map // the connections on which something was asked in vain
	pool := rig.Beside(t, pgtest.Pool(t), rig.Most(8), counter.through, g.through,
		goesSilent(t, func(nr int64) bool {
			if cut.Load() {
				asked.Store(nr, true)
			}
			return cut.Load()
		}, func(int64, []byte) {}))
	c := rig.Coalesce(t, rig.Limiter(t, ratelimit.Config{Timeout: -1}), pool)
	limit := ratelimit.MustDefine("silent", ratelimit.FixedWindow{Rate: 4, Period: rig.Century}, ratelimit.Shards(2))
	takeOK(t, first(c.RateLimit(t.Context(), limit.For("k").Count(0))))
	var idle []*pgxpool.Conn // a new one could not begin
	for range 6 {
		conn, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		idle = append(idle, conn)
	}
	for _, conn := range idle {
		conn.Release()
	}
	g.shut()
	defer g.open()
	var wg sync.WaitGroup
	for i := range callers {
		p := park(t.Context())
		wg.Go(func() {
			if res, err := c.RateLimit(p, limit.For("k")); err == nil {
				t.Errorf("%+v of a server that is silent", res)
			}
		})
		p.wait(t)
		if i == 0 {
			g.next(t) // the others are in the next batch
		}
	}
	cut.Store(true)
	g.open()
	wg.Wait()
	n := 0
	asked.Range(func(any, any) bool { n++; return true })
	if n > 6 { // each of two batches asks on one, and pgx cancels that on another
		t.Errorf("%d connections for %d calls", n, callers)
	}
}
