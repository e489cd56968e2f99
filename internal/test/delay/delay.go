// Package delay puts a network between a client and a server that are on one machine, for
// benchmarks of round trips.
//
//	p, err := delay.Listen("127.0.0.1:5432", 500*time.Microsecond)
//	...
//	defer p.Close()
//	conn, err := net.Dial("tcp", p.Addr())
//
// What either side sends reaches the other half the time of a round trip later, and no less. The
// delay is of each byte and not of one chunk after the other, so that as much may be on its way as
// the network would hold. And it counts the round trips. It listens on the loopback interface only.
package delay

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	chunkSize = 32 << 10
	onTheWay  = 64 // chunks in each direction of a connection; then its sender waits
)

// Proxy forwards the connections that it is sent.
type Proxy struct {
	listener net.Listener
	server   string
	half     time.Duration
	trips    atomic.Int64
	wg       sync.WaitGroup
	ended    chan struct{} // closed by Close

	mu     sync.Mutex
	open   map[net.Conn]bool
	closed bool
}

// Listen makes a Proxy to the TCP address of a server, from which it is a round trip away. With 0
// it only counts.
func Listen(server string, roundTrip time.Duration) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{listener: l, server: server, half: roundTrip / 2, ended: make(chan struct{}),
		open: map[net.Conn]bool{}}
	p.wg.Go(p.accept)
	return p, nil
}

// Addr is what clients connect to.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Trips is how many round trips all connections have begun so far: each time that the client sent
// something for the first time, or for the first time after it had an answer, be that in one chunk
// or in many.
func (p *Proxy) Trips() int64 { return p.trips.Load() }

// Close ends all connections, with what is on its way, and returns when nothing of the Proxy is
// left.
func (p *Proxy) Close() error {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		close(p.ended)
	}
	for c := range p.open {
		_ = c.Close()
	}
	p.mu.Unlock()
	err := p.listener.Close()
	p.wg.Wait()
	return err
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		if p.keep(client) {
			p.wg.Go(func() { p.join(client) })
		}
	}
}

// keep notes that Close is to close c. It does so itself if that is over.
func (p *Proxy) keep(c net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		_ = c.Close()
		return false
	}
	p.open[c] = true
	return true
}

func (p *Proxy) drop(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, c)
	_ = c.Close()
}

// join connects a client with the server, until both have said their last or either is gone.
func (p *Proxy) join(client net.Conn) {
	defer p.drop(client)
	server, err := net.Dial("tcp", p.server)
	if err != nil || !p.keep(server) {
		return
	}
	defer p.drop(server)

	var answered atomic.Bool
	answered.Store(true)
	there := newWay(client, server, p)
	there.received = func() {
		if answered.Swap(false) {
			p.trips.Add(1)
		}
	}
	back := newWay(server, client, p)
	back.releases = func() { answered.Store(true) }

	var wg sync.WaitGroup
	wg.Go(there.receive)
	wg.Go(there.release)
	wg.Go(back.receive)
	wg.Go(back.release)
	wg.Wait()
}
