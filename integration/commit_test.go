package integration

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// cutter is a proxy that, once armed, cuts the connection at COMMIT: either before the server has
// seen it, or before the client has seen the answer. A statement that is a transaction of its own
// has no COMMIT: alone makes it cut at a take.
type cutter struct {
	alone bool

	mu    sync.Mutex
	armed string // "before", "after" or ""
}

func (c *cutter) arm(when string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed = when
}

func (c *cutter) fire() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	when := c.armed
	c.armed = ""
	return when
}

// through makes the pool's connections go through the cutter.
func (c *cutter) through(cfg *pgxpool.Config) {
	dial := cfg.ConnConfig.DialFunc
	cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec // so that the text of COMMIT is on the wire each time
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &cutConn{Conn: conn, c: c}, nil
	}
}

type cutConn struct {
	net.Conn
	c      *cutter
	answer atomic.Bool // the next one is dropped, and the connection closed
}

// Read drops what Write asks it to. Write itself must not read: while it does not return, pgx may
// read in the background.
func (c *cutConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.answer.Load() {
		_ = c.Close()
		return 0, io.EOF
	}
	return n, err
}

func (c *cutConn) Write(b []byte) (int, error) {
	at := []byte("COMMIT\x00") // and not the level READ COMMITTED
	if c.c.alone {
		at = []byte("INSERT INTO WEIR_BALANCE")
	}
	if !bytes.Contains(bytes.ToUpper(b), at) {
		return c.Conn.Write(b)
	}
	switch c.c.fire() {
	case "before":
		_ = c.Close()
		return len(b), nil
	case "after":
		c.answer.Store(true) // when it comes, the commit has happened
	}
	return c.Conn.Write(b)
}

func TestAConnectionLostAtCommitIsReportedAsUnknown(t *testing.T) {
	t.Parallel()
	limit := ratelimit.MustDefine("lost", ratelimit.TokenBucket{Rate: 10, Period: rig.Never})
	for _, verb := range []string{"InTx", "InSQLTx", "Autocommit", "AutocommitSeveral", "SendBatch"} {
		for when, left := range map[string]float64{"before": 9, "after": 8} {
			t.Run(verb+"/"+when, func(t *testing.T) {
				t.Parallel()
				c := cutter{alone: verb == "Autocommit"}
				db, pool := sqlDB(t, c.through)
				l := rig.Limiter(t, ratelimit.Config{})
				take := func() error {
					switch verb {
					case "InTx":
						return l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
							_, err := l.RateLimit(ctx, tx, limit.For("k"))
							return err
						})
					case "InSQLTx":
						return l.InSQLTx(t.Context(), db, nil, func(ctx context.Context, tx *sql.Tx) error {
							return l.InSQL(tx).Consume(ctx, limit.For("k"))
						})
					case "Autocommit":
						_, err := l.Autocommit(pool).RateLimit(t.Context(), limit.For("k"))
						return err
					case "SendBatch":
						res, err := l.SendBatch(t.Context(), pool, func(b *pgx.Batch) error {
							b.Queue(`SELECT 1`)
							return nil
						}, limit.For("k"))
						if err != nil && res.OK {
							t.Errorf("granted, and %v", err)
						}
						return err
					}
					_, err := l.Autocommit(pool).RateLimit(t.Context(), limit.For("k"), limit.For("m"))
					return err
				}
				if err := take(); err != nil {
					t.Fatal(err)
				}
				c.arm(when)
				if err := take(); !errors.Is(err, ratelimit.ErrOutcomeUnknown) {
					t.Errorf("got %v, want ErrOutcomeUnknown", err)
				}
				if c.fire() != "" {
					t.Fatal("the connection was never cut")
				}
				wantValue(t, l, pool, limit.For("k"), left)
			})
		}
	}
}
