package integration

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// rowConn is a connection that ends after the next row that comes through it, once armed is set.
type rowConn struct {
	net.Conn
	armed   *atomic.Bool
	in, out []byte // messages that have come, and what is left to read of the first
	cut     bool
}

func (c *rowConn) Read(b []byte) (int, error) {
	if !c.cut && !c.armed.Load() {
		return c.Conn.Read(b)
	}
	for len(c.out) == 0 {
		if c.cut {
			return 0, io.ErrUnexpectedEOF
		}
		for len(c.in) < 5 || len(c.in) < 1+int(binary.BigEndian.Uint32(c.in[1:])) {
			n, err := c.Conn.Read(b)
			if err != nil {
				return 0, err
			}
			c.in = append(c.in, b[:n]...)
		}
		n := 1 + int(binary.BigEndian.Uint32(c.in[1:]))
		c.out, c.in = c.in[:n], c.in[n:]
		if c.out[0] == 'D' { // DataRow
			c.cut = true
			c.armed.Store(false)
		}
	}
	n := copy(b, c.out)
	c.out = c.out[n:]
	return n, nil
}

// A denial that nobody expected is read in a second trip. If its connection is lost after the row
// has come, the call is decided once more, and answered once.
func TestACallWhoseLookIsCutOffIsAnsweredOnce(t *testing.T) {
	t.Parallel()
	bothForms(t, func(t *testing.T, cfg ratelimit.Config) {
		pool := pgtest.Pool(t, rig.Most(3))
		var armed atomic.Bool
		away := rig.Beside(t, pool, func(cfg *pgxpool.Config) {
			cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // no row but those of the look
			dial := cfg.ConnConfig.DialFunc
			cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := dial(ctx, network, addr)
				return &rowConn{Conn: conn, armed: &armed}, err
			}
		})
		limit := ratelimit.MustDefine("cut", ratelimit.FixedWindow{Rate: 1, Period: rig.Century})
		c := rig.Limiter(t, cfg).Coalesce(away)
		takeOK(t, first(c.RateLimit(t.Context(), limit.For("another"))))
		takeOK(t, first(rig.Limiter(t, cfg).Autocommit(pool).RateLimit(t.Context(), limit.For("k"))))
		armed.Store(true)
		if res, err := c.RateLimit(t.Context(), limit.For("k")); err != nil || res.OK {
			t.Errorf("%+v, %v, want a denial", res, err)
		}
		if armed.Load() {
			t.Error("nothing was cut off")
		}
		c.Close()
		wantLeft(t, rig.Limiter(t, cfg).Autocommit(pool), limit.For("k"), 0)
	})
}

// Nor is it unknown what has become of a call of shards, if only its look is cut off.
func TestACallOfShardsWhoseLookIsCutOffIsNotUnknown(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t, rig.Most(3))
	var armed atomic.Bool
	away := rig.Beside(t, pool, func(cfg *pgxpool.Config) {
		cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
		dial := cfg.ConnConfig.DialFunc
		cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			return &rowConn{Conn: conn, armed: &armed}, err
		}
	})
	key := ratelimit.MustDefine("cut", ratelimit.FixedWindow{Rate: 100, Period: rig.Century}, ratelimit.Shards(2)).For("k")
	c := rig.Coalesce(t, rig.Limiter(t, ratelimit.Config{}), away)
	takeOK(t, first(c.RateLimit(t.Context(), key)))
	takeOK(t, first(rig.Limiter(t, ratelimit.Config{}).Autocommit(pool).RateLimit(t.Context(), key.Count(99))))
	armed.Store(true)
	if res, err := c.RateLimit(t.Context(), key); res.OK || errors.Is(err, ratelimit.ErrOutcomeUnknown) {
		t.Errorf("%+v, %v", res, err)
	}
	if armed.Load() {
		t.Error("nothing was cut off")
	}
}
