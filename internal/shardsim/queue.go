package shardsim

import "container/heap"

// queue is what is to happen, in the order of time, and of what is to happen at the same time in the order of being asked.
type queue struct {
	events events
	asked  int
	now    float64 // seconds
}

type event struct {
	at    float64
	order int
	do    func()
}

// after lets something happen in so many seconds.
func (q *queue) after(seconds float64, do func()) {
	q.asked++
	heap.Push(&q.events, event{q.now + seconds, q.asked, do})
}

// next lets the next thing happen.
func (q *queue) next() {
	e := heap.Pop(&q.events).(event)
	q.now = e.at
	e.do()
}

type events []event

func (e events) Len() int      { return len(e) }
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].order < e[j].order
}

func (e *events) Pop() any {
	old := *e
	last := old[len(old)-1]
	*e = old[:len(old)-1]
	return last
}
