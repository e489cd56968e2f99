package integration

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/pair"
	"github.com/weir-go/weir/internal/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

// hot is one limit for all, own one of each user's.
var (
	hot = ratelimit.MustDefine("hot", ratelimit.TokenBucket{Rate: 1e9, Period: never}, ratelimit.Shards(32))
	own = consumed
)

func hotRequest(int) ratelimit.Request { return hot.Global() }
func ownRequest(int) ratelimit.Request { return own.For(key(rand.IntN(manyKeys))) }

// BenchmarkHotLimit is one limit of 32 shards from which 16 callers take in SERIALIZABLE transactions that work for 2 ms after
// that, against the same with a key for each user. x-uncontended is the throughput by the base's.
func BenchmarkHotLimit(b *testing.B) {
	b.Run("one-process", func(b *testing.B) { hotLimit(b, "") })
	b.Run("after-read", func(b *testing.B) { hotLimit(b, `SELECT version FROM weir_schema`) })
	b.Run("sixteen-processes", hotLimitOfProcesses)
}

const hotCallers = 16

func hotLimit(b *testing.B, read string) {
	c := newCrowd(b, hotCallers)
	fill(b, c.pool, "sendMessage", manyKeys, ample, "NULL")
	execSQL(b, c.pool, `VACUUM ANALYZE weir_balance`)
	l := limiter(b, ratelimit.Config{})
	base := c.sleepAfter(l, pgx.Serializable, "0.002", read, ownRequest)
	ours := c.sleepAfter(l, pgx.Serializable, "0.002", read, hotRequest)
	pair.Slices(b, pair.Crowd{Metric: "x-uncontended", Base: base.do, Ours: ours.do, Workers: hotCallers})
	b.ReportMetric(ours.abortsPerCommit(), "aborts/commit")
	b.ReportMetric(base.abortsPerCommit(), "base-aborts/commit")
}

// crowdEnv makes a child one of the processes of BenchmarkHotLimit.
const crowdEnv = "WEIR_TEST_CROWD"

// hotLimitOfProcesses is the same with a process for each caller, which is told by a line what to do, and answers by one with
// the number of runs that it took.
func hotLimitOfProcesses(b *testing.B) {
	pool := pgtest.Pool(b, quick)
	fill(b, pool, "sendMessage", manyKeys, ample, "NULL")
	execSQL(b, pool, `VACUUM ANALYZE weir_balance`)
	var runs, commits [2]atomic.Int64
	var say [hotCallers]io.Writer
	var hear [hotCallers]*bufio.Reader
	for i := range hotCallers {
		cmd := exec.CommandContext(b.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), childEnv+"="+pgtest.URL(b, pool), crowdEnv+"=1")
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		if err != nil {
			b.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			b.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		say[i], hear[i] = in, bufio.NewReader(out)
		b.Cleanup(func() {
			_ = in.Close()
			if err := cmd.Wait(); err != nil && b.Context().Err() == nil {
				b.Error(err)
			}
		})
	}
	do := func(side int) func(context.Context, int) error {
		return func(_ context.Context, worker int) error {
			if _, err := fmt.Fprintln(say[worker], side); err != nil {
				return err
			}
			answer, err := hear[worker].ReadString('\n')
			if err != nil {
				return err
			}
			n, err := strconv.ParseInt(strings.TrimSpace(answer), 10, 64)
			runs[side].Add(n)
			commits[side].Add(1)
			return err
		}
	}
	pair.Slices(b, pair.Crowd{Metric: "x-uncontended", Base: do(0), Ours: do(1), Workers: hotCallers})
	for side, name := range []string{"base-aborts/commit", "aborts/commit"} {
		b.ReportMetric(counted{runs: &runs[side], commits: &commits[side]}.abortsPerCommit(), name)
	}
}

// crowdChild is such a process.
func crowdChild(url string) error {
	ctx := context.Background()
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return err
	}
	quick(cfg)
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer pool.Close()
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	l, err := ratelimit.New(ratelimit.Config{})
	if err != nil {
		return err
	}
	c := crowd{pool, []*pgxpool.Conn{conn}}
	sides := []counted{c.sleepAfter(l, pgx.Serializable, "0.002", "", ownRequest), c.sleepAfter(l, pgx.Serializable, "0.002", "", hotRequest)}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		side := sides[in.Text()[0]-'0']
		before := side.runs.Load()
		if err := side.do(ctx, 0); err != nil {
			return err
		}
		fmt.Println(side.runs.Load() - before)
	}
	return nil
}
