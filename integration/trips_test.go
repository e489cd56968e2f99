package integration

import (
	"context"
	"net"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgxpool"
)

// trips counts the round trips of a pool: each answer that comes after something was sent.
type trips struct{ n atomic.Int64 }

func (c *trips) through(cfg *pgxpool.Config) {
	dial := cfg.ConnConfig.DialFunc
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &tripConn{Conn: conn, trips: c}, nil
	}
	cfg.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false } // a trip, on a slow machine
}

// of is how many trips do takes.
func (c *trips) of(do func()) int64 {
	before := c.n.Load()
	do()
	return c.n.Load() - before
}

type tripConn struct {
	net.Conn
	trips *trips
	asked atomic.Bool
}

func (c *tripConn) Write(b []byte) (int, error) {
	c.asked.Store(true)
	return c.Conn.Write(b)
}

func (c *tripConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && c.asked.Swap(false) {
		c.trips.n.Add(1)
	}
	return n, err
}

// isolation is the level of the transaction that tx runs in, as the server has it: its default one
// outside of any.
const isolation = `SELECT current_setting('transaction_isolation')`
