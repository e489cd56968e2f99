//go:build unix

package pgserver

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// For tests of faults: ways to end the server other than Stop, after which Restart brings it back
// with what it had committed. None of them works on a server named by DATABASE_URL, which is not
// ours to stop.

var (
	errForeign = errors.New("pgserver: the server of DATABASE_URL is not ours to stop")
	errDown    = errors.New("pgserver: the server does not run")
)

// Kill ends the server and all of its processes by SIGKILL, as a crash would. It returns when they
// have ended.
func (s *Server) Kill() error {
	if s.supervisor == nil {
		return errForeign
	}
	pid, _ := s.supervisor.server()
	if pid == 0 {
		return errDown
	}
	// Frozen first: then it has no further children, and the ids of those it has stay theirs, as
	// only it can reap them.
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return fmt.Errorf("pgserver: freeze process %d: %w", pid, err)
	}
	if err := killChildren(pid); err != nil {
		return errors.Join(err, syscall.Kill(pid, syscall.SIGCONT))
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("pgserver: kill process %d: %w", pid, err)
	}
	return s.ended()
}

// killChildren returns when they are dead, and the parent, which was told to freeze, has done so: on
// a busy machine it may have been in the middle of a fork. As long as one child lives, no server
// starts on the same data.
func killChildren(parent int) error {
	for deadline := time.Now().Add(timeout); ; {
		children, forks, err := living(parent)
		if err != nil || len(children) == 0 && !forks {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("pgserver: process %d does not freeze, or processes %v outlive SIGKILL",
				parent, children)
		}
		for _, child := range children {
			// One that ended by itself may have been reaped before the parent froze.
			err := syscall.Kill(child, syscall.SIGKILL)
			if err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("pgserver: kill process %d: %w", child, err)
			}
		}
	}
}

// Shutdown ends the server in the given mode: "fast", which rolls back what is under way, or
// "immediate", which is a crash that spares the shared memory. It returns when the server has
// ended.
func (s *Server) Shutdown(mode string) error {
	if s.supervisor == nil {
		return errForeign
	}
	signal, ok := map[string]string{"fast": "INT", "immediate": "QUIT"}[mode]
	if !ok {
		return fmt.Errorf("pgserver: no shutdown mode %q: want fast or immediate", mode)
	}
	if pid, _ := s.supervisor.server(); pid == 0 {
		return errDown
	}
	if err := s.supervisor.tell("stop " + signal); err != nil {
		return fmt.Errorf("pgserver: %w", err)
	}
	return s.ended()
}

// Restart starts the server again on its data and its port; if it runs it is shut down first, fast.
func (s *Server) Restart(ctx context.Context) error {
	if s.supervisor == nil {
		return errForeign
	}
	if pid, _ := s.supervisor.server(); pid != 0 {
		if err := s.Shutdown("fast"); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("pgserver: restart: %w", err)
		}
		err := s.launch(ctx)
		if err == nil {
			return nil
		}
		if !errors.Is(err, errPortTaken) {
			return fmt.Errorf("pgserver: restart: %w", err)
		}
		// Another process may have it for a while.
		select {
		case <-ctx.Done():
			return fmt.Errorf("pgserver: restart: %w (%w)", err, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// ended waits until the server that was told to end has ended.
func (s *Server) ended() error {
	_, exited := s.supervisor.server()
	select {
	case <-exited:
		return nil
	case <-time.After(timeout):
		return fmt.Errorf("pgserver: the server did not end within %v%s", timeout,
			s.supervisor.logs())
	}
}

// living returns the children of a process, except those that have ended and wait to be reaped, and
// whether it may have more: it is neither frozen nor dead.
func living(parent int) (pids []int, forks bool, _ error) {
	out, err := exec.Command("ps", "-A", "-o", "pid=,ppid=,stat=").Output()
	if err != nil {
		return nil, false, fmt.Errorf("pgserver: ps: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		var pid, ppid int
		var state string
		if _, err := fmt.Sscan(line, &pid, &ppid, &state); err != nil {
			return nil, false, fmt.Errorf("pgserver: ps said %q: %w", line, err)
		}
		if pid == parent {
			forks = !strings.ContainsAny(state[:1], "TZ")
		}
		if ppid == parent && !strings.HasPrefix(state, "Z") {
			pids = append(pids, pid)
		}
	}
	return pids, forks, nil
}
