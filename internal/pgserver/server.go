//go:build unix

package pgserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"
)

// Server is a running Postgres server.
type Server struct {
	url string
	bin string

	// of a private cluster
	root       string
	port       int
	supervisor *supervisor
}

// startTimeout is generous: ten clusters may be started at once on a small machine.
const startTimeout = 2 * time.Minute

// Start finds or starts a server. What it starts runs until Stop, or until this process ends.
func Start(ctx context.Context, opts ...Option) (*Server, error) {
	if u := os.Getenv("DATABASE_URL"); u != "" {
		if _, err := pgx.ParseConfig(u); err != nil {
			return nil, fmt.Errorf("pgserver: DATABASE_URL: %w", err)
		}
		return &Server{url: u}, nil
	}
	bin, err := binaries(newFinder())
	if err != nil {
		return nil, err
	}
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	return start(ctx, bin, &o)
}

// binaries finds the programs or downloads them.
func binaries(f finder) (string, error) {
	bin, notFound := f.find()
	if !errors.Is(notFound, errNotFound) {
		return bin, notFound
	}
	cache, err := cacheDir()
	if err == nil {
		bin, err = fetch(cache, os.Getenv("WEIR_POSTGRES_REPOSITORY"))
	}
	if err != nil {
		return "", fmt.Errorf("pgserver: %w; and none could be downloaded: %w. Do one of these: "+
			"install a Postgres server (on Debian: apt-get install postgresql; on macOS: brew install postgresql@17), or name its folder of programs in PGBIN; "+
			"connect this machine to the network, or name a mirror of Maven Central in WEIR_POSTGRES_REPOSITORY; "+
			"name a server that runs in DATABASE_URL", notFound, err)
	}
	return bin, nil
}

func start(ctx context.Context, bin string, o *options) (_ *Server, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	user, err := unprivileged()
	if err != nil {
		return nil, err
	}
	root, err := os.MkdirTemp("", "weir-postgres-")
	if err != nil {
		return nil, fmt.Errorf("pgserver: %w", err)
	}
	password := rand.Text()
	if err := user.own(root, password); err != nil {
		_ = os.RemoveAll(root)
		return nil, err
	}
	s := &Server{bin: bin, root: root}
	if s.supervisor, err = supervise(user, root, bin, o.args()); err != nil {
		_ = os.RemoveAll(root)
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop())
		}
	}()

	// Another process may take the port between our finding it free and the server's taking it.
	for attempt := 1; ; attempt++ {
		if s.port, err = freePort(); err != nil {
			return nil, err
		}
		s.url = (&url.URL{Scheme: "postgres", User: url.UserPassword("postgres", password),
			Host: net.JoinHostPort("127.0.0.1", fmt.Sprint(s.port)), Path: "postgres", RawQuery: "sslmode=disable"}).String()
		if err = s.launch(ctx); err == nil || attempt == 10 || !s.supervisor.portTaken() {
			return s, err
		}
	}
}

// launch starts the server and waits until it answers. That it takes our password shows that it is ours.
func (s *Server) launch(ctx context.Context) error {
	if err := s.supervisor.start(s.port); err != nil {
		return err
	}
	for {
		conn, err := pgx.Connect(ctx, s.url)
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("pgserver: the server did not answer: %w%s", err, s.supervisor.logs())
		case <-s.supervisor.exited():
			return fmt.Errorf("pgserver: the server ended as it started%s", s.supervisor.logs())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// URL is what to connect to.
func (s *Server) URL() string { return s.url }

// Bin is the path of one of Postgres' programs, pgbench say; of a server named by DATABASE_URL it is whatever PATH has.
func (s *Server) Bin(program string) string {
	if s.bin == "" {
		return program
	}
	return filepath.Join(s.bin, program)
}

// Stop ends the server and removes its folder. It is for cleaning up: data does not outlive it. Of a server named by
// DATABASE_URL it does nothing. It may be called more than once.
func (s *Server) Stop() error {
	if s.supervisor == nil {
		return nil
	}
	if err := s.supervisor.end(); err != nil {
		return err
	}
	if _, err := os.Stat(s.root); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("pgserver: %s was not removed", s.root)
	}
	return nil
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("pgserver: no free port: %w", err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port, nil
}
