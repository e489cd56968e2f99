package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// crowdEnv holds the database's URL in the processes of a crowd.
const crowdEnv = "WEIR_TEST_CROWD"

// crowdOfProcesses is a process for each caller. It reads a line that says what to do, and answers
// with a line that begins with the number of runs.
type crowdOfProcesses struct {
	pool *pgxpool.Pool
	say  [hotCallers]io.Writer
	hear [hotCallers]*bufio.Reader
}

func newCrowdOfProcesses(b *testing.B) *crowdOfProcesses {
	b.Helper()
	c := &crowdOfProcesses{pool: pgtest.Pool(b, quick)}
	fill(b, c.pool, "sendMessage", manyKeys, ample, "NULL")
	rig.Exec(b, c.pool, `VACUUM ANALYZE weir_balance`)
	for i := range hotCallers {
		cmd := exec.CommandContext(b.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), crowdEnv+"="+pgtest.URL(b, c.pool))
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
		c.say[i], c.hear[i] = in, bufio.NewReader(out)
		b.Cleanup(func() {
			_ = in.Close()
			if err := cmd.Wait(); err != nil && b.Context().Err() == nil {
				b.Error(err)
			}
		})
	}
	return c
}

// ask has a process do something, and reads its answer.
func (c *crowdOfProcesses) ask(worker int, what string, answer ...any) error {
	if _, err := fmt.Fprintln(c.say[worker], what); err != nil {
		return err
	}
	line, err := c.hear[worker].ReadString('\n')
	if err != nil {
		return err
	}
	_, err = fmt.Sscan(line, answer...)
	return err
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
	requests := map[string]func(int) ratelimit.Request{"own": ownRequest, "hot": hotRequest}
	sides := map[string]counted{}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		what, how, _ := strings.Cut(in.Text(), " ")
		if what == "reserve" {
			count, level, _ := strings.Cut(how, " ")
			n, err := strconv.ParseFloat(count, 64)
			if err != nil {
				return err
			}
			var runs atomic.Int64
			res, err := reserve(ctx, l, conn, pgx.TxIsoLevel(level), hotLine.Global().Count(n), &runs)
			if err != nil {
				return err
			}
			runAt := res.RunAt
			if runAt.IsZero() {
				runAt = res.At
			}
			fmt.Println(runs.Load(), res.At.UnixMicro(), runAt.UnixMicro())
			continue
		}
		side, ok := sides[in.Text()]
		if !ok {
			request := requests[what]
			if request == nil {
				return errors.New("what is " + in.Text() + "?")
			}
			side = c.sleepAfter(l, pgx.TxIsoLevel(how), "0.002", "", request)
			sides[in.Text()] = side
		}
		before := side.runs.Load()
		if err := side.do(ctx, 0); err != nil {
			return err
		}
		now := time.Now().UnixMicro()
		fmt.Println(side.runs.Load()-before, now, now) // as much as of a reservation
	}
	return nil
}
