package citus

import (
	"context"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/weir-go/weir/internal/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

// What a take by Autocommit costs in CPU, in microseconds: BenchmarkCitus, coordinator-us and
// workers-us.
const (
	entryCPU = 440 // on the node that the program is connected to
	rowCPU   = 600 // on the node that has the row
)

// What docs/distributed.md plans with.
const (
	cores = 16  // of a node
	busy  = 0.6 // of its time, at most
)

// nodes is how many take so many decisions a second, of which each statement carries some, if
// programs connect to all of them.
func nodes(decisions, together float64) int {
	return int(math.Ceil(decisions / together * (entryCPU + rowCPU) / 1e6 / (cores * busy)))
}

// shards is how many a limit that all of them share needs. A row is held at least as long as the
// node that has it works for the take, and no row should be held for more than half of the time.
func shards(decisions, together float64) int {
	return int(math.Ceil(2 * decisions / together * rowCPU / 1e6))
}

// The table of docs/distributed.md is what these figures make.
func TestThePlanOfNodesIsWhatTheFiguresMake(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../docs/distributed.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, decisions := range []struct {
		n    float64
		text string
	}{{1e4, "10,000"}, {1e5, "100,000"}, {1e6, "1,000,000"}} {
		row := "| " + decisions.text
		for _, together := range []float64{1, 10, 100} {
			n := shards(decisions.n, together)
			text := fmt.Sprint(n)
			if n > 1024 {
				text = "too many"
			}
			row += fmt.Sprintf(" | %d | %s", nodes(decisions.n, together), text)
		}
		if row += " |"; !strings.Contains(string(doc), row+"\n") {
			t.Errorf("docs/distributed.md lacks the row\n%s", row)
		}
	}
}

// The figures are those of a cluster: within a factor of four, as machines differ, and divided
// between the nodes as they say.
func TestThePlanRestsOnWhatTakesCost(t *testing.T) {
	cluster(t)
	pool := pgtest.Pool(t)
	pids := servers(t, pool)
	if pids == nil {
		const why = "skipped: the servers run elsewhere, and their CPU cannot be read"
		fmt.Printf("%s: %s\n", t.Name(), why)
		t.Skip(why)
	}
	l := limiter(t, ratelimit.Config{Citus: true})
	const calls = 2000
	take := func(ctx context.Context, key string) error { return l.Autocommit(pool).Consume(ctx, ample.For(key)) }
	run := func() error { return together(t.Context(), 8, calls, 100, take) }
	if err := run(); err != nil { // plans and connections are made by then
		t.Fatal(err)
	}
	entry, row, err := cost(pids, calls, run)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("a take costs %.0f us on the coordinator and %.0f us on the workers", entry, row)
	if sum := entry + row; sum < (entryCPU+rowCPU)/4 || sum > 4*(entryCPU+rowCPU) ||
		entry/sum < 0.2 || entry/sum > 0.7 {
		t.Errorf("a take costs %.0f us on the coordinator and %.0f us on the workers, want about %d and %d",
			entry, row, entryCPU, rowCPU)
	}
}
