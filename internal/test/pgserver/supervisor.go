//go:build unix

package pgserver

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

//go:embed supervise.sh
var script string

// supervisor is our end of supervise.sh.
type supervisor struct {
	root    string
	input   io.WriteCloser
	answers chan error    // to each start command: nil, or why there is no server
	done    chan struct{} // closed when the script has ended

	mu     sync.Mutex
	pid    int           // of the server, 0 if none runs
	exited chan struct{} // closed when the server that was started last has ended
}

// supervise starts the script in a session of its own, so that Ctrl-C on our terminal reaches only
// us.
func supervise(
	user *identity, root, bin string, args []string, env ...string,
) (*supervisor, error) {
	cmd := exec.Command(
		"/bin/sh", append([]string{"-c", script, "weir-supervisor", root, bin}, args...)...,
	)
	cmd.Dir = root
	// PG... would speak to the server, too; and what it says must be understood (see portTaken)
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "PG")
	}), "LC_ALL=C")
	cmd.Env = append(cmd.Env, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: user.credential()}
	input, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a supervisor%s: %w", user.as(), err)
	}
	// room for one answer nobody waits for any more
	s := &supervisor{root: root, input: input, answers: make(chan error, 1),
		done: make(chan struct{})}
	go func() {
		defer close(s.done)
		s.listen(output)
		// the script's own success says nothing: what matters is that the folder is gone
		_ = cmd.Wait()
	}()
	return s, nil
}

func (s *supervisor) listen(output io.Reader) {
	lines := bufio.NewScanner(output)
	for lines.Scan() {
		line := lines.Text()
		if reason, ok := strings.CutPrefix(line, "failed: "); ok {
			s.answer(errors.New(reason))
			continue
		}
		var pid int
		if _, err := fmt.Sscanf(line, "started %d", &pid); err == nil {
			s.mu.Lock()
			s.pid, s.exited = pid, make(chan struct{})
			s.mu.Unlock()
			s.answer(nil)
			continue
		}
		if line == "exited" {
			s.mu.Lock()
			s.pid = 0
			close(s.exited)
			s.mu.Unlock()
		}
	}
}

func (s *supervisor) answer(err error) {
	select {
	case <-s.answers: // to a command whose sender has given up
	default:
	}
	s.answers <- err
}

// server returns the process id of the server, 0 if it does not run, and a channel that is closed
// when it has ended.
func (s *supervisor) server() (int, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pid, s.exited
}

// start tells the script to start the server, and to make the cluster first if there is none.
func (s *supervisor) start(ctx context.Context, port int) error {
	select {
	case <-s.answers:
	default:
	}
	if err := s.tell(fmt.Sprintf("start %d", port)); err != nil {
		return err
	}
	select {
	case err := <-s.answers:
		if err != nil {
			return fmt.Errorf("%w%s", err, s.logs())
		}
		return nil
	case <-s.done:
		return fmt.Errorf("the supervisor has ended%s", s.logs())
	case <-ctx.Done():
		return fmt.Errorf("the server has not been started: %w%s", ctx.Err(), s.logs())
	}
}

func (s *supervisor) tell(command string) error {
	if _, err := io.WriteString(s.input, command+"\n"); err != nil {
		return fmt.Errorf("the server has been stopped for good: %w", err)
	}
	return nil
}

// end closes the pipe and waits for what the script then does.
func (s *supervisor) end() error {
	_ = s.input.Close()
	select {
	case <-s.done:
	case <-time.After(timeout):
		return fmt.Errorf("the server did not stop within %v%s", timeout, s.logs())
	}
	if _, err := os.Stat(s.root); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s was not removed", s.root)
	}
	return nil
}

// portTaken reports whether the server ended because another process has its port.
func (s *supervisor) portTaken() bool {
	return strings.Contains(s.logs(), "Address already in use")
}

// logs are the last lines that initdb and the server wrote, for an error's text.
func (s *supervisor) logs() string {
	var text string
	for _, file := range []string{"initdb.log", "server.log"} {
		b, err := os.ReadFile(filepath.Join(s.root, file))
		if _, made := os.Stat(filepath.Join(s.root, "initialized")); file == "initdb.log" &&
			made == nil {
			continue // it did its part
		}
		if err != nil || len(b) == 0 {
			continue
		}
		lines := strings.Split(strings.TrimSpace(string(b)), "\n")
		text += fmt.Sprintf("\n%s:\n  %s", file, strings.Join(lines[max(0, len(lines)-8):], "\n  "))
	}
	return text
}
