package faults

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/ratelimit"
)

// finale is a connection on which, once armed, the server's answer to COMMIT is the last one: the
// backend is terminated between that and its being ready for more.
type finale struct {
	net.Conn
	armed *atomic.Pointer[string] // the tag of the statement, or nil
	ready bytes.Buffer            // read from the server, not by the client
	over  bool
}

func (c *finale) Read(b []byte) (int, error) {
	if c.ready.Len() == 0 {
		if c.over {
			return 0, io.EOF
		}
		if c.armed.Load() == nil {
			return c.Conn.Read(b)
		}
		if err := c.message(); err != nil {
			return 0, err
		}
	}
	return c.ready.Read(b)
}

// message reads one message of the server: a byte for its type, and four for its length, which
// counts themselves.
func (c *finale) message() error {
	head := make([]byte, 5)
	if _, err := io.ReadFull(c.Conn, head); err != nil {
		return err
	}
	body := make([]byte, binary.BigEndian.Uint32(head[1:])-4)
	if _, err := io.ReadFull(c.Conn, body); err != nil {
		return err
	}
	c.ready.Write(head)
	c.ready.Write(body)
	if tag := c.armed.Load(); tag != nil && head[0] == 'C' && string(body) == *tag+"\x00" {
		c.armed.Store(nil)
		c.over = true
		fatal := []byte("SFATAL\x00VFATAL\x00C57P01\x00Mterminating connection due to administrator command\x00\x00")
		c.ready.WriteByte('E')
		c.ready.Write(binary.BigEndian.AppendUint32(nil, uint32(len(fatal)+4))) //nolint:gosec // short
		c.ready.Write(fatal)
	}
	return nil
}

// An error that comes after COMMIT was answered must not read as if nothing had been committed.
func TestABackendThatIsTerminatedRightAfterCommit(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec,
		pgx.QueryExecModeSimpleProtocol} {
		var armed atomic.Pointer[string]
		pool := f.connect(t, func(cfg *pgxpool.Config) {
			dial := cfg.ConnConfig.DialFunc
			cfg.ConnConfig.DefaultQueryExecMode = mode
			cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := dial(ctx, network, addr)
				if err != nil {
					return nil, err
				}
				return &finale{Conn: conn, armed: &armed}, nil
			}
		})
		l := f.app.limiter
		ac := l.Autocommit(pool)
		for name, call := range map[string]func(r ...ratelimit.Request) error{
			"InTx": func(r ...ratelimit.Request) error {
				return l.InTx(t.Context(), pool, func(ctx context.Context, tx pgx.Tx) error {
					_, err := l.RateLimit(ctx, tx, r...)
					return err
				})
			},
			"Autocommit, one": func(r ...ratelimit.Request) error {
				_, err := ac.RateLimit(t.Context(), r[0])
				return err
			},
			"Autocommit, several": func(r ...ratelimit.Request) error {
				_, err := ac.RateLimit(t.Context(), r...)
				return err
			},
			"Autocommit, reset": func(r ...ratelimit.Request) error { return ac.ResetRateLimit(t.Context(), r[0]) },
		} {
			tag := "COMMIT"
			if name == "Autocommit, one" || name == "Autocommit, reset" { // each is one statement
				tag = "INSERT 0 1"
			}
			var key string
			var err error
			for tries := 1; ; tries++ {
				key = fmt.Sprint(name, " ", mode, " ", tries)
				if err := call(bucket.For("other "+key), window.For("other "+key)); err != nil {
					t.Fatal(err)
				}
				armed.Store(&tag)
				err = call(bucket.For(key), window.For(key))
				if armed.Swap(nil) == nil {
					break
				}
				// On a busy machine pgx may have begun to read before that was armed.
				if tries == 10 {
					t.Fatalf("%s: COMMIT was not seen", key)
				}
				pool.Reset()
			}
			var n int
			f.admin(t, func(ctx context.Context, conn *pgx.Conn) error {
				return conn.QueryRow(ctx, `SELECT count(*) FROM weir_balance WHERE name = 'bucket' AND key = $1`,
					key).Scan(&n)
			})
			if n != 1 {
				t.Fatalf("%s: %d balances", key, n)
			}
			if err != nil && !errors.Is(err, ratelimit.ErrOutcomeUnknown) {
				t.Errorf("%s: it was committed, and the error says that it was not: %v", key, err)
			}
		}
		pool.Close()
	}
}

// Transactions that take in one order never wait for each other in a circle, whatever they lock
// besides: nobody waits for the server to find out.
func TestALoadWithoutFaultsNeverDeadlocks(t *testing.T) {
	t.Parallel()
	ours(t)
	f := setUp(t)
	x := fault{rounds: 1, inject: func(t *testing.T, f *fixture) { f.callers.await(t, granted, 200) }}
	f.run(t, x)
	var n int
	f.admin(t, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`).Scan(&n)
	})
	if n != 0 {
		t.Errorf("%d deadlocks", n)
	}
}
