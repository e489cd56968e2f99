package faults

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// proxy stands between the application and the server and forwards bytes; as long as it is armed it
// cuts connections.
type proxy struct {
	listener net.Listener
	server   string
	wg       sync.WaitGroup
	mode     atomic.Value // mode
	cuts     [modes]atomic.Int64
	silent   atomic.Int64 // how many COMMITs went nowhere

	mu    sync.Mutex
	open  map[net.Conn]bool
	ended bool
}

type mode int

const (
	calm         mode = iota
	beforeCommit      // the server does not see COMMIT
	afterCommit       // the server has answered COMMIT, the client does not see it
	withCommit        // the server gets COMMIT, and the connection is gone
	anywhere          // after so many bytes, of either side, in the middle of a message more often than not
	silence           // COMMIT goes nowhere for as long as the client waits, and then to the server, every second time
	modes
)

func newProxy(t *testing.T, f *fixture) *proxy {
	t.Helper()
	u, err := url.Parse(f.server.URL())
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, server: u.Host, open: map[net.Conn]bool{}}
	p.mode.Store(calm)
	p.wg.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// through makes a pool's connections go through the proxy.
func (p *proxy) through(cfg *pgxpool.Config) {
	addr := p.listener.Addr().(*net.TCPAddr)
	cfg.ConnConfig.Host, cfg.ConnConfig.Port = addr.IP.String(), uint16(addr.Port) //nolint:gosec // a port
	cfg.ConnConfig.Fallbacks = nil
}

// verbatim has the text of every statement on the wire each time, that of Autocommit's COMMIT too.
func verbatim(cfg *pgxpool.Config) { cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec }

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		server, err := net.Dial("tcp", p.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		if !p.keep(client, server) {
			return
		}
		w := &wire{p: p, client: client, server: server, answered: make(chan struct{}, 1)}
		w.budget.Store(rand.N[int64](30_000))
		p.wg.Go(w.up)
		p.wg.Go(w.down)
	}
}

func (p *proxy) keep(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		if p.ended {
			_ = c.Close()
		} else {
			p.open[c] = true
		}
	}
	return !p.ended
}

func (p *proxy) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.ended = true
	for c := range p.open {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
}

// wire is one connection of a client.
type wire struct {
	p              *proxy
	client, server net.Conn
	budget         atomic.Int64 // bytes until it is cut, if it is to be cut anywhere
	waiting        atomic.Bool  // for the answer to COMMIT
	answered       chan struct{}
}

// cut ends both sides: with a reset, one in two.
func (w *wire) cut() {
	hard := rand.N(2) == 0
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	for _, c := range []net.Conn{w.client, w.server} {
		if t, ok := c.(*net.TCPConn); ok && hard {
			_ = t.SetLinger(0)
		}
		_ = c.Close()
		delete(w.p.open, c)
	}
}

// up forwards what the client says.
func (w *wire) up() {
	defer w.cut()
	buf := make([]byte, 64<<10)
	for {
		n, err := w.client.Read(buf)
		if err != nil {
			return
		}
		if isCommit(buf[:n]) && !w.commit(buf[:n]) {
			return
		}
		if !isCommit(buf[:n]) && !w.forward(w.server, buf[:n]) {
			return
		}
	}
}

// isCommit tells COMMIT, by itself or with what it ends, from the isolation level READ COMMITTED.
func isCommit(b []byte) bool { return bytes.Contains(bytes.ToUpper(b), []byte("COMMIT\x00")) }

// commit forwards COMMIT, or cuts. It reports whether the connection still lives.
func (w *wire) commit(b []byte) bool {
	m := w.p.mode.Load().(mode)
	if m == calm || m == anywhere || rand.N(4) > 0 {
		return w.forward(w.server, b)
	}
	w.p.cuts[m].Add(1)
	switch m {
	case afterCommit, withCommit:
		w.waiting.Store(m == afterCommit)
		if _, err := w.server.Write(b); err == nil && m == afterCommit {
			<-w.answered
		}
	case silence:
		_, _ = io.Copy(io.Discard, w.client) // until the client hangs up
		if w.p.silent.Add(1)%2 == 0 {
			_, _ = w.server.Write(b)
		}
	}
	return false
}

// down forwards what the server says.
func (w *wire) down() {
	defer w.cut()
	defer close(w.answered)
	buf := make([]byte, 64<<10)
	for {
		n, err := w.server.Read(buf)
		if err != nil || w.waiting.Load() {
			return
		}
		if !w.forward(w.client, buf[:n]) {
			return
		}
	}
}

func (w *wire) forward(to net.Conn, b []byte) bool {
	if w.p.mode.Load() == anywhere {
		if left := w.budget.Add(-int64(len(b))); left <= 0 {
			w.p.cuts[anywhere].Add(1)
			_, _ = to.Write(b[:max(0, int64(len(b))+left)])
			return false
		}
	}
	_, err := to.Write(b)
	return err == nil
}
