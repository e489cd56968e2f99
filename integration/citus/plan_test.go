package citus

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-go/weir/internal/test/nodeload"
	"github.com/weir-go/weir/internal/test/pgtest"
	"github.com/weir-go/weir/ratelimit"
	"github.com/weir-go/weir/shard"
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
	cores  = 16    // of a node
	busy   = 0.6   // the share of their time that cores are used, at most
	locked = 0.505 // the share of the time that a row is locked, at most: half, and see planned
)

// planned simulates a cluster of docs/distributed.md, and reports whether it is large enough.
//
// With 12 or 120 shards, the statements' CPU time alone locks each row for exactly half of the time.
// Chance, and the time that statements wait for a core, make that up to 50.2 %.
func planned(t *testing.T, what string, c nodeload.Cluster) bool {
	t.Helper()
	c.Cores = cores
	c.Callers = int(c.Rate / float64(c.Together) / 100) // each sends a hundred statements a second
	statements := max(20_000, 2_000*float64(c.Nodes))
	r := c.Run(time.Duration(statements * float64(c.Together) / c.Rate * float64(time.Second)))
	nodes, rows := mean(r.Nodes), mean(r.Rows)
	if c.Coordinator {
		nodes = r.Nodes[0]
	}
	t.Logf("%s: %d nodes with %d rows decide %.0f calls a second, cores are used %.2f %%, rows locked %.2f %%",
		what, c.Nodes, c.Rows, r.Rate, 100*nodes, 100*rows)
	return r.Rate >= 0.99*c.Rate && nodes <= busy && rows <= locked
}

// mean is the share of every node or row in the long run. In a short one some have more by chance.
func mean(shares []float64) (m float64) {
	for _, s := range shares {
		m += s / float64(len(shares))
	}
	return m
}

// The nodes and shards in the table of docs/distributed.md are enough. One node fewer, or half of the
// shards, is not. The tightest is the row of a million decisions: the cores of 109 nodes are used
// 59.6 % of the time, and those of 108 nodes would be used 60.2 %.
func TestThePlanOfNodesIsWhatTheSimulationNeeds(t *testing.T) {
	t.Parallel()
	table := regexp.MustCompile(`(?m)^\| (10{4,6}) \| (\d+) \| (\d+|too many) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$`)
	rows := table.FindAllStringSubmatch(strings.ReplaceAll(read(t, "distributed.md"), ",000", "000"), -1)
	if len(rows) != 3 {
		t.Fatalf("found %d rows of the table, want 3", len(rows))
	}
	number := func(s string) int {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for _, row := range rows {
		for i, together := range []int{1, 10, 100} {
			c := nodeload.Cluster{Nodes: number(row[2+2*i]), Rows: shard.Max, Rate: float64(number(row[1])),
				Together: together, Entry: entryCPU * time.Microsecond, Row: rowCPU * time.Microsecond}
			tooMany := row[3+2*i] == "too many"
			if !tooMany {
				c.Rows = number(row[3+2*i])
			}
			t.Run(fmt.Sprintf("%.0f by %d", c.Rate, together), func(t *testing.T) {
				t.Parallel()
				enough := func(what string, c nodeload.Cluster, want bool) {
					t.Helper()
					if planned(t, what, c) != want {
						t.Errorf("%s: enough is %v, want %v", what, !want, want)
					}
				}
				if tooMany {
					enough("as many shards as a limit may have", c, false)
					c.Rows = 100 * c.Nodes // calls for many keys
				}
				enough("as planned", c, true)
				if fewer := c; c.Nodes > 1 {
					fewer.Nodes--
					enough("a node fewer", fewer, false)
				}
				if half := c; c.Rows > 1 && !tooMany {
					half.Rows /= 2
					enough("half of the shards", half, false)
				}
				if together > 1 {
					c.Nodes, c.Rows = coalescedCPU*c.Nodes, coalescedCPU*c.Rows
					c.Entry, c.Row = coalescedCPU*c.Entry, coalescedCPU*c.Row
					enough("with Coalesce", c, true)
				}
			})
		}
	}
	factor := fmt.Sprintf("multiply the nodes and the shards of the columns 10 and 100 by %v.", coalescedCPU)
	if doc := strings.ReplaceAll(read(t, "distributed.md"), "\n", " "); !strings.Contains(doc, factor) {
		t.Errorf("docs/distributed.md does not say: %s", factor)
	}
}

// If all programs connect to the coordinator, it limits the cluster as docs/distributed.md says.
func TestACoordinatorLimitsTheCluster(t *testing.T) {
	t.Parallel()
	const says = "about 20,000 statements a second"
	if doc := strings.ReplaceAll(read(t, "distributed.md"), "\n", " "); !strings.Contains(doc, says) {
		t.Errorf("docs/distributed.md does not say: %s", says)
	}
	for rate, want := range map[float64]bool{20_000: true, 25_000: false} {
		c := nodeload.Cluster{Nodes: 20, Rows: 1900, Rate: rate, Together: 1, Coordinator: true,
			Entry: entryCPU * time.Microsecond, Row: rowCPU * time.Microsecond}
		if planned(t, "through the coordinator", c) != want {
			t.Errorf("%.0f a second: enough is %v, want %v", rate, !want, want)
		}
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

// load is what was measured while callers called a cluster.
type load struct {
	program, entry, row float64 // CPU time of a call in this process, on the coordinator and on the workers, in us
	rate                float64 // calls a second
	left                float64 // the share of this machine's CPU time that other programs did not use
}

// measure has callers make calls for some keys.
func measure(t *testing.T, pids []string, callers, keys int, take func(context.Context, string) error) (l load) {
	t.Helper()
	const calls = 2000
	self := strconv.Itoa(os.Getpid())
	var had, used float64
	run := func() error {
		hadBefore, usedBefore := machine()
		before, began := cpu(self), time.Now()
		err := together(t.Context(), callers, calls, keys, take)
		l.rate = calls / time.Since(began).Seconds()
		l.program = (cpu(self) - before) / calls
		had, used = machine()
		had, used = had-hadBefore, used-usedBefore
		return err
	}
	err := run() // plans and connections are made by then
	if err == nil {
		l.entry, l.row, err = cost(pids, calls, run)
	}
	if err != nil {
		t.Fatal(err)
	}
	if l.left = 1; had > 0 {
		others := used - calls*(l.program+l.entry+l.row)
		l.left = min(max(1-others/had, 0.01), 1)
	}
	return l
}

// measurable returns a pool on a cluster, and the cluster's servers. It skips the test if there is no
// cluster whose CPU times can be read.
func measurable(t *testing.T) (*pgxpool.Pool, []string) {
	t.Helper()
	cluster(t)
	pool := pgtest.Pool(t)
	pids := servers(t, pool)
	if pids == nil {
		const why = "skipped: the servers run elsewhere, and their CPU cannot be read"
		fmt.Printf("%s: %s\n", t.Name(), why)
		t.Skip(why)
	}
	return pool, pids
}

// The figures are those of a cluster: within a factor of four, as machines differ, and divided
// between the nodes as they say.
func TestThePlanRestsOnWhatTakesCost(t *testing.T) {
	pool, pids := measurable(t)
	l := limiter(t, ratelimit.Config{Citus: true})
	// Servers that vacuum or recover meanwhile use more.
	again := func(wrong func() bool) bool {
		first := wrong()
		return first && wrong()
	}
	var one, many load
	if again(func() bool {
		one = measure(t, pids, 8, 100, consumer(l.Autocommit(pool)))
		t.Logf("a take costs %.0f us on the coordinator and %.0f us on the workers", one.entry, one.row)
		sum := one.entry + one.row
		return sum < (entryCPU+rowCPU)/4 || sum > 4*(entryCPU+rowCPU) || one.entry/sum < 0.2 || one.entry/sum > 0.7
	}) {
		t.Errorf("a take costs %.0f us on the coordinator and %.0f us on the workers, want about %d and %d",
			one.entry, one.row, entryCPU, rowCPU)
	}
	coalesce := l.Coalesce(pool)
	defer coalesce.Close()
	var factor float64
	if again(func() bool {
		many = measure(t, pids, 1, 100, consumer(coalesce)) // a statement for each call
		factor = (many.entry + many.row) / (one.entry + one.row)
		t.Logf("a statement of Coalesce costs %.2f times as much: %.0f us and %.0f us", factor, many.entry, many.row)
		return factor < coalescedCPU/2 || factor > coalescedCPU*2
	}) {
		t.Errorf("a statement of Coalesce costs %.2f times the CPU of a take, want about %v", factor, coalescedCPU)
	}
}

// The simulation is given the CPU time of calls for 100 keys. From that it foretells, within a factor
// of two, how many calls a second the cluster decides for these keys and for a single one. All nodes
// and the callers share the cores of this machine, so they are simulated as one node. Its cores are
// slower by what other programs use of them. That is measured, too, and may change: so there are three
// tries.
func TestTheSimulationForetellsTheThroughputOfACluster(t *testing.T) {
	pool, pids := measurable(t)
	take := consumer(limiter(t, ratelimit.Config{Citus: true}).Autocommit(pool))
	const callers, tries = 8, 3
	for range tries {
		many := measure(t, pids, callers, 100, take)
		one := measure(t, pids, callers, 1, take)
		t.Logf("a take costs %.0f us in this process, %.0f on the coordinator and %.0f on the workers",
			many.program, many.entry, many.row)
		near := func(keys int, measured load) bool {
			foretold := nodeload.Cluster{Nodes: 1, Cores: runtime.NumCPU(), Rows: keys, Callers: callers, Together: 1,
				Entry: micros((many.program + many.entry) / measured.left),
				Row:   micros(many.row / measured.left)}.Run(4 * time.Second).Rate
			t.Logf("%d keys: %.0f calls a second, foretold %.0f with %.0f %% of the cores",
				keys, measured.rate, foretold, 100*measured.left)
			return foretold < 2*measured.rate && measured.rate < 2*foretold
		}
		if near(100, many) && near(1, one) {
			return
		}
	}
	t.Errorf("in none of %d tries was the simulation within a factor of two", tries)
}

func micros(n float64) time.Duration { return time.Duration(n * float64(time.Microsecond)) }
