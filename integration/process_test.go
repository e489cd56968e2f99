package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/internal/test/rig"
	"github.com/weir-go/weir/ratelimit"
)

// childEnv holds the database's URL in processes that the tests start of themselves.
const childEnv = "WEIR_TEST_CHILD"

var shared = ratelimit.MustDefine("shared", ratelimit.TokenBucket{Rate: 200, Period: rig.Never})

// child is what such a process does: it takes until it is denied, and prints how often it was
// granted.
func child(url string) error {
	ctx := context.Background()
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return err
	}
	cfg.MaxConns = 4
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return err
	}
	defer pool.Close()
	var limits ratelimit.Config
	if pgtest.Citus() {
		limits = ratelimit.Config{Citus: true, MaxAttempts: rig.ManyAttempts}
	}
	l, err := ratelimit.New(limits)
	if err != nil {
		return err
	}
	granted := make(chan int, 4)
	errs := make(chan error, 4)
	for range 4 {
		go func() {
			n := 0
			for {
				err := takeAndWork(ctx, l, pool, pgx.Serializable, shared.For("k"), "k", 1)
				if err != nil {
					granted <- n
					if !errors.Is(err, ratelimit.ErrDenied) {
						errs <- err
						return
					}
					errs <- nil
					return
				}
				n++
			}
		}()
	}
	sum := 0
	for range 4 {
		sum += <-granted
		if err := <-errs; err != nil {
			return err
		}
	}
	fmt.Println(sum)
	return nil
}

func TestSeveralProcessesShareALimit(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	work(t, pool)
	url := pgtest.URL(t, pool)

	const processes = 6
	var mu sync.Mutex
	var wg sync.WaitGroup
	sum := 0
	for range processes {
		wg.Go(func() {
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = append(os.Environ(), childEnv+"="+url)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if err != nil {
				t.Errorf("%v: %s", err, stderr.Bytes())
				return
			}
			n, err := strconv.Atoi(strings.TrimSpace(string(out)))
			if err != nil {
				t.Errorf("%v: %s", err, stderr.Bytes())
			}
			mu.Lock()
			sum += n
			mu.Unlock()
		})
	}
	wg.Wait()
	if sum != 200 {
		t.Errorf("%d processes were granted %d times, want 200", processes, sum)
	}
	checkBooks(t, pool, "shared", 200, true)
}
