package delay

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve is a server that does with each connection what it is told to, and its address.
func serve(t *testing.T, do func(c net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			do(c)
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return l.Addr().String()
}

// listen is a proxy that is closed before its server.
func listen(t *testing.T, server string, roundTrip time.Duration) *Proxy {
	t.Helper()
	p, err := Listen(server, roundTrip)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	return p
}

// dial is a connection that fails rather than to hang.
func dial(t *testing.T, p *Proxy) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return c.(*net.TCPConn)
}

func echo(c net.Conn) { _, _ = io.Copy(c, c) }

// trip sends something and awaits it back.
func trip(t *testing.T, c net.Conn, say string) {
	t.Helper()
	if _, err := io.WriteString(c, say); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, len(say))
	if _, err := io.ReadFull(c, b); err != nil || string(b) != say {
		t.Fatalf("got %q and %v, want %q", b, err, say)
	}
}

func TestARoundTripTakesItsTime(t *testing.T) {
	t.Parallel()
	for _, want := range []time.Duration{0, 500 * time.Microsecond, 20 * time.Millisecond} {
		p := listen(t, serve(t, echo), want)
		c := dial(t, p)
		least, most := time.Hour, want+25*time.Millisecond
		for i, end := 0, time.Now().Add(time.Minute); i < 20 || least > most && time.Now().Before(end); i++ {
			began := time.Now()
			trip(t, c, "hello")
			least = min(least, time.Since(began))
		}
		if least < want || least > most {
			t.Errorf("the fastest took %v, want %v to %v", least, want, most)
		}
	}
}

// What is sent before the answer to what was sent earlier does not wait for that.
func TestManyChunksAreOnTheirWayAtOnce(t *testing.T) {
	t.Parallel()
	const chunks, roundTrip = 300, 40 * time.Millisecond
	c := dial(t, listen(t, serve(t, echo), roundTrip))
	const serially = chunks * roundTrip / 2
	least := time.Hour
	for end := time.Now().Add(time.Minute); least > serially/2 && time.Now().Before(end); {
		began := time.Now()
		go func() {
			for range chunks {
				if _, err := io.WriteString(c, "x"); err != nil {
					return // reading tells
				}
				time.Sleep(100 * time.Microsecond) // a chunk each
			}
		}()
		if _, err := io.ReadFull(c, make([]byte, chunks)); err != nil {
			t.Fatal(err)
		}
		least = min(least, time.Since(began))
	}
	if least > serially/2 {
		t.Errorf("%d chunks took %v; one after the other they would take %v", chunks, least, serially)
	}
}

func TestEverythingArrives(t *testing.T) {
	t.Parallel()
	c := dial(t, listen(t, serve(t, echo), time.Millisecond))
	sent := make([]byte, 16<<20)
	_, _ = rand.Read(sent)
	go func() {
		_, _ = c.Write(sent)
		_ = c.CloseWrite() // which the server learns as well, after all that came before
	}()
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d of %d bytes came back: %v", len(got), len(sent), err)
	}
}

func TestTripsAreCounted(t *testing.T) {
	t.Parallel()
	const burst = "one two three "
	p := listen(t, serve(t, func(c net.Conn) { // answers each burst, when it has all of it
		b := make([]byte, len(burst))
		for {
			if _, err := io.ReadFull(c, b); err != nil {
				return
			}
			for _, word := range bytes.SplitAfter(b, []byte(" ")) {
				_, _ = c.Write(word)
				time.Sleep(time.Millisecond)
			}
		}
	}), 0)
	c := dial(t, p)
	for i := range int64(5) {
		if got := p.Trips(); got != i {
			t.Fatalf("%d trips were counted of %d", got, i)
		}
		for _, word := range []string{"one ", "two ", "three "} {
			if _, err := io.WriteString(c, word); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
		if _, err := io.ReadFull(c, make([]byte, len(burst))); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCloseEndsConnections(t *testing.T) {
	t.Parallel()
	p := listen(t, serve(t, echo), time.Hour) // nothing arrives
	c := dial(t, p)
	if _, err := io.WriteString(c, "hello"); err != nil {
		t.Fatal(err)
	}
	for p.Trips() == 0 { // until it is on its way
		time.Sleep(time.Millisecond)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("reading met %v", err)
	}
	if _, err := net.Dial("tcp", p.Addr()); err == nil {
		t.Error("it still listens")
	}
}

// A server that is not there, or goes away, is to the client a connection that ends.
func TestAServerThatIsGone(t *testing.T) {
	t.Parallel()
	for name, server := range map[string]string{"absent": "127.0.0.1:1", "leaves": serve(t, func(net.Conn) {})} {
		c := dial(t, listen(t, server, time.Millisecond))
		if n, err := c.Read(make([]byte, 1)); n > 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: read %d bytes and %v", name, n, err)
		}
	}
}

func TestItListensOnTheLoopbackInterfaceOnly(t *testing.T) {
	t.Parallel()
	a, err := net.ResolveTCPAddr("tcp", listen(t, "127.0.0.1:1", 0).Addr())
	if err != nil || !a.IP.IsLoopback() {
		t.Errorf("%v: %v", a, err)
	}
}
