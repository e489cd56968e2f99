package nodeload

import (
	"math"
	"reflect"
	"testing"
	"time"
)

const us = time.Microsecond

func mean(shares []float64) (m float64) {
	for _, s := range shares {
		m += s / float64(len(shares))
	}
	return m
}

func about(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 0.02*want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// The callers, the cores, the row or the asked rate: whichever is scarcest limits the rate.
func TestTheScarcestThingLimitsTheRate(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		Cluster
		rate, nodes, rows float64
	}{
		"one caller":      {Cluster{Nodes: 2, Cores: 2, Rows: 10, Callers: 1}, 1000, 0.25, 0.06},
		"four callers":    {Cluster{Nodes: 9, Cores: 9, Rows: 1e4, Callers: 4}, 4000, 4. / 81, 0.00024},
		"the cores":       {Cluster{Nodes: 1, Cores: 2, Rows: 1e4, Callers: 50}, 2000, 1, -1},
		"one row":         {Cluster{Nodes: 2, Cores: 8, Rows: 1, Callers: 50}, 1000 / 0.6, 1 / 9.6, 1},
		"the coordinator": {Cluster{Nodes: 5, Cores: 2, Rows: 1e4, Callers: 50, Coordinator: true}, 5000, 0.5, -1},
		"few calls":       {Cluster{Nodes: 4, Cores: 4, Rows: 10, Callers: 100, Rate: 800}, 800, 0.05, 0.048},
		"few batches":     {Cluster{Nodes: 4, Cores: 4, Rows: 10, Callers: 9, Together: 7, Rate: 5600}, 5600, .05, .048},
		"batches":         {Cluster{Nodes: 1, Cores: 2, Rows: 1e4, Callers: 50, Together: 7}, 14000, 1, -1},
		"too many":        {Cluster{Nodes: 1, Cores: 2, Rows: 1e4, Callers: 50, Rate: 9000}, 2000, 1, -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.Entry, c.Row, c.Together = 400*us, 600*us, max(1, c.Together)
			r := c.Run(8 * time.Second)
			about(t, "rate", r.Rate, c.rate)
			about(t, "nodes", mean(r.Nodes), c.nodes)
			if c.rows >= 0 {
				about(t, "rows", mean(r.Rows), c.rows)
			}
			if len(r.Nodes) != c.Nodes || len(r.Rows) != c.Rows {
				t.Errorf("%d nodes and %d rows", len(r.Nodes), len(r.Rows))
			}
		})
	}
}

// A row stays locked while its statement waits for a core: so more than one row is locked on a node
// with one core.
func TestARowIsLockedWhileItsStatementWaits(t *testing.T) {
	t.Parallel()
	c := Cluster{Nodes: 1, Cores: 1, Rows: 100, Entry: 400 * us, Row: 600 * us, Callers: 10, Together: 1}
	r := c.Run(time.Second)
	if locked := mean(r.Rows) * float64(c.Rows); r.Nodes[0] < 0.999 || locked < 2 {
		t.Errorf("%v rows are locked, and the core is used %v of the time", locked, r.Nodes[0])
	}
}

// The coordinator does the entry work of all statements, and has no rows.
func TestTheCoordinatorHasNoRows(t *testing.T) {
	t.Parallel()
	c := Cluster{Nodes: 3, Cores: 4, Rows: 8, Entry: 400 * us, Row: 600 * us, Coordinator: true,
		Callers: 100, Together: 1, Rate: 2000}
	r := c.Run(5 * time.Second)
	about(t, "coordinator", r.Nodes[0], 2000*400e-6/4)
	about(t, "workers", mean(r.Nodes[1:]), 2000*600e-6/8)
}

func TestTheSameClusterHasTheSameResult(t *testing.T) {
	t.Parallel()
	c := Cluster{Nodes: 3, Cores: 2, Rows: 5, Entry: 400 * us, Row: 600 * us, Callers: 9, Together: 1}
	if a, b := c.Run(time.Second), c.Run(time.Second); !reflect.DeepEqual(a, b) {
		t.Errorf("%v, then %v", a, b)
	}
}
