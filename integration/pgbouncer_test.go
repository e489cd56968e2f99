package integration

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

// bouncer starts a PgBouncer in transaction mode with two server connections, and returns a URL through it.
func bouncer(t *testing.T, pool *pgxpool.Pool) string {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		program, err = exec.LookPath("/usr/sbin/pgbouncer")
	}
	if err != nil {
		t.Skip("skipped: pgbouncer is not installed (on Debian: apt-get install pgbouncer)")
	}
	dir, err := os.MkdirTemp("", "weir-pgbouncer-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	_ = l.Close()

	server := pool.Config().ConnConfig
	ini := fmt.Sprintf(`[databases]
weir = host=%s port=%d dbname=%s user=%s password='%s'
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 2
`, server.Host, server.Port, server.Database, server.User, server.Password, port)
	file := filepath.Join(dir, "pgbouncer.ini")
	if err := os.WriteFile(file, []byte(ini), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
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
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	url := fmt.Sprintf("postgres://anyone@127.0.0.1:%d/weir?sslmode=disable", port)
	until(t, func() bool {
		conn, err := pgx.Connect(t.Context(), url)
		if err != nil {
			return false
		}
		return conn.Close(t.Context()) == nil
	})
	return url
}

func TestBehindPgBouncer(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
		t.Run(strings.ReplaceAll(mode.String(), " ", ""), func(t *testing.T) {
			t.Parallel()
			direct := pgtest.Pool(t)
			cfg, err := pgxpool.ParseConfig(bouncer(t, direct))
			if err != nil {
				t.Fatal(err)
			}
			cfg.ConnConfig.DefaultQueryExecMode = mode
			pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			// the pooler hands out sessions of anybody's search_path: the schema has to be named
			mine := direct.Config().ConnConfig.RuntimeParams["search_path"]
			everyVerb(t, limiter(t, ratelimit.Config{Schema: mine}), pool)
		})
	}
}
