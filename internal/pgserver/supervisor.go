//go:build unix

package pgserver

import (
	"bufio"
	_ "embed"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

//go:embed supervise.sh
var script string

// supervisor is our end of supervise.sh.
type supervisor struct {
	root  string
	cmd   *exec.Cmd
	input io.WriteCloser
	done  chan struct{} // closed when the script has ended

	mu     sync.Mutex
	gone   chan struct{} // closed when the server started last has ended
	events chan string
}

// supervise starts the script in a session of its own, so that Ctrl-C on our terminal reaches only us.
func supervise(user *identity, root, bin string, args []string) (*supervisor, error) {
	s := &supervisor{root: root, done: make(chan struct{}), gone: make(chan struct{}), events: make(chan string, 16)}
	s.cmd = exec.Command("/bin/sh", append([]string{"-c", script, "supervise", root, bin}, args...)...)
	s.cmd.Dir = root
	s.cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "PG") }) // they would speak to the server, too
	s.cmd.SysProcAttr = sysProcAttr(user)
	s.cmd.SysProcAttr.Setsid = true
	var err error
	if s.input, err = s.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("pgserver: %w", err)
	}
	output, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("pgserver: %w", err)
	}
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("pgserver: start a supervisor%s: %w", user.as(), err)
	}
	go s.listen(output)
	return s, nil
}

func (s *supervisor) listen(output io.Reader) {
	lines := bufio.NewScanner(output)
	for lines.Scan() {
		if lines.Text() == "exited" {
			s.mu.Lock()
			close(s.gone)
			s.mu.Unlock()
			continue
		}
		s.events <- lines.Text()
	}
	_ = s.cmd.Wait()
	close(s.done)
}

// start tells the script to start the server, and to make the cluster first if there is none.
func (s *supervisor) start(port int) error {
	s.mu.Lock()
	s.gone = make(chan struct{})
	s.mu.Unlock()
	if err := s.tell(fmt.Sprintf("start %d", port)); err != nil {
		return err
	}
	select {
	case event := <-s.events:
		if event != "started" {
			return fmt.Errorf("pgserver: %s%s", event, s.logs())
		}
		return nil
	case <-s.done:
		return fmt.Errorf("pgserver: the supervisor ended%s", s.logs())
	case <-time.After(startTimeout):
		return fmt.Errorf("pgserver: initdb took longer than %v%s", startTimeout, s.logs())
	}
}

func (s *supervisor) tell(command string) error {
	if _, err := io.WriteString(s.input, command+"\n"); err != nil {
		return fmt.Errorf("pgserver: the supervisor has ended: %w", err)
	}
	return nil
}

// exited is closed when the server has ended.
func (s *supervisor) exited() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gone
}

// end closes the pipe and waits for what the script then does.
func (s *supervisor) end() error {
	_ = s.input.Close()
	select {
	case <-s.done:
		return nil
	case <-time.After(startTimeout):
		return fmt.Errorf("pgserver: the server did not stop within %v%s", startTimeout, s.logs())
	}
}

// portTaken reports whether the server ended because another had its port.
func (s *supervisor) portTaken() bool { return strings.Contains(s.logs(), "Address already in use") }

// logs are the last lines that initdb and the server wrote, for an error's text.
func (s *supervisor) logs() string {
	var text string
	for _, file := range []string{"initdb.log", "server.log"} {
		b, err := os.ReadFile(filepath.Join(s.root, file))
		if err != nil || len(b) == 0 {
			continue
		}
		lines := strings.Split(strings.TrimSpace(string(b)), "\n")
		text += fmt.Sprintf("\n%s:\n  %s", file, strings.Join(lines[max(0, len(lines)-8):], "\n  "))
	}
	return text
}

// postmaster reads the process id of the cluster's server.
func postmaster(root string) (int, error) {
	b, err := os.ReadFile(filepath.Join(root, "data", "postmaster.pid"))
	if err != nil {
		return 0, fmt.Errorf("pgserver: the server does not run: %w", err)
	}
	first, _, _ := strings.Cut(string(b), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(first))
	if err != nil {
		return 0, fmt.Errorf("pgserver: %s has no process id: %w", filepath.Join(root, "data", "postmaster.pid"), err)
	}
	return pid, nil
}
