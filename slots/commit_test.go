package slots

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/pgerr"
	"github.com/weir-go/weir/internal/test/pgtest"
)

// answers answers statements, COMMIT too if it is true, and then with an error: as Postgres does if
// a statement_timeout is over just before COMMIT.
type answers struct {
	pgx.BatchResults
	commit bool
	batch  *pgx.Batch
}

var errLate = &pgconn.PgError{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: "57014"}

func (a answers) SendBatch(_ context.Context, b *pgx.Batch) pgx.BatchResults {
	a.batch = b
	return a
}

func (a answers) Exec() (pgconn.CommandTag, error) {
	if !a.commit {
		return pgconn.CommandTag{}, errLate
	}
	return pgconn.NewCommandTag("COMMIT"), nil
}

func (a answers) Close() error {
	for _, q := range a.batch.QueuedQueries {
		if q.Fn != nil {
			if err := q.Fn(a); err != nil {
				return err
			}
		}
	}
	return errLate
}

// A transaction whose COMMIT was answered has committed. If a caller believes otherwise, nobody
// holds what it took.
func TestAnErrorAfterCommitIsNotTheTransactions(t *testing.T) {
	t.Parallel()
	nothing := func(*pgx.Batch) {}
	if err := new(Slots).trip(t.Context(), answers{commit: true}, nothing); err != nil {
		t.Errorf("%v, though COMMIT was answered", err)
	}
	if err := new(Slots).trip(t.Context(), answers{}, nothing); !errors.Is(err, errLate) {
		t.Errorf("%v, want the error that came instead of an answer to COMMIT", err)
	}
}

// wornConn replaces the answers to what commits, while armed, with the error of a coordinator that
// has lost a node: the node may have committed.
type wornConn struct {
	net.Conn
	armed *atomic.Bool
	left  []byte
}

func (c *wornConn) Read(b []byte) (int, error) {
	if len(c.left) == 0 {
		buf := make([]byte, 1<<16)
		n, err := c.Conn.Read(buf)
		if err != nil {
			return 0, err
		}
		c.left = buf[:n]
		if c.armed.Load() {
			const fields = "SERROR\x00VERROR\x00CXX000\x00Mcould not commit transaction for shard 102008 on at least one active node\x00\x00"
			failed := append([]byte{'E', 0, 0, 0, byte(4 + len(fields))}, fields...)
			for _, answer := range []string{"C\x00\x00\x00\x0bCOMMIT\x00", "C\x00\x00\x00\x0fINSERT 0 1\x00"} {
				c.left = bytes.ReplaceAll(c.left, []byte(answer), failed)
			}
		}
	}
	n := copy(b, c.left)
	c.left = c.left[n:]
	return n, nil
}

// An ERROR instead of an answer to what commits does not mean on Citus that nothing was committed.
func TestASlotIsGivenBackIfCommitMayHaveSucceeded(t *testing.T) {
	t.Parallel()
	var armed atomic.Bool
	bare := pgtest.Pool(t)
	cfg := bare.Config()
	dial := cfg.ConnConfig.DialFunc
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		return &wornConn{Conn: conn, armed: &armed}, err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s, err := New(pool, Config{TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(t.Context()) }) // which has ended by then
	three := MustDefine("three", 3)
	armed.Store(true)
	if _, err = s.TryAcquire(t.Context(), three.For("k")); pgerr.State(err) != "XX000" {
		t.Fatalf("%v, want the error of COMMIT", err)
	}
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(2 * time.Millisecond) {
		var taken, held int
		err := bare.QueryRow(t.Context(), `SELECT count(*), count(*) FILTER (WHERE until > 'epoch') FROM weir_slot`).
			Scan(&taken, &held)
		if err != nil || taken != 1 {
			t.Fatalf("%d rows, %v; want that of a slot that was taken", taken, err)
		}
		if held == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatal("not within two minutes: the slot is given back")
		}
	}
}
