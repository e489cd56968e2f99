//go:build unix

package pgserver

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// For tests of faults: ways to end the server other than Stop, after which Restart brings it back with what it had
// committed.

var errForeign = errors.New("pgserver: the server of DATABASE_URL is not ours to stop")

// Kill ends the server and all of its processes by SIGKILL, as a crash of the machine would.
func (s *Server) Kill() error {
	pid, err := s.pid()
	if err != nil {
		return err
	}
	children, err := childrenOf(pid)
	if err != nil {
		return err
	}
	for _, p := range append([]int{pid}, children...) {
		if err := syscall.Kill(p, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("pgserver: kill: %w", err)
		}
	}
	return s.ended()
}

// Shutdown ends the server in the given mode: "fast", which rolls back what runs, or "immediate", which is a crash.
func (s *Server) Shutdown(mode string) error {
	if s.supervisor == nil {
		return errForeign
	}
	signal, ok := map[string]string{"fast": "INT", "immediate": "QUIT"}[mode]
	if !ok {
		return fmt.Errorf("pgserver: no shutdown mode %q: want fast or immediate", mode)
	}
	if err := s.supervisor.tell("stop " + signal); err != nil {
		return err
	}
	return s.ended()
}

// Restart starts the server again on its data and its port.
func (s *Server) Restart(ctx context.Context) error {
	if s.supervisor == nil {
		return errForeign
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return s.launch(ctx)
}

func (s *Server) ended() error {
	select {
	case <-s.supervisor.exited():
		return nil
	case <-time.After(startTimeout):
		return fmt.Errorf("pgserver: the server did not end within %v%s", startTimeout, s.supervisor.logs())
	}
}

// pid is the server's main process, as the server itself says.
func (s *Server) pid() (int, error) {
	if s.supervisor == nil {
		return 0, errForeign
	}
	return postmaster(s.root)
}

func childrenOf(pid int) ([]int, error) {
	out, err := exec.Command("ps", "-A", "-o", "pid=,ppid=").Output()
	if err != nil {
		return nil, fmt.Errorf("pgserver: ps: %w", err)
	}
	var pids []int
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) == 2 && f[1] == strconv.Itoa(pid) {
			p, err := strconv.Atoi(f[0])
			if err != nil {
				return nil, fmt.Errorf("pgserver: ps said %q", line)
			}
			pids = append(pids, p)
		}
	}
	return pids, nil
}
