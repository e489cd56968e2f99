//go:build unix

package pgserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if end := os.Getenv(holderEnv); end != "" {
		hold(end)
		return
	}
	goleak.VerifyTestMain(m)
}

func ours(t *testing.T) {
	t.Helper()
	if os.Getenv("DATABASE_URL") != "" {
		t.Skip("skipped: DATABASE_URL is set, so there is no server of our own")
	}
}

// running starts a server that is stopped when the test ends.
func running(t *testing.T, opts ...Option) *Server {
	t.Helper()
	ours(t)
	s, err := Start(t.Context(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	const hung = 2*timeout + time.Minute // a server may take timeout to start, and again to end
	deadline := time.After(hung)
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("not within %v: %s", hung, what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// gone waits until neither the process nor the folder is there.
func gone(t *testing.T, pid int, root string) {
	t.Helper()
	until(t, root+" is removed and its server ended", func() bool { return removed(root) && ended(pid) })
}

func removed(root string) bool {
	_, err := os.Stat(root)
	return errors.Is(err, os.ErrNotExist)
}

func ended(pid int) bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

func query(t *testing.T, s *Server, sql string) string {
	t.Helper()
	v, err := ask(t.Context(), s, sql)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func ask(ctx context.Context, s *Server, sql string) (v string, err error) {
	conn, err := pgx.Connect(ctx, s.URL())
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(context.Background()) }()
	return v, conn.QueryRow(ctx, sql).Scan(&v)
}

// Otherwise a client that tries to connect to a server that was killed can be lent the server's port.
func TestPortsOfServersAreNotLentToConnections(t *testing.T) {
	t.Parallel()
	var first, last int
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		t.Skip("skipped: only Linux says which ports it lends")
	}
	if _, err := fmt.Sscan(string(text), &first, &last); err != nil {
		t.Fatal(err)
	}
	if first <= lowestPort {
		t.Skip("skipped: the system lends nearly all ports")
	}
	for range 20 {
		port, claim, err := freePort()
		if err != nil || port >= first && port <= last {
			t.Fatalf("got port %d, %v; the system lends %d to %d", port, err, first, last)
		}
		_ = claim.Close()
	}
}

// Otherwise another server can take the port of one that was killed, and is about to come back.
func TestThePortOfAServerThatIsDownIsNotGivenToAnother(t *testing.T) {
	t.Parallel()
	s := running(t)
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", s.port)
	if claim, err := net.ListenPacket("udp", address); err == nil {
		t.Errorf("nobody has claimed %s: %v", address, claim.Close())
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	until(t, "the port is free again", func() bool {
		claim, err := net.ListenPacket("udp", address)
		return err == nil && claim.Close() == nil
	})
}

func TestTenAtOnceDoNotCollide(t *testing.T) {
	t.Parallel()
	ours(t)
	var wg, started sync.WaitGroup // none ends before all have started: it could leave its port to another
	started.Add(10)
	var mu sync.Mutex
	ports := map[string]bool{}
	for range 10 {
		wg.Go(func() {
			s, err := Start(t.Context())
			started.Done()
			if err != nil {
				t.Error(err)
				return
			}
			pid, _ := s.supervisor.server()
			if dir, err := ask(t.Context(), s, "SHOW data_directory"); err != nil ||
				dir != filepath.Join(s.root, "data") {
				t.Errorf("the server at %s keeps its data in %s, not in %s (%v)", s.URL(), dir, s.root, err)
			}
			port, err := ask(t.Context(), s, "SHOW port")
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			ports[port] = true
			mu.Unlock()
			started.Wait()
			for range 2 {
				if err := s.Stop(); err != nil {
					t.Error(err)
				}
			}
			if !removed(s.root) || !ended(pid) { // at once
				t.Errorf("Stop returned before process %d had ended and %s was removed", pid, s.root)
			}
		})
	}
	wg.Wait()
	if len(ports) != 10 {
		t.Errorf("10 servers had %d ports", len(ports))
	}
}

func TestTheServerIsPrivate(t *testing.T) {
	t.Parallel()
	s := running(t, Setting("work_mem", "7MB"), Setting("max_connections", "17"))
	for name, want := range map[string]string{
		"listen_addresses":        "127.0.0.1",
		"unix_socket_directories": "",
		"work_mem":                "7MB",
		"max_connections":         "17", // over ours
		"shared_buffers":          "128MB",
		"fsync":                   "off",
		"synchronous_commit":      "on",
		"server_encoding":         "UTF8",
	} {
		if got := query(t, s, "SHOW "+name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	stranger, err := pgx.ParseConfig(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	stranger.Password = "guess"
	if conn, err := pgx.ConnectConfig(t.Context(), stranger); err == nil {
		_ = conn.Close(t.Context())
		t.Error("it takes any password")
	}
	if info, err := os.Stat(s.root); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("its folder is open to others: %v, %v", info.Mode(), err)
	}
}

// Where another process has the port, it may accept whatever it is told, and answer first.
func TestAnotherServerOnThePortIsNotTakenForOurs(t *testing.T) {
	t.Parallel()
	s, other := running(t), running(t)
	mistaken := &Server{url: other.url, root: s.root, port: other.port}
	until(t, "it says that the data is in "+other.root, func() bool { // a busy machine may not answer in time
		err := mistaken.answers(t.Context())
		if err == nil {
			t.Fatal("it was taken for ours")
		}
		return strings.Contains(err.Error(), other.root)
	})
}

func TestAFailedStartSaysWhyAndLeavesNothing(t *testing.T) {
	t.Parallel()
	ours(t)
	user, err := unprivileged()
	if err != nil {
		t.Fatal(err)
	}
	// seen only by its error, hence by a setting that nobody else has
	s, err := Start(t.Context(), Setting("weir_no_such_setting", "1"))
	if err == nil {
		t.Fatal("started", s.Stop())
	}
	for _, want := range []string{"pgserver: ", "weir_no_such_setting", "server.log"} {
		if strings.Count(err.Error(), want) == 0 {
			t.Errorf("%q does not say %q", err, want)
		}
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Start(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that it was cancelled", err)
	}

	// through the parts, to know the folder
	root, err := user.folder("secret", true)
	if err != nil {
		t.Fatal(err)
	}
	sup, err := supervise(user, root, "/no/such/folder", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := sup.start(t.Context(), 1); err == nil || !strings.Contains(err.Error(), "/no/such/folder/initdb") {
		t.Errorf("got %v, want that there is no initdb", err)
	}
	if err := sup.end(); err != nil {
		t.Error(err)
	}
	if !removed(root) {
		t.Errorf("%s is left", root)
	}
}

// Not parallel, as it sets TMPDIR.
func TestWhereTheFolderGoes(t *testing.T) {
	if dir := inMemory(1 << 62); dir != "" {
		t.Errorf("%s is said to have room for more than any machine has", dir)
	}
	var nobody *identity
	named := t.TempDir()
	memory := cmp.Or(inMemory(plenty), "/tmp")
	for _, c := range []struct {
		name, tmpdir string
		durable      bool
		want         string
	}{
		{"in memory where there is room", "", false, memory},
		{"a durable one on the disk", "", true, "/tmp"},
		{"where TMPDIR says", named, false, named},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("TMPDIR", c.tmpdir)
			got, err := nobody.parent(c.durable)
			if err != nil || got != c.want {
				t.Errorf("got %q, %v, want %q", got, err, c.want)
			}
		})
	}
}

func TestBin(t *testing.T) {
	t.Parallel()
	if got := (&Server{bin: "/x/bin"}).Bin("pgbench"); got != "/x/bin/pgbench" {
		t.Error(got)
	}
	if got := (&Server{url: "postgres://elsewhere"}).Bin("pgbench"); got != "pgbench" {
		t.Error(got)
	}
}

func TestTheServerOfDatabaseURLIsNotTouched(t *testing.T) {
	const given = "postgres://someone@127.0.0.1:1/db"
	t.Setenv("DATABASE_URL", given)
	s, err := Start(t.Context())
	if err != nil || s.URL() != given {
		t.Fatalf("got %v, %v", s, err)
	}
	for name, end := range map[string]func() error{
		"Kill":     s.Kill,
		"Shutdown": func() error { return s.Shutdown("fast") },
		"Restart":  func() error { return s.Restart(t.Context()) },
	} {
		if err := end(); !errors.Is(err, errForeign) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	t.Setenv("DATABASE_URL", "postgres://[")
	if _, err := Start(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "pgserver: DATABASE_URL: ") {
		t.Error(fmt.Sprint(err))
	}
}
