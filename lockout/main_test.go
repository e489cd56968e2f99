package lockout

import (
	"context"
	"errors"
	"net/netip"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// clock is one that is set.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func newClock() *clock { return &clock{t: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

// guard is a Lockout on a database of its own, by a clock that is set.
type guard struct {
	*Lockout
	t     *testing.T
	clock *clock
	pool  *pgxpool.Pool
}

func newGuard(t *testing.T, cfg Config, configure ...func(*pgxpool.Config)) *guard {
	t.Helper()
	g := &guard{t: t, clock: newClock(), pool: pgtest.Pool(t, configure...)}
	g.Lockout = g.another(cfg)
	return g
}

// another is a Lockout as another process has it: on the same tables, with a limiter of its own.
func (g *guard) another(cfg Config) *Lockout {
	g.t.Helper()
	limiter, err := ratelimit.New(ratelimit.Config{Citus: pgtest.Citus(), Clock: g.clock.now})
	if err != nil {
		g.t.Fatal(err)
	}
	l, err := New(limiter, g.pool, cfg)
	if err != nil {
		g.t.Fatal(err)
	}
	return l
}

// address is the nth of many.
func address(n int) netip.Addr { return netip.AddrFrom4([4]byte{198, 18, byte(n >> 8), byte(n)}) }

func from(account string, n int) Who { return Who{Account: account, Address: address(n)} }

func right(context.Context) (bool, error) { return true, nil }

func wrong(context.Context) (bool, error) { return false, nil }

// fail attempts n times, and each is checked and wrong.
func (g *guard) fail(n int, who Who) {
	g.t.Helper()
	for i := range n {
		if ok, err := g.Attempt(g.t.Context(), who, wrong); ok || err != nil {
			g.t.Fatalf("failure %d of %d: %v, %v", i+1, n, ok, err)
		}
	}
}

func (g *guard) succeed(who Who) {
	g.t.Helper()
	if ok, err := g.Attempt(g.t.Context(), who, right); !ok || err != nil {
		g.t.Fatalf("the right attempt: %v, %v", ok, err)
	}
}

// locked attempts, and finds who locked for d.
func (g *guard) locked(who Who, whose string, d time.Duration) {
	g.t.Helper()
	ok, err := g.Attempt(g.t.Context(), who, func(context.Context) (bool, error) {
		g.t.Error("an attempt was checked though it is locked")
		return true, nil
	})
	var locked *LockedError
	if ok || !errors.As(err, &locked) || locked.Whose != whose || locked.RetryAfter() != d ||
		!locked.Until.Equal(g.clock.now().Add(d)) {
		g.t.Fatalf("got %v, %v; want the %s locked for %v", ok, err, whose, d)
	}
}

func (g *guard) stands(who Who, want State) {
	g.t.Helper()
	got, err := g.State(g.t.Context(), who)
	if err != nil || got.Attempts != want.Attempts || got.Lockouts != want.Lockouts ||
		!got.LockedUntil.Equal(want.LockedUntil) {
		g.t.Fatalf("%s stands at %+v (%v), want %+v", who.Account, got, err, want)
	}
}

func name(i int) string { return "user" + strconv.Itoa(i) }
