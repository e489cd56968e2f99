//go:build unix

package pgserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
)

// holderEnv makes the test binary a process that holds a server; its value says how it ends.
const holderEnv = "WEIR_TEST_HOLDER"

func TestMain(m *testing.M) {
	if end := os.Getenv(holderEnv); end != "" {
		hold(end)
		return
	}
	goleak.VerifyTestMain(m)
}

// hold starts a server, says where it is, and ends or waits to be ended.
func hold(end string) {
	s, err := Start(context.Background())
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	pid, err := s.pid()
	fmt.Println(pid, s.root, err)
	switch end {
	case "return":
	case "stop":
		if err := s.Stop(); err != nil {
			fmt.Println("error:", err)
		}
	case "panic":
		panic("on purpose")
	default:
		<-time.After(time.Minute)
	}
}

func ours(t *testing.T) {
	t.Helper()
	if os.Getenv("DATABASE_URL") != "" {
		t.Skip("skipped: DATABASE_URL is set, so there is no server of our own")
	}
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("not within a minute: %s", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// gone waits until neither the process nor the folder is there.
func gone(t *testing.T, pid int, root string) {
	t.Helper()
	until(t, root+" is removed and its server ended", func() bool {
		_, err := os.Stat(root)
		return errors.Is(err, os.ErrNotExist) && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
	})
}

func query(t *testing.T, s *Server, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	var v string
	if err := conn.QueryRow(t.Context(), sql).Scan(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestTenAtOnceDoNotCollide(t *testing.T) {
	t.Parallel()
	ours(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen := map[string]bool{}
	for range 10 {
		wg.Go(func() {
			s, err := Start(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			pid, err := s.pid()
			if err != nil {
				t.Error(err)
			}
			if dir := query(t, s, "SHOW data_directory"); dir != filepath.Join(s.root, "data") {
				t.Errorf("the server at %s keeps its data in %s, not in %s", s.URL(), dir, s.root)
			}
			mu.Lock()
			seen[query(t, s, "SHOW port")] = true
			mu.Unlock()
			for range 2 {
				if err := s.Stop(); err != nil {
					t.Error(err)
				}
			}
			gone(t, pid, s.root)
		})
	}
	wg.Wait()
	if len(seen) != 10 {
		t.Errorf("10 servers had %d ports", len(seen))
	}
}

func holder(t *testing.T, end string) (*exec.Cmd, int, string) {
	t.Helper()
	return holderOf(t, os.Args[0], end, nil)
}

func holderOf(t *testing.T, binary, end string, cred *syscall.Credential) (*exec.Cmd, int, string) {
	t.Helper()
	cmd := exec.Command(binary)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), holderEnv+"="+end)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: cred}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	var root string
	if _, err := fmt.Fscan(out, &pid, &root); err != nil {
		t.Fatal(err)
	}
	return cmd, pid, root
}

func TestNothingIsLeftHoweverTheProcessEnds(t *testing.T) {
	t.Parallel()
	ours(t)
	for _, end := range []string{"return", "stop", "panic"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			cmd, pid, root := holder(t, end)
			_ = cmd.Wait() // a panic is no success
			gone(t, pid, root)
		})
	}
	for name, signal := range map[string]syscall.Signal{"Ctrl-C": syscall.SIGINT, "SIGTERM": syscall.SIGTERM, "SIGKILL": syscall.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd, pid, root := holder(t, "wait")
			// to the whole group, as a terminal sends it
			if err := syscall.Kill(-cmd.Process.Pid, signal); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			gone(t, pid, root)
		})
	}
}

func TestAsANormalUser(t *testing.T) {
	t.Parallel()
	ours(t)
	if os.Geteuid() != 0 {
		t.Skip("skipped: not root, so every other test runs as a normal user")
	}
	nobody, err := unprivileged()
	if err != nil {
		t.Fatal(err)
	}
	// the test binary stands where only root can go
	dir, err := os.MkdirTemp("", "weir-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	binary := filepath.Join(dir, "holder")
	b, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(binary, b, 0o755)); err != nil {
		t.Fatal(err)
	}
	cmd, pid, root := holderOf(t, binary, "stop", nobody.credential())
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	gone(t, pid, root)
}

func TestWhatWasCommittedOutlivesEveryEndOfTheServer(t *testing.T) {
	t.Parallel()
	ours(t)
	s, err := Start(t.Context(), Durable(), Setting("work_mem", "7MB"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	}()
	if got := query(t, s, "SHOW work_mem"); got != "7MB" {
		t.Errorf("work_mem is %s", got)
	}
	if got := query(t, s, "SHOW fsync"); got != "on" {
		t.Errorf("fsync is %s", got)
	}
	conn, err := pgx.Connect(t.Context(), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "CREATE TABLE kept AS SELECT '0' AS n"); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, end := range []func() error{
		s.Kill,
		func() error { return s.Shutdown("immediate") },
		func() error { return s.Shutdown("fast") },
	} {
		query(t, s, fmt.Sprintf("UPDATE kept SET n = '%d' RETURNING n", i+1))
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if _, err := pgx.Connect(t.Context(), s.URL()); err == nil {
			t.Fatal("the server still answers")
		}
		if err := s.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := query(t, s, "SELECT n FROM kept"); got != fmt.Sprint(i+1) {
			t.Errorf("after end %d there is %q", i, got)
		}
	}
	if err := s.Shutdown("smart"); err == nil || !strings.Contains(err.Error(), "smart") {
		t.Errorf("an unknown mode: %v", err)
	}
}
