package slots_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/slots"
)

// cutConn is a connection that is cut now and then: before what was written is sent, or before its
// answer is read.
type cutConn struct {
	net.Conn
	armed *atomic.Bool
	cuts  *atomic.Int64
}

func (c *cutConn) cut() bool {
	if !c.armed.Load() || rand.IntN(25) > 0 {
		return false
	}
	c.cuts.Add(1)
	_ = c.Close()
	return true
}

func (c *cutConn) Write(b []byte) (int, error) {
	c.cut()
	return c.Conn.Write(b)
}

func (c *cutConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err == nil && c.cut() {
		return 0, net.ErrClosed
	}
	return n, err
}

// A call whose answer did not come holds nothing in the end, and nobody gets more for it.
func TestConnectionsThatAreCutLeaveNoSlotBehind(t *testing.T) {
	t.Parallel()
	var armed atomic.Bool
	var cuts, busy, worked, failed atomic.Int64
	bare := pgtest.Pool(t)
	cfg := bare.Config()
	dial := cfg.ConnConfig.DialFunc
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		return &cutConn{conn, &armed, &cuts}, err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	armed.Store(true)
	var wg sync.WaitGroup
	for range 3 {
		s := open(t, pool, slots.Config{TTL: 10 * time.Second, Logger: silent})
		for range 4 {
			wg.Go(func() {
				// a cut may harm no call, but only a beat in the background: go on until one has
				// failed
				for i := 0; i < 40 || failed.Load() == 0 && i < 4000; i++ {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					err := s.Do(ctx, func(context.Context) error {
						defer busy.Add(-1)
						if n := busy.Add(1); n > 3 {
							t.Errorf("%d at once of 3", n)
						}
						worked.Add(1)
						time.Sleep(rand.N(time.Millisecond))
						return nil
					}, three.For("k"))
					cancel()
					if errors.Is(err, slots.ErrFull) {
						t.Errorf("an outage was told as a full limit: %v", err)
					} else if err != nil {
						failed.Add(1)
					}
				}
			})
		}
	}
	wg.Wait()
	t.Logf("%d cuts, %d worked, %d failed", cuts.Load(), worked.Load(), failed.Load())
	if worked.Load() == 0 || failed.Load() == 0 {
		t.Error("want both")
	}
	s := open(t, bare, slots.Config{})
	until(t, "nothing is held", func() bool {
		n, err := s.Held(t.Context(), three.For("k"))
		return err == nil && n == 0
	})
}

// lateConn sends one thing late, and whatever becomes of the client meanwhile.
type lateConn struct {
	net.Conn
	late    *atomic.Bool
	sending atomic.Bool
	written chan struct{} // closed when the late thing is sent
	sent    func()
	wg      *sync.WaitGroup
}

const late = 300 * time.Millisecond

func (c *lateConn) Write(b []byte) (int, error) {
	if !c.late.CompareAndSwap(true, false) {
		return c.Conn.Write(b)
	}
	b = slices.Clone(b)
	c.written = make(chan struct{})
	c.sending.Store(true)
	c.sent()
	c.wg.Go(func() {
		defer close(c.written)
		time.Sleep(late)
		_, _ = c.Conn.Write(b)
	})
	return len(b), nil
}

func (c *lateConn) Close() error {
	if c.sending.Load() {
		c.wg.Go(func() {
			<-c.written
			time.Sleep(late)
			_ = c.Conn.Close()
		})
		return nil
	}
	return c.Conn.Close()
}

// What was sent may be run after its caller has gone, and after whatever that would do about it.
func TestWhoGivesUpLeavesNoSlotBehindThatIsTakenLater(t *testing.T) {
	t.Parallel()
	var armed atomic.Bool
	var wg sync.WaitGroup
	bare := pgtest.Pool(t)
	cfg := bare.Config()
	ctx, cancel := context.WithCancel(t.Context()) // of who gives up when it has asked
	defer cancel()
	dial := cfg.ConnConfig.DialFunc
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		return &lateConn{Conn: conn, late: &armed, sent: cancel, wg: &wg}, err
	}
	// what is late is to be the call, also on a machine that is too busy to make it within a second
	cfg.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s := open(t, pool, slots.Config{})
	release(t, try(t, s, three.For("warm")))
	armed.Store(true)
	if _, err := s.TryAcquire(ctx, three.For("k")); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	until(t, "it was taken", func() bool {
		return scan[bool](t, bare, `SELECT count(*) > 0 FROM weir_slot WHERE key = 'k'`)
	})
	until(t, "it is given back", func() bool { return rows(t, bare) == 0 })
	wg.Wait()
}
