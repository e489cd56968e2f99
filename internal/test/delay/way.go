package delay

import (
	"net"
	"time"
)

// way is one direction of a connection: one goroutine receives, and another releases what is due. A
// chunk's buffer is used again, so that neither allocates while a benchmark counts.
type way struct {
	from, to net.Conn
	delay    time.Duration
	ended    <-chan struct{}
	chunks   chan chunk
	free     chan []byte

	received, releases func() // after the one, before the other
}

type chunk struct {
	bytes []byte
	due   time.Time
}

func newWay(from, to net.Conn, p *Proxy) *way {
	nothing := func() {}
	return &way{from, to, p.half, p.ended, make(chan chunk, onTheWay), make(chan []byte, onTheWay),
		nothing, nothing}
}

// receive stamps what comes, until nothing more does.
func (w *way) receive() {
	defer close(w.chunks)
	for {
		b := w.buffer()
		n, err := w.from.Read(b)
		if n > 0 {
			w.received()
			w.chunks <- chunk{b[:n], time.Now().Add(w.delay)}
		}
		if err != nil {
			return
		}
	}
}

func (w *way) buffer() []byte {
	select {
	case b := <-w.free:
		return b[:cap(b)]
	default:
		return make([]byte, chunkSize)
	}
}

// release passes on what is due, and then that there is no more. If that cannot be, there is nobody
// to receive for.
func (w *way) release() {
	for c := range w.chunks {
		if w.delay > 0 {
			sleepUntil(c.due, w.ended)
		}
		if err := w.pass(c); err != nil {
			_ = w.from.Close()
			_ = w.to.Close()
			for range w.chunks { // until receive has noticed
			}
			return
		}
		select {
		case w.free <- c.bytes:
		default:
		}
	}
	if c, ok := w.to.(*net.TCPConn); ok {
		_ = c.CloseWrite()
	}
}

// pass passes on what is due, unless the Proxy has ended meanwhile.
func (w *way) pass(c chunk) error {
	select {
	case <-w.ended:
		return net.ErrClosed
	default:
	}
	w.releases()
	_, err := w.to.Write(c.bytes)
	return err
}
