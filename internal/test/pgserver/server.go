//go:build unix

package pgserver

import (
	"cmp"
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"
)

// Server is a running Postgres server. URL, Bin and Stop may be called at any time, from any
// goroutine; Kill, Shutdown and Restart are for one goroutine at a time.
type Server struct {
	url string
	bin string

	// of a private cluster
	root       string
	password   string
	port       int
	claim      io.Closer // of the port
	supervisor *supervisor
}

// timeout is generous: ten clusters may be started at once on a small machine.
const timeout = 5 * time.Minute

// Start finds or starts a server. What it starts runs until Stop, or until this process ends,
// whichever is first. Cancelling ctx ends a start that is under way, but for a download, and does
// nothing to a server that has started.
func Start(ctx context.Context, opts ...Option) (*Server, error) {
	s, err := begin(ctx, opts)
	if err != nil {
		return nil, fmt.Errorf("pgserver: %w", err)
	}
	return s, nil
}

func begin(ctx context.Context, opts []Option) (*Server, error) {
	if u := os.Getenv("DATABASE_URL"); u != "" {
		if _, err := pgx.ParseConfig(u); err != nil {
			return nil, fmt.Errorf("DATABASE_URL: %w", err)
		}
		return &Server{url: u}, nil
	}
	bin, err := newFinder().find()
	if errors.Is(err, errNotFound) {
		bin, err = fetchInstead(err)
	}
	if err != nil {
		return nil, err
	}
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	return create(ctx, bin, nil, &o)
}

// create makes a private cluster, or a copy of the primary's, and starts a server on it.
func create(ctx context.Context, bin string, primary *Server, o *options) (_ *Server, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	user, err := unprivileged()
	if err != nil {
		return nil, err
	}
	password := cmp.Or(o.password, crand.Text())
	if primary != nil {
		password = primary.password // the copy has the primary's users
	}
	root, err := user.folder(password, o.durable)
	if err != nil {
		return nil, err
	}
	if primary != nil {
		if err := user.write(filepath.Join(root, "primary"), primary.conninfo()); err != nil {
			_ = os.RemoveAll(root)
			return nil, err
		}
	}
	s := &Server{bin: bin, root: root, password: password}
	if s.supervisor, err = supervise(user, root, bin, o.args(), o.env...); err != nil {
		_ = os.RemoveAll(root)
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.supervisor.end())
		}
	}()

	// Another process may take the port between our finding it free and the server's taking it.
	for attempt := 1; ; attempt++ {
		if s.port, s.claim, err = freePort(); err != nil {
			return nil, err
		}
		s.url = (&url.URL{
			Scheme:   "postgres",
			User:     url.UserPassword("postgres", password),
			Host:     net.JoinHostPort("127.0.0.1", fmt.Sprint(s.port)),
			Path:     "postgres",
			RawQuery: "sslmode=disable",
		}).String()
		err = s.launch(ctx)
		if err == nil {
			return s, nil
		}
		_ = s.claim.Close()
		if attempt == 10 || !errors.Is(err, errPortTaken) {
			return nil, err
		}
	}
}

var errPortTaken = errors.New("another process took the port")

// launch starts the server and waits until it answers.
func (s *Server) launch(ctx context.Context) error {
	if err := s.supervisor.start(ctx, s.port); err != nil {
		return err
	}
	_, exited := s.supervisor.server()
	for {
		err := s.answers(ctx)
		select {
		case <-exited:
			if s.supervisor.portTaken() {
				return fmt.Errorf("port %d: %w", s.port, errPortTaken)
			}
			return fmt.Errorf("the server ended as it started%s", s.supervisor.logs())
		default:
		}
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the server did not answer: %w (%w)%s", ctx.Err(), err,
				s.supervisor.logs())
		case <-exited:
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// answers checks that a server takes connections, and that it is ours: where another process has
// the port, it answers before ours has given up, and it may let everybody in.
func (s *Server) answers(ctx context.Context) error {
	// another process may accept the connection and say nothing
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	var data string
	if err := conn.QueryRow(ctx, "SHOW data_directory").Scan(&data); err != nil {
		return err
	}
	if want := filepath.Join(s.root, "data"); data != want {
		return fmt.Errorf("the server at port %d keeps its data in %s, ours in %s", s.port, data,
			want)
	}
	return nil
}

// URL is what to connect to.
func (s *Server) URL() string { return s.url }

// Bin is the path of one of Postgres' programs, pgbench say. It need not be there: a download has
// only the server's own. Of a server named by DATABASE_URL it is the bare name, which exec looks up
// on PATH.
func (s *Server) Bin(program string) string {
	if s.bin == "" {
		return program
	}
	return filepath.Join(s.bin, program)
}

// Stop ends the server and removes its folder; it returns when both are gone. It is for cleaning
// up: data does not outlive it. Of a server named by DATABASE_URL it does nothing. It may be called
// more than once.
func (s *Server) Stop() error {
	if s.supervisor == nil {
		return nil
	}
	defer func() { _ = s.claim.Close() }()
	if err := s.supervisor.end(); err != nil {
		return fmt.Errorf("pgserver: %w", err)
	}
	return nil
}

// lowestPort is the first that freePort considers.
const lowestPort = 10_000

// freePort returns a port on which nobody listens. A server that was killed finds it free when it
// comes back: it is below those that the system lends to outgoing connections, as of clients that
// try to connect to the server meanwhile, and until claim is closed freePort does not return it to
// anybody else. The claim is the UDP port of the same number, which the system gives up when this
// process ends.
func freePort() (port int, claim io.Closer, err error) {
	for range 100 {
		port = lowestPort + rand.IntN(firstLent()-lowestPort)
		address := fmt.Sprintf("127.0.0.1:%d", port)
		if claim, err = net.ListenPacket("udp", address); err != nil {
			continue
		}
		if l, err := net.Listen("tcp", address); err == nil {
			return port, claim, l.Close()
		}
		_ = claim.Close()
	}
	return 0, nil, errors.New("no free port")
}

// firstLent is the first of the ports that the system lends, on Linux. Others lend higher ones.
func firstLent() int {
	first := 0
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err == nil {
		_, err = fmt.Sscan(string(text), &first)
	}
	if err != nil || first <= lowestPort {
		return 32_768
	}
	return first
}
