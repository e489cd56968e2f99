package integration

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// leaseEnv names the limit that a child leases.
const leaseEnv = "WEIR_TEST_LEASE"

// leasedBy are limits that processes share. Period is short enough for them to refill many times.
var leasedBy = map[string]ratelimit.Limit{
	"bucket": ratelimit.MustDefine("leasedBucket",
		ratelimit.TokenBucket{Rate: 2000, Period: time.Second, Capacity: ratelimit.Tokens(500)}),
	"window": ratelimit.MustDefine("leasedWindow", ratelimit.FixedWindow{Rate: 500, Period: 250 * time.Millisecond}),
	"shards": ratelimit.MustDefine("leasedShards", ratelimit.TokenBucket{Rate: 2000,
		Period: time.Second, Capacity: ratelimit.Tokens(500)}, ratelimit.Shards(4)),
	"crashes": ratelimit.MustDefine("leasedCrashes", ratelimit.FixedWindow{Rate: 10_000_000, Period: rig.Never}),
}

const (
	leasedFor    = 2 * time.Second
	crashesBlock = 1000
)

// leaseChild takes from a lease, and prints for each grant when it was asked for and when it was
// there, in microseconds; or a byte for each, at once, if it is to be killed.
func leaseChild(url string) error {
	ctx := context.Background()
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return err
	}
	cfg.ConnConfig.RuntimeParams["application_name"] = nameOf(os.Getpid())
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer pool.Close()
	l, err := ratelimit.New(ratelimit.Config{Citus: pgtest.Citus()})
	if err != nil {
		return err
	}
	name := os.Getenv(leaseEnv)
	if name == "crashes" { // on a clock that stands still: what a slow machine leaves to spoil is not lost by a crash
		now := time.Now()
		if l, err = ratelimit.New(ratelimit.Config{Citus: pgtest.Citus(), Clock: func() time.Time {
			return now
		}}); err != nil {
			return err
		}
		s, err := l.Lease(pool, leasedBy[name].For("k"), ratelimit.LeaseConfig{Block: crashesBlock})
		if err != nil {
			return err
		}
		for {
			if res, err := s.Take(ctx, 1); err != nil || !res.OK {
				return fmt.Errorf("%+v, %w", res, err)
			}
			if _, err := os.Stdout.Write([]byte{'.'}); err != nil {
				return err
			}
		}
	}
	s, err := l.Lease(pool, leasedBy[name].For("k"), ratelimit.LeaseConfig{})
	if err != nil {
		return err
	}
	out := bufio.NewWriter(os.Stdout)
	var mu sync.Mutex
	var wg sync.WaitGroup
	errs := make(chan error, 8)
	end := time.Now().Add(leasedFor)
	for range cap(errs) {
		wg.Go(func() {
			for time.Now().Before(end) {
				before := time.Now().UnixMicro()
				n := float64(1 + rand.IntN(3))
				res, err := s.Take(ctx, n)
				switch {
				case err != nil:
					errs <- err
					return
				case !res.OK:
					time.Sleep(min(res.RetryAfter(), 100*time.Millisecond))
				default:
					mu.Lock()
					_, err := fmt.Fprintln(out, before, time.Now().UnixMicro(), n)
					mu.Unlock()
					if err != nil {
						errs <- err
						return
					}
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		return err
	}
	if err := s.Close(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) { // on a slow machine it is lost
		return err
	}
	return out.Flush()
}

func leaseProcess(t testing.TB, pool *pgxpool.Pool, name string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+pgtest.URL(t, pool), leaseEnv+"="+name)
	return cmd
}

type handedOut struct {
	before, after int64
	n             float64
}

// In no interval is more handed out than the capacity and what flows in, over several processes
// that take as much as they get. How much that is depends on the machine: see
// BenchmarkProcessesThatLease.
func TestProcessesThatLeaseHandOutWhatTheLimitAllows(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"bucket", "window", "shards"} {
		t.Run(name, func(t *testing.T) {
			audit(t, name, leasedByProcesses(t, name))
		})
	}
}

// BenchmarkProcessesThatLease tells which part of what a limit allows three processes have handed
// out in two seconds.
func BenchmarkProcessesThatLease(b *testing.B) {
	for _, name := range []string{"bucket", "window", "shards"} {
		b.Run(name, func(b *testing.B) {
			var sum, most float64
			for b.Loop() {
				handed, allowed := shareOf(leasedByProcesses(b, name))
				sum, most = sum+handed, most+allowed
			}
			b.ReportMetric(sum/most, "x-allowed")
		})
	}
}

// leasedByProcesses is all that three processes have handed out, by the time at which it was there.
func leasedByProcesses(t testing.TB, name string) (all []handedOut) {
	t.Helper()
	pool := pgtest.Pool(t)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			cmd := leaseProcess(t, pool, name)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			text, err := cmd.Output()
			if err != nil {
				t.Errorf("%v: %s", err, stderr.Bytes())
				return
			}
			mu.Lock()
			defer mu.Unlock()
			for line := range strings.Lines(string(text)) {
				var e handedOut
				if _, err := fmt.Sscan(line, &e.before, &e.after, &e.n); err != nil {
					t.Errorf("%q: %v", line, err)
					return
				}
				all = append(all, e)
			}
		})
	}
	wg.Wait()
	if len(all) == 0 {
		t.Fatal("nothing was handed out")
	}
	slices.SortFunc(all, func(a, b handedOut) int { return cmp.Compare(a.after, b.after) })
	return all
}

const leasedPerSecond, leasedCapacity = 2000, 500

// shareOf is what was handed out, and what the limit allows in that time.
func shareOf(all []handedOut) (sum, most float64) {
	first, last := all[0].before, all[len(all)-1].after
	for _, e := range all {
		first = min(first, e.before)
		sum += e.n
	}
	return sum, leasedCapacity + leasedPerSecond*float64(last-first)/1e6
}

// audit looks at the intervals that begin with some of what was handed out and end with any.
func audit(t *testing.T, name string, all []handedOut) {
	t.Helper()
	flows := func(us int64) float64 {
		if name == "window" {
			return float64(us/250_000+1) * 500
		}
		return leasedPerSecond * float64(us) / 1e6
	}
	for i := range 200 {
		from := all[i*len(all)/200].before
		in := 0.0
		for _, e := range all {
			if e.before < from {
				continue
			}
			if in += e.n; in > leasedCapacity+flows(e.after-from)+1e-3 {
				t.Fatalf("%v were handed out in %v, at most %v are allowed", in,
					time.Duration(e.after-from)*time.Microsecond,
					leasedCapacity+flows(e.after-from))
			}
		}
	}
	sum, most := shareOf(all)
	t.Logf("%v of %.0f were handed out, by %d takes", sum, most, len(all))
}

// A process that is killed loses what it has in hand: one block at most, and what it was just about
// to print.
func TestAProcessThatIsKilledLosesOneBlockAtMost(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	limit := leasedBy["crashes"]
	const capacity = 10_000_000
	lost := 0.0
	for range 8 {
		before := value(t, rig.Limiter(t, ratelimit.Config{}), pool, limit.For("k"))
		cmd := leaseProcess(t, pool, "crashes")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		printed := int64(0)
		if printed, err = io.CopyN(io.Discard, out, 1+rand.Int64N(50_000)); err != nil {
			t.Fatalf("%v: %s", err, stderr.Bytes())
		}
		if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		rest, _ := io.Copy(io.Discard, out)
		printed += rest
		_ = cmd.Wait()
		gone(t, pool, cmd)
		taken := before - value(t, rig.Limiter(t, ratelimit.Config{}), pool, limit.For("k"))
		if n := taken - float64(printed); n < 0 || n > crashesBlock+1 {
			t.Errorf("%d were printed and %v taken", printed, taken)
		} else {
			lost += n
		}
	}
	if left := value(t, rig.Limiter(t, ratelimit.Config{}), pool, limit.For("k")); left >= capacity || lost == 0 {
		t.Errorf("%v are left and %v were lost: the processes were not killed with tokens in hand", left, lost)
	}
}

// gone waits until the server has ended all sessions of a process that was killed. Before that one
// of them may yet commit: the server decides a statement that has arrived, though nobody is left to
// hear the answer.
func gone(t *testing.T, pool *pgxpool.Pool, cmd *exec.Cmd) {
	t.Helper()
	until(t, func() bool {
		var n int
		if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE application_name = $1`,
			nameOf(cmd.Process.Pid)).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n == 0
	})
}

// nameOf is the application_name of a child's sessions.
func nameOf(pid int) string { return fmt.Sprint("weir-child-", pid) }
