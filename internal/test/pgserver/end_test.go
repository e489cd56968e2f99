//go:build unix

package pgserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// holderEnv makes the test binary a process that holds a server; its value says how it ends.
const holderEnv = "WEIR_TEST_HOLDER"

// hold starts a server, says where it is, and ends or waits to be ended.
func hold(end string) {
	s, err := Start(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	pid, _ := s.supervisor.server()
	fmt.Println(pid, s.root)
	switch end {
	case "return":
	case "stop":
		if err := s.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case "panic":
		panic("on purpose")
	default:
		<-time.After(time.Minute)
	}
}

// holder returns the command of a process group that holds a server.
func holder(binary, end string, env ...string) *exec.Cmd {
	cmd := exec.Command(binary)
	cmd.Dir = "/"
	cmd.Env = append(append(os.Environ(), holderEnv+"="+end), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

// held starts a holder and returns the server's process and folder.
func held(t *testing.T, cmd *exec.Cmd) (pid int, root string) {
	t.Helper()
	var problem bytes.Buffer
	cmd.Stderr = &problem
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fscan(out, &pid, &root); err != nil {
		_ = cmd.Wait()
		t.Fatalf("%v: %s", err, &problem)
	}
	return pid, root
}

func TestNothingIsLeftHoweverTheProcessEnds(t *testing.T) {
	t.Parallel()
	ours(t)
	for _, end := range []string{"return", "stop", "panic"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			cmd := holder(os.Args[0], end)
			pid, root := held(t, cmd)
			if err := cmd.Wait(); (err != nil) != (end == "panic") {
				t.Error(err)
			}
			gone(t, pid, root)
		})
	}
	for name, signal := range map[string]syscall.Signal{"Ctrl-C": syscall.SIGINT,
		"SIGTERM": syscall.SIGTERM, "SIGKILL": syscall.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := holder(os.Args[0], "wait")
			pid, root := held(t, cmd)
			// to the whole group, as a terminal sends it
			if err := syscall.Kill(-cmd.Process.Pid, signal); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			gone(t, pid, root)
		})
	}
}

// The process may end before there is a server: then there must never be one.
func TestNothingIsLeftIfTheProcessEndsWhileTheServerStarts(t *testing.T) {
	t.Parallel()
	ours(t)
	for _, stage := range []string{"initdb.log", "initialized", "server.log"} {
		t.Run(stage, func(t *testing.T) {
			t.Parallel()
			tmp := shared(t)
			cmd := holder(os.Args[0], "wait", "TMPDIR="+tmp)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			until(t, "there is "+stage, func() bool {
				found, _ := filepath.Glob(filepath.Join(tmp, "*", stage))
				return len(found) > 0
			})
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			until(t, tmp+" is empty, and no process works there", func() bool {
				left, err := os.ReadDir(tmp)
				if err != nil {
					t.Fatal(err)
				}
				return len(left) == 0 && !strings.Contains(processes(t), tmp)
			})
		})
	}
}

func processes(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("ps", "-A", "-o", "args=").Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// shared makes a folder that every user can work in, which those of t.TempDir are not.
func shared(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "weir-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	return dir
}

func asRoot(t *testing.T) *identity {
	t.Helper()
	ours(t)
	if os.Geteuid() != 0 {
		t.Skip("skipped: not root, so every other test runs as a normal user")
	}
	user, err := unprivileged()
	if err != nil {
		t.Fatal(err)
	}
	return user
}

func TestAsANormalUser(t *testing.T) {
	t.Parallel()
	user := asRoot(t)
	// go test puts the test binary where only root can go
	binary := filepath.Join(shared(t), "holder")
	b, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(binary, b, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := holder(binary, "stop")
	cmd.SysProcAttr.Credential = user.credential()
	pid, root := held(t, cmd)
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	gone(t, pid, root)
}

// TMPDIR may be root's alone: in there, the server's user could not work, nor remove its folder.
func TestRootWithATemporaryFolderOfItsOwn(t *testing.T) {
	t.Parallel()
	asRoot(t)
	for _, mode := range []os.FileMode{0o700, 0o755} {
		tmp := shared(t)
		if err := os.Chmod(tmp, mode); err != nil {
			t.Fatal(err)
		}
		cmd := holder(os.Args[0], "stop", "TMPDIR="+tmp)
		pid, root := held(t, cmd)
		if err := cmd.Wait(); err != nil {
			t.Errorf("TMPDIR with mode %v: %v", mode, err)
		}
		if filepath.Dir(root) != "/tmp" {
			t.Errorf("TMPDIR with mode %v: the folder is %s, want one in /tmp", mode, root)
		}
		gone(t, pid, root)
		if err := usable(tmp); err == nil || !strings.Contains(err.Error(), tmp) {
			t.Errorf("got %v, want that %s does not do", err, tmp)
		}
	}
	if err := usable("/no/such/folder"); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}
