// Package redisserver starts a Redis server for a benchmark: on loopback, with a password, without
// persistence, and for no longer than this process.
package redisserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// ErrNotFound says that there is no Redis server on this machine.
var ErrNotFound = errors.New("redisserver: no redis-server on PATH: make redis installs it")

const patience = 30 * time.Second

// Server is a running server.
type Server struct {
	options redis.Options
	dir     string
	input   io.Closer
	done    chan struct{} // closed when the supervisor has ended
}

// supervise runs the server for as long as standard input is open, which is also until the process
// that holds the other end has ended, and then removes its folder, $1. The file running is there
// until the server is known to have ended, so that no signal goes to a process that merely has the
// same id.
const supervise = `
trap '' INT TERM HUP PIPE
: >"$1/running"
(
	"$1/redis-server" "$1/redis.conf" >"$1/redis.log" 2>&1 </dev/null &
	echo $! >"$1/running"
	wait
	rm -f "$1/running"
) &
while read -r _; do :; done
while [ -e "$1/running" ]; do
	pid=$(cat "$1/running" 2>/dev/null)
	[ -z "$pid" ] || kill "$pid" 2>/dev/null
	sleep 0.02
done
wait
rm -rf "$1"
`

// Start starts a server, which runs until Stop.
func Start(ctx context.Context) (_ *Server, err error) {
	program, err := find()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "weir-redis-")
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	port := l.Addr().(*net.TCPAddr).Port
	_ = l.Close()
	s := &Server{dir: dir, done: make(chan struct{})}
	s.options = redis.Options{Addr: fmt.Sprintf("127.0.0.1:%d", port), Password: rand.Text()}
	config :=
		fmt.Sprintf("bind 127.0.0.1\nport %d\nrequirepass %s\ndir %s\nsave \"\"\nappendonly no\n",
			port, s.options.Password, dir)
	if err := errors.Join(
		os.WriteFile(filepath.Join(dir, "redis.conf"), []byte(config), 0o600),
		// the name by which it is called says what it is to do
		os.Symlink(program, filepath.Join(dir, "redis-server")),
	); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	cmd := exec.Command("/bin/sh", "-c", supervise, "weir-redis", dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // Ctrl-C on our terminal reaches only us
	input, err := cmd.StdinPipe()
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	s.input = input
	go func() {
		defer close(s.done)
		_ = cmd.Wait() // what matters is that the folder is gone
	}()
	if err := s.answers(ctx); err != nil {
		log, _ := os.ReadFile(filepath.Join(dir, "redis.log"))
		return nil, errors.Join(fmt.Errorf("redisserver: %w\n%s", err, log), s.Stop())
	}
	return s, nil
}

// find is the server's program. Debian's redis-tools has it under the name of another of its jobs,
// and starts no service.
func find() (string, error) {
	for _, name := range []string{"redis-server", "redis-check-rdb"} {
		if program, err := exec.LookPath(name); err == nil {
			return filepath.EvalSymlinks(program)
		}
	}
	return "", ErrNotFound
}

// answers waits until the server does. The password tells it from another process that has taken
// the port.
func (s *Server) answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c := s.Client(1)
	defer func() { _ = c.Close() }()
	for {
		err := c.Ping(ctx).Err()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Client returns a client with a pool of at most so many connections, which the caller closes.
func (s *Server) Client(conns int) *redis.Client {
	o := s.options
	o.PoolSize = conns
	return redis.NewClient(&o)
}

// Stop ends the server and removes its folder; it returns when both are gone.
func (s *Server) Stop() error {
	_ = s.input.Close()
	select {
	case <-s.done:
	case <-time.After(patience):
		return fmt.Errorf("redisserver: the server did not stop within %v", patience)
	}
	if _, err := os.Stat(s.dir); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("redisserver: %s was not removed", s.dir)
	}
	return nil
}
