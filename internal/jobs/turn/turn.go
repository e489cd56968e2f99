// Package turn decides whose turn it is in a fair line: the arithmetic alone, without a database.
//
// It is start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996). Each tenant has a virtual
// time at which its next job starts, and whose is the lowest is next. A job of cost c moves its
// tenant's time on by c, divided by the tenant's weight. The line's own virtual time is that of the
// tenant whose turn it was last. A tenant that comes, or comes back, starts at the line's time at
// the earliest: it gets no more for not having asked before.
//
// So while two tenants both wait, what they are granted, divided by their weights, differs by no
// more than the largest cost of the one and of the other, each divided by its weight. A tenant that
// comes is granted its first job after at most one job of each other tenant.
package turn

import (
	"cmp"
	"math"
)

// Line is a line. The zero Line is one in which nobody was granted anything.
type Line struct {
	Virtual float64 // its virtual time, in tokens for a weight of 1
}

// Tenant is one of those who wait.
type Tenant struct {
	Name   string
	At     float64 // the virtual time at which its next job starts, if not before the line's
	Credit float64 // tokens that it was charged too much: its next jobs cost less by that
	Level  int     // its next job goes before all those of higher levels
	Out    bool    // it cannot have its turn now
}

// Next returns the tenant whose turn it is, or nil if all are out.
func (l *Line) Next(tenants []*Tenant) *Tenant {
	var next *Tenant
	for _, t := range tenants {
		if !t.Out && (next == nil || t.before(next)) {
			next = t
		}
	}
	return next
}

// Grant grants a job to one of the tenants, the one whose turn it is.
func (l *Line) Grant(tenants []*Tenant, next *Tenant, cost, weight float64) {
	virtual := l.start(next)
	for _, t := range tenants {
		if !t.Out {
			virtual = min(virtual, l.start(t)) // those that levels pass over keep their claims
		}
	}
	l.Virtual = virtual
	l.charge(next, cost, weight)
}

// before says that it is the turn of t before that of the other. Those whose times have passed
// start at the same time, in the order of these times.
func (t *Tenant) before(other *Tenant) bool {
	return cmp.Or(cmp.Compare(t.Level, other.Level), cmp.Compare(t.At, other.At),
		cmp.Compare(t.Name, other.Name)) < 0
}

func (l *Line) start(t *Tenant) float64 { return max(t.At, l.Virtual) }

func (l *Line) charge(t *Tenant, cost, weight float64) {
	paid := min(t.Credit, cost)
	t.Credit -= paid
	start := l.start(t)
	if t.At = start + (cost-paid)/weight; cost > paid {
		t.At = max(t.At, math.Nextafter(start, math.Inf(1))) // however large the weight
	}
}

// Correct charges a tenant for what a job has used beyond its cost. Below 0 that is a refund. A
// tenant that does not wait gets none: it would have more than its share when it comes back.
func (l *Line) Correct(t *Tenant, beyond, weight float64, waits bool) {
	switch {
	case beyond > 0:
		l.charge(t, beyond, weight)
	case waits:
		t.Credit -= beyond
	}
}
