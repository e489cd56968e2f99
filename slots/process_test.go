package slots_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/slots"
)

// childEnv holds the database's URL in processes that the tests start of themselves.
const childEnv = "WEIR_TEST_SLOTS_CHILD"

func TestMain(m *testing.M) {
	if url := os.Getenv(childEnv); url != "" {
		if err := child(url); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	pgtest.Main(m)
}

// child holds all slots, says so, and works on until they are lost. Then it says what it knows.
func child(url string) error {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	s, err := slots.New(pool, slots.Config{TTL: time.Second, Logger: silent})
	if err != nil {
		return err
	}
	var holds []*slots.Hold
	began := time.Now()
	for range 3 {
		h, err := s.TryAcquire(ctx, three.For("k"))
		// On a busy machine, or as the first on its connection to a cluster, it may take longer
		// than TTL allows. What it then may have got comes back.
		for err != nil && time.Since(began) < time.Minute &&
			(errors.Is(err, context.DeadlineExceeded) || errors.Is(err, slots.ErrFull)) {
			time.Sleep(10 * time.Millisecond)
			h, err = s.TryAcquire(ctx, three.For("k"))
		}
		if err != nil {
			return err
		}
		holds = append(holds, h)
	}
	fmt.Println("held")
	for _, h := range holds {
		<-h.Context(ctx).Done()
		fmt.Println(errors.Is(h.Err(), slots.ErrLost), h.Slots()[0].Token)
		if err := h.Release(ctx); err != nil {
			return err
		}
	}
	return nil
}

func startChild(t *testing.T, pool *pgxpool.Pool) (cmd *exec.Cmd, lines *bufio.Scanner) {
	t.Helper()
	cmd = exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+pgtest.URL(t, pool))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines = bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "held" {
		t.Fatalf("%q, %v", lines.Text(), lines.Err())
	}
	return cmd, lines
}

func TestTheSlotsOfAProcessThatIsKilledComeBack(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	s := open(t, pool, slots.Config{})
	for tries := 1; ; tries++ {
		cmd, lines := startChild(t, pool)
		if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		for lines.Scan() {
			if !strings.HasPrefix(lines.Text(), "true ") { // lost before that, on a busy machine
				t.Error(lines.Text())
			}
		}
		err := cmd.Wait()
		if err == nil && tries < 10 {
			continue // it had lost all of them and ended before
		}
		if err == nil || !strings.Contains(err.Error(), "killed") {
			t.Fatal(err)
		}
		break
	}
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		h, err := s.Acquire(ctx, three.For("k"))
		if err != nil {
			t.Fatal(err)
		}
		defer release(t, h)
	}
	if _, err := s.TryAcquire(t.Context(), three.For("k")); !errors.Is(err, slots.ErrFull) {
		t.Errorf("%v, want ErrFull", err)
	}
}

// A process that is frozen for longer than TTL cannot know; it notices when it goes on, and what it
// gives back then is not the others'. Whoever compares tokens knows who came later.
func TestAProcessThatWasFrozenFindsItsSlotsLost(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	s := open(t, pool, slots.Config{})
	cmd, lines := startChild(t, pool)
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Signal(syscall.SIGCONT) })
	var least int64
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		h, err := s.Acquire(ctx, three.For("k"))
		if err != nil {
			t.Fatal(err)
		}
		defer release(t, h)
		if token := h.Slots()[0].Token; least == 0 || token < least {
			least = token
		}
	}
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	n := 0
	for ; lines.Scan(); n++ {
		var lost bool
		var token int64
		if _, err := fmt.Sscan(lines.Text(), &lost, &token); err != nil || !lost || token >= least {
			t.Errorf("%q, want a slot that is lost, of a token below %d", lines.Text(), least)
		}
	}
	if err := cmd.Wait(); err != nil && !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	if held, err := s.Held(t.Context(), three.For("k")); n != 3 || held != 3 || err != nil {
		t.Errorf("%d were lost and %d are held, %v", n, held, err)
	}
}
