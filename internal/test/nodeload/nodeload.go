// Package nodeload simulates a cluster whose nodes take tokens for callers, to tell how many nodes
// and rows a load needs.
//
// A statement first takes CPU time on the node that its caller is connected to. Then it locks its
// row, and takes CPU time on the node that has the row, which releases the row when that is done.
// Cores and rows serve statements in the order in which they arrive. The CPU time of a statement is
// random: from half of the mean to one and a half times the mean. Networks and disks take no time.
//
// A statement of Autocommit decides one call. A batch of Coalesce and a block of a lease decide
// several, as [Cluster] says with Together.
package nodeload

import (
	"container/heap"
	"math/rand/v2"
	"time"
)

// Cluster is what is simulated, and its load.
type Cluster struct {
	Nodes, Cores int           // the nodes, and the cores of each
	Rows         int           // callers take from them at random; each node has as many
	Entry        time.Duration // mean CPU time of a statement on the node of its caller
	Row          time.Duration // mean CPU time of a statement on the node of its row
	Coordinator  bool          // all callers use the first node, which has no rows

	Callers  int     // each sends one statement at a time
	Together int     // the calls that a statement decides
	Rate     float64 // the calls a second that callers want decided, or 0: as many as they can
}

// Result is what a simulation has found.
type Result struct {
	Rate  float64   // the calls that were decided, a second
	Nodes []float64 // for each node, the share of its cores' time that was used
	Rows  []float64 // for each row, the share of the time that it was locked
}

// Run simulates the cluster for half of the given time, and then for all of it, which it measures.
// The result is always the same for the same cluster.
func (c Cluster) Run(d time.Duration) Result {
	s := &simulation{Cluster: c, random: rand.New(rand.NewPCG(1, 1))}
	s.nodes, s.rows = servers(c.Nodes, c.Cores), servers(c.Rows, 1)
	if c.Rate > 0 {
		s.every = time.Duration(float64(c.Callers*c.Together) / c.Rate * float64(time.Second))
	}
	for range c.Callers {
		s.after(time.Duration(s.random.Float64()*float64(s.every)), s.call)
	}
	s.until(d / 2)
	s.decided = 0
	shares(s.nodes, s.now, d)
	shares(s.rows, s.now, d)
	s.until(d/2 + d)
	rate := float64(s.decided) / d.Seconds()
	return Result{rate, shares(s.nodes, s.now, d), shares(s.rows, s.now, d)}
}

type simulation struct {
	Cluster
	random      *rand.Rand
	now         time.Duration
	events      events
	nodes, rows []*server
	every       time.Duration // mean time from one statement of a caller to its next
	decided     int
}

// call sends a statement of a caller, and later the next one.
func (s *simulation) call() {
	next := s.now + s.about(s.every)
	entry, first := s.nodes[s.random.IntN(s.Nodes)], 0
	if s.Coordinator {
		entry, first = s.nodes[0], 1
	}
	n := s.random.IntN(s.Rows)
	row, home := s.rows[n], s.nodes[first+n%(s.Nodes-first)]
	s.work(entry, s.Entry, func() {
		row.take(s.now, func() {
			s.work(home, s.Row, func() {
				row.give(s.now)
				s.decided += s.Together
				s.after(max(0, next-s.now), s.call)
			})
		})
	})
}

// work uses a core of a node.
func (s *simulation) work(node *server, mean time.Duration, then func()) {
	node.take(s.now, func() {
		s.after(s.about(mean), func() {
			node.give(s.now)
			then()
		})
	})
}

// about is a random time with the given mean.
func (s *simulation) about(mean time.Duration) time.Duration {
	return time.Duration((0.5 + s.random.Float64()) * float64(mean))
}

func (s *simulation) after(d time.Duration, do func()) {
	heap.Push(&s.events, event{s.now + d, do})
}

// until runs everything that happens before the given time.
func (s *simulation) until(end time.Duration) {
	for len(s.events) > 0 && s.events[0].at < end {
		e := heap.Pop(&s.events).(event)
		s.now = e.at
		e.do()
	}
	s.now = end
}

type event struct {
	at time.Duration
	do func()
}

// events are a heap: the earliest comes first.
type events []event

func (e events) Len() int           { return len(e) }
func (e events) Less(i, j int) bool { return e[i].at < e[j].at }
func (e events) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)        { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}
