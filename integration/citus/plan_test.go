package citus

import (
	"context"
	"fmt"
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
)

// What a take by Autocommit costs in CPU, in microseconds: BenchmarkCitus, coordinator-us and
// workers-us.
const (
	entryCPU = 440 // on the node that the program is connected to
	rowCPU   = 600 // on the node that has the row
)

// coalescedCPU is how many times as much CPU a statement of Coalesce costs: see
// TestThePlanRestsOnWhatTakesCost.
const coalescedCPU = 2.0

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
	doc := read(t, "distributed.md")
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
		if row += " |"; !strings.Contains(doc, row+"\n") {
			t.Errorf("docs/distributed.md lacks the row\n%s", row)
		}
	}
	factor := fmt.Sprintf("multiply the nodes and the shards of the columns 10 and 100 by %v.", coalescedCPU)
	if !strings.Contains(strings.ReplaceAll(doc, "\n", " "), factor) {
		t.Errorf("docs/distributed.md does not say: %s", factor)
	}
}

// What docs/distributed.md says of one server is less than docs/benchmarks.md has of 64 callers.
func TestOneServerDecidesAsMuchAsTheDocumentSays(t *testing.T) {
	t.Parallel()
	doc, benchmarks := strings.ReplaceAll(read(t, "distributed.md"), "\n", " "), read(t, "benchmarks.md")
	for _, c := range []struct {
		says, heading, row string
		want               int
	}{
		{"more than 10,000 calls a second with `Autocommit`", "Many keys", "Weir, autocommit", 10_000},
		{"more than 40,000 with `Coalesce`", "Many keys", "Weir, coalesced", 40_000},
		{"more than a million with [leases]", "One key", "Weir, leased", 1_000_000},
	} {
		of64 := regexp.MustCompile(`(?s)## ` + c.heading + `\n.*?\| ` + c.row + ` \|[^|]*\|[^|]*\| ([\d,]+)`)
		found := append(of64.FindStringSubmatch(benchmarks), "", "")[1]
		n, err := strconv.Atoi(strings.ReplaceAll(found, ",", ""))
		if err != nil || n < c.want || !strings.Contains(doc, c.says) {
			t.Errorf("want docs/distributed.md to say %q; docs/benchmarks.md has %q", c.says, found)
		}
	}
}

func read(t *testing.T, page string) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/" + page)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
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
	measure := func(callers int, take func(context.Context, string) error) (entry, row float64) {
		t.Helper()
		run := func() error { return together(t.Context(), callers, calls, 100, take) }
		err := run() // plans and connections are made by then
		if err == nil {
			entry, row, err = cost(pids, calls, run)
		}
		if err != nil {
			t.Fatal(err)
		}
		return entry, row
	}
	// Servers that vacuum or recover meanwhile use more.
	again := func(wrong func() bool) bool { return wrong() && wrong() }
	var entry, row float64
	if again(func() bool {
		entry, row = measure(8, consumer(l.Autocommit(pool)))
		t.Logf("a take costs %.0f us on the coordinator and %.0f us on the workers", entry, row)
		sum := entry + row
		return sum < (entryCPU+rowCPU)/4 || sum > 4*(entryCPU+rowCPU) || entry/sum < 0.2 || entry/sum > 0.7
	}) {
		t.Errorf("a take costs %.0f us on the coordinator and %.0f us on the workers, want about %d and %d",
			entry, row, entryCPU, rowCPU)
	}
	many := l.Coalesce(pool)
	defer many.Close()
	var factor float64
	if again(func() bool {
		coalescedEntry, coalescedRow := measure(1, consumer(many)) // a statement for each call
		factor = (coalescedEntry + coalescedRow) / (entry + row)
		t.Logf("a statement of Coalesce costs %.2f times as much: %.0f us and %.0f us", factor, coalescedEntry, coalescedRow)
		return factor < coalescedCPU/2 || factor > coalescedCPU*2
	}) {
		t.Errorf("a statement of Coalesce costs %.2f times the CPU of a take, want about %v", factor, coalescedCPU)
	}
}
