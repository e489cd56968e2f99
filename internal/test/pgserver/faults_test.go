//go:build unix

package pgserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func TestWhatWasCommittedOutlivesEveryEndOfTheServer(t *testing.T) {
	t.Parallel()
	s := running(t, Durable())
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
		func() error { return nil }, // Restart does it
	} {
		busy, err := pgx.Connect(t.Context(), s.URL()) // which nothing waits for
		if err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprint(i + 1)
		query(t, s, "UPDATE kept SET n = '"+want+"' RETURNING n")
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if err := s.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := busy.Ping(t.Context()); err == nil {
			t.Error("a connection has outlived the server")
		}
		_ = busy.Close(t.Context())
		if got := query(t, s, "SELECT n FROM kept"); got != want {
			t.Errorf("after end %d there is %q", i, got)
		}
	}
}

func TestAnEndedServerCannotBeEndedAgain(t *testing.T) {
	t.Parallel()
	s := running(t)
	if err := s.Shutdown("smart"); err == nil || !strings.Contains(err.Error(), "smart") {
		t.Errorf("an unknown mode: %v", err)
	}
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	// its process id may be another's by now
	if err := s.Kill(); !errors.Is(err, errDown) {
		t.Errorf("Kill again: %v", err)
	}
	if err := s.Shutdown("fast"); !errors.Is(err, errDown) {
		t.Errorf("Shutdown after Kill: %v", err)
	}
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	if err := s.Restart(t.Context()); err == nil || !strings.Contains(err.Error(), "stopped for good") {
		t.Errorf("Restart after Stop: %v", err)
	}
}

func TestRestartWaitsForThePort(t *testing.T) {
	t.Parallel()
	s := running(t)
	if err := s.Shutdown("immediate"); err != nil {
		t.Fatal(err)
	}
	squatter, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", s.port))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = squatter.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Restart(ctx); err == nil {
		t.Error("restarted under a cancelled context")
	}
	restarted := make(chan error)
	go func() { restarted <- s.Restart(t.Context()) }()
	until(t, "the server finds its port taken", func() bool { return s.supervisor.portTaken() })
	if err := squatter.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-restarted; err != nil {
		t.Fatal(err)
	}
	query(t, s, "SELECT 'here'")
}

// A process that was told to freeze may be in the middle of a fork, and then has one more child.
func TestAProcessHasFrozenBeforeItsLastChildIsLookedFor(t *testing.T) {
	t.Parallel()
	parent := exec.Command("sleep", "600")
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = parent.Process.Kill()
		_ = parent.Wait()
	}()
	killed := make(chan error, 1)
	go func() { killed <- killChildren(parent.Process.Pid) }()
	select {
	case err := <-killed:
		t.Errorf("the children of a process that runs are said to be dead: %v", err)
		return
	case <-time.After(300 * time.Millisecond):
	}
	if err := parent.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := <-killed; err != nil {
		t.Error(err)
	}
}

// A killed server's shared memory is not in its folder, and it is never freed by itself.
func TestNoSharedMemoryIsLeftOfAKilledServer(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("skipped: only Linux lists shared memory in files")
	}
	s := running(t)
	pid, _ := s.supervisor.server()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	posix := regexp.MustCompile(`/dev/shm/PostgreSQL\.\d+`).FindString(string(maps))
	file, err := os.ReadFile(filepath.Join(s.root, "data", "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	var key, id string
	if _, err := fmt.Sscan(strings.Split(string(file), "\n")[6], &key, &id); err != nil || posix == "" {
		t.Fatalf("no shared memory: %q, %q, %v", posix, file, err)
	}
	left := func() (posixLeft, sysvLeft bool) {
		all, err := os.ReadFile("/proc/sysvipc/shm")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(all)) {
			if f := strings.Fields(line); len(f) > 1 && f[1] == id {
				sysvLeft = true
			}
		}
		return !removed(posix), sysvLeft
	}
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if p, v := left(); !p || !v {
		t.Fatalf("the test does not see shared memory: %v %v", p, v)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if p, v := left(); p || v {
		t.Errorf("left: %s: %v, segment %s: %v", posix, p, id, v)
	}
}

// A process that dies while it kills a server leaves that frozen.
func TestAFrozenServerIsStopped(t *testing.T) {
	t.Parallel()
	s := running(t)
	pid, _ := s.supervisor.server()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if err := s.Stop(); err != nil {
		t.Error(err)
	}
	if d := time.Since(start); d > timeout/2 {
		t.Errorf("it took %v", d)
	}
	gone(t, pid, s.root)
}
