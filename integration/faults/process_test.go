package faults

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/ratelimit"
)

const (
	childEnv  = "WEIR_FAULTS_CHILD"  // the database's URL, in processes that the tests start of themselves
	shardsEnv = "WEIR_FAULTS_SHARDS" // of the limits of such a process
	// of the ids of such a process; up to the dash, of the keys that it shares with others
	prefixEnv = "WEIR_FAULTS_PREFIX"
)

// said is a line of a child's output.
type said struct {
	Begin *op     `json:",omitempty"`
	End   *result `json:",omitempty"`
}

// teller is a witness in another process: a line for each event, written before it goes on, so that
// what was told is known however the process ends.
type teller struct {
	mu  sync.Mutex
	out *json.Encoder
}

func (w *teller) begin(o op)   { w.tell(said{Begin: &o}) }
func (w *teller) end(r result) { w.tell(said{End: &r}) }

func (w *teller) tell(s said) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.out.Encode(s); err != nil {
		panic(err)
	}
}

// child is an application in a process of its own. It runs until it is killed, or whoever started
// it has ended.
func child(url, prefix string) error {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return err
	}
	cfg.MaxConns = 4
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		return err
	}
	defer pool.Close()
	a, err := newApp(pool, ratelimit.Config{})
	if err != nil {
		return err
	}
	round, _, _ := strings.Cut(prefix, "-")
	shards, _ := strconv.Atoi(os.Getenv(shardsEnv)) // none, if it is not set
	l := &load{app: a, desk: &desk{name: round, prefix: prefix},
		witness: &teller{out: json.NewEncoder(os.Stdout)}, shards: shards}
	stop := l.start(context.Background())
	defer stop()
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// spawned is a child from outside.
type spawned struct {
	cmd   *exec.Cmd
	input io.Closer
	done  chan struct{} // closed when all that it said was heard

	mu     sync.Mutex
	grants int
}

func (f *fixture) spawn(t *testing.T, prefix string) *spawned {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+f.url(t), prefixEnv+"="+prefix,
		fmt.Sprintf("%s=%d", shardsEnv, f.load.shards))
	cmd.Stderr = os.Stderr
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := &spawned{cmd: cmd, input: input, done: make(chan struct{})}
	t.Cleanup(s.kill)
	go func() {
		defer close(s.done)
		s.listen(output, f.callers)
	}()
	return s
}

func (s *spawned) listen(output io.Reader, w witness) {
	lines := bufio.NewScanner(output)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var l said
		if json.Unmarshal(lines.Bytes(), &l) != nil {
			return // the process died in the middle of a line
		}
		switch {
		case l.Begin != nil:
			w.begin(*l.Begin)
		case l.End != nil:
			w.end(*l.End)
			if l.End.Class == granted {
				s.mu.Lock()
				s.grants++
				s.mu.Unlock()
			}
		}
	}
}

// kill returns when the process has ended and everything it said is known.
func (s *spawned) kill() {
	_ = s.cmd.Process.Kill() // it may have been before
	<-s.done
	_ = s.cmd.Wait() // it was killed
	_ = s.input.Close()
}

// hung ends a wait for what must come some time. A machine with a load of 50 takes more than a
// minute to start a process.
const hung = 5 * time.Minute

// awaitGrants waits until this very process was granted n times.
func (s *spawned) awaitGrants(t *testing.T, c *callers, n int) {
	t.Helper()
	timeout := time.After(hung)
	for {
		_, moved := c.count(granted)
		s.mu.Lock()
		have := s.grants
		s.mu.Unlock()
		if have >= n {
			return
		}
		select {
		case <-moved:
		case <-s.done:
			t.Fatal("the process has ended")
		case <-timeout:
			t.Fatalf("the process was granted %d times within %v", have, hung)
		}
	}
}

// Processes are killed in the middle of their work; others go on, and new ones start.
func TestProcessesAreKilled(t *testing.T) {
	t.Parallel()
	eachLayout(t, processesAreKilled)
}

func processesAreKilled(t *testing.T, f *fixture) {
	t.Helper()
	x := fault{rounds: 1}
	start := time.Now()
	killed := 0
	for enough := rounds(t, x.rounds); !enough(f.rounds); f.rounds++ {
		killed += killProcesses(t, f)
		f.mustBalance(t)
		if f.audited > 30_000 {
			f.startAfresh(t)
		}
	}
	f.report(t, x, time.Since(start))
	cut := f.callers.tally().cut
	t.Logf("%d processes were killed, with %d transactions under way", killed, cut)
	if cut == 0 {
		t.Error("no transaction was under way when its process was killed")
	}
}

// killProcesses starts processes and kills them one by one, while others go on. It returns how many
// it has killed.
func killProcesses(t *testing.T, f *fixture) int {
	t.Helper()
	var children []*spawned
	spawn := func() {
		children = append(children, f.spawn(t, fmt.Sprintf("round%d-%d", f.rounds, len(children))))
	}
	for range 3 {
		spawn()
	}
	for i := range 3 {
		children[i].awaitGrants(t, f.callers, 5+rand.N(20))
		children[i].kill()
		spawn()
		f.callers.await(t, granted, 10)
	}
	for _, c := range children[3:] {
		c.awaitGrants(t, f.callers, 5)
		c.kill()
	}
	return len(children)
}
