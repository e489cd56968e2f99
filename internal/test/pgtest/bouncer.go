package pgtest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Bouncer starts a PgBouncer in transaction mode with two server connections, and returns a URL
// through it.
func Bouncer(t testing.TB, pool *pgxpool.Pool) string {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		program, err = exec.LookPath("/usr/sbin/pgbouncer")
	}
	if err != nil {
		fmt.Printf("%s: skipped: pgbouncer is not installed (Debian: apt-get install pgbouncer)\n",
			t.Name())
		t.Skip("skipped: pgbouncer is not installed (Debian: apt-get install pgbouncer)")
	}
	dir, err := os.MkdirTemp("", "weir-pgbouncer-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for try := 1; ; try++ {
		url, said := bounce(t, pool, program, filepath.Join(dir, "pgbouncer.ini"))
		if url != "" {
			return url
		}
		if try == 10 {
			t.Fatalf("pgbouncer has ended: %s", said)
		}
	}
}

// bounce starts a PgBouncer on a port that was free a moment before. If it ends, as another process
// may have the port by now, bounce returns what it said.
func bounce(t testing.TB, pool *pgxpool.Pool, program, file string) (url, said string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	_ = l.Close()

	server := pool.Config().ConnConfig
	password := ""
	if server.Password != "" { // PgBouncer takes no empty one
		password = fmt.Sprintf(" password='%s'", server.Password)
	}
	ini := fmt.Sprintf(`[databases]
weir = host=%s port=%d dbname=%s user=%s%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 2
`, server.Host, server.Port, server.Database, server.User, password, port)
	if err := os.WriteFile(file, []byte(ini), 0o644); err != nil {
		t.Fatal(err)
	}
	args := []string{file}
	if os.Geteuid() == 0 {
		args = []string{"-u", "nobody", file} // it refuses root, too
	}
	cmd := exec.CommandContext(t.Context(), program, args...) // killed when the test ends
	var log strings.Builder
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	url = fmt.Sprintf("postgres://anyone@127.0.0.1:%d/weir?sslmode=disable", port)
	for deadline := time.Now().Add(patience()); ; {
		err := connects(t.Context(), url)
		select {
		case <-ended:
			return "", log.String()
		case <-time.After(10 * time.Millisecond):
		}
		if err == nil {
			return url, ""
		}
		if time.Now().After(deadline) {
			t.Fatalf("pgbouncer does not answer: %v", err)
		}
	}
}

// connects is an error if nothing takes connections there, or what does says nothing.
func connects(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}
