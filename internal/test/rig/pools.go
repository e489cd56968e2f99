package rig

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/delay"
)

// Beside is another pool on the schema of a pool.
func Beside(t testing.TB, pool *pgxpool.Pool, configure ...func(*pgxpool.Config)) *pgxpool.Pool {
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

// Most bounds the connections of a pool.
func Most(n int32) func(*pgxpool.Config) { return func(c *pgxpool.Config) { c.MaxConns = n } }

// Far is a network to the server of a pool.
func Far(b testing.TB, pool *pgxpool.Pool, roundTrip time.Duration) *delay.Proxy {
	b.Helper()
	c := pool.Config().ConnConfig
	kind, addr := pgconn.NetworkAddress(c.Host, c.Port)
	if kind != "tcp" {
		b.Skipf("skipped: the server is at the %s socket %s, and only a TCP address can be far", kind, addr)
	}
	p, err := delay.Listen(addr, roundTrip)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = p.Close() })
	return p
}

// Through is a pool like the given one, on the other side of a network.
func Through(b testing.TB, pool *pgxpool.Pool, p *delay.Proxy) *pgxpool.Pool {
	b.Helper()
	cfg := pool.Config()
	cfg.ConnConfig.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", p.Addr())
	}
	pool, err := pgxpool.NewWithConfig(b.Context(), cfg)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	return pool
}
