package turn_test

import (
	"fmt"
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-go/weir/internal/jobs/turn"
)

// tenant is one of a random line.
type tenant struct {
	turn.Tenant
	weight  float64
	largest float64   // of its costs
	waiting []float64 // the costs of its jobs, in order
	had     float64   // what it was granted
}

func (t *tenant) share() float64 { return t.had / t.weight }
func (t *tenant) bound() float64 { return t.largest / t.weight }

// between are two tenants that both wait, since some time.
type between struct{ a, b float64 } // what they had then, by weight

// crowd is a random line.
type crowd struct {
	line  turn.Line
	all   []*tenant
	since map[[2]int]between
}

func someTenants(t *rapid.T) *crowd {
	c := &crowd{since: map[[2]int]between{}}
	for i := range rapid.IntRange(2, 6).Draw(t, "tenants") {
		c.all = append(c.all, &tenant{Tenant: turn.Tenant{Name: fmt.Sprint(i)},
			weight:  rapid.SampledFrom([]float64{0.5, 1, 1, 1, 3, 10}).Draw(t, "weight"),
			largest: rapid.Float64Range(1, 1000).Draw(t, "largest")})
	}
	return c
}

// come has jobs of a tenant come.
func (c *crowd) come(t *rapid.T, i, n int) {
	for range n {
		cost := rapid.Float64Range(c.all[i].largest/100, c.all[i].largest).Draw(t, "cost")
		c.all[i].waiting = append(c.all[i].waiting, cost)
	}
}

// grant grants one job, if any waits.
func (c *crowd) grant() *tenant {
	var waiting []*turn.Tenant
	for _, w := range c.all {
		if len(w.waiting) > 0 {
			waiting = append(waiting, &w.Tenant)
		}
	}
	next := c.line.Next(waiting)
	if next == nil {
		return nil
	}
	for _, w := range c.all {
		if &w.Tenant == next {
			cost := w.waiting[0]
			c.line.Grant(waiting, next, cost, w.weight)
			w.waiting, w.had = w.waiting[1:], w.had+cost
			return w
		}
	}
	return nil
}

// check compares those who have both waited: their shares must have grown alike.
func (c *crowd) check(t *rapid.T) {
	for i, a := range c.all {
		for j, b := range c.all[:i] {
			pair := [2]int{i, j}
			if len(a.waiting) == 0 || len(b.waiting) == 0 {
				delete(c.since, pair)
				continue
			}
			if _, ok := c.since[pair]; !ok {
				c.since[pair] = between{a.share(), b.share()}
			}
			from := c.since[pair]
			apart := math.Abs(a.share() - from.a - (b.share() - from.b))
			if most := a.bound() + b.bound(); apart > most*(1+1e-9) {
				t.Fatalf("tenants %s and %s both wait, and what they had differs by %v, by weight; want at most %v",
					a.Name, b.Name, apart, most)
			}
		}
	}
}

// What tenants that wait are granted, by weight, differs by no more than one largest count of each,
// whenever they come and go, and whatever the others do.
func TestTenantsThatWaitGetTheirShares(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := someTenants(t)
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "come") {
				c.come(t, rapid.IntRange(0, len(c.all)-1).Draw(t, "who"), rapid.IntRange(1, 20).Draw(t, "jobs"))
			} else {
				c.grant()
			}
			c.check(t)
		}
	})
}

// Max-min fairness: tenants that want little have all of it, and those that want more have the same
// each, by weight, within two largest counts.
func TestTheRestIsSharedByThoseWhoWantMore(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := someTenants(t)
		wants := make([]float64, len(c.all))
		for i, w := range c.all {
			c.come(t, i, rapid.IntRange(1, 100).Draw(t, "jobs"))
			for _, cost := range w.waiting {
				wants[i] += cost
			}
		}
		total := 0.0
		for range rapid.IntRange(1, 300).Draw(t, "grants") {
			if w := c.grant(); w == nil {
				break
			}
		}
		largest := 0.0
		for _, w := range c.all {
			total, largest = total+w.had, max(largest, w.bound())
		}
		level := c.level(wants, total)
		for i, w := range c.all {
			fair := min(wants[i], level*w.weight)
			if off := math.Abs(w.had - fair); off > 2*largest*w.weight*(1+1e-9) {
				t.Fatalf("tenant %s has %v of the %v it wants, its max-min share is %v: off by more than two of the largest counts, %v by weight",
					w.Name, w.had, wants[i], fair, largest)
			}
		}
	})
}

// level is what each tenant has for a weight of 1, if total is shared by max-min fairness.
func (c *crowd) level(wants []float64, total float64) float64 {
	low, high := 0.0, 1e9
	for range 200 {
		middle, sum := (low+high)/2, 0.0
		for i, w := range c.all {
			sum += min(wants[i], middle*w.weight)
		}
		if sum < total {
			low = middle
		} else {
			high = middle
		}
	}
	return high
}

// A tenant that comes late has its first turn after at most one job of each other.
func TestWhoComesLateWaitsForOneJobOfEachOther(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := someTenants(t)
		for i := range c.all[1:] {
			c.come(t, i+1, 100)
		}
		for range rapid.IntRange(0, 100).Draw(t, "grants") {
			c.grant()
		}
		c.come(t, 0, 1)
		seen := map[string]bool{}
		for w := c.grant(); w != c.all[0]; w = c.grant() {
			if w == nil || seen[w.Name] {
				t.Fatalf("a second job of %+v goes before the first of one who came late", w)
			}
			seen[w.Name] = true
		}
	})
}

func TestARefundIsSpentOnTheNextJobs(t *testing.T) {
	t.Parallel()
	line := turn.Line{Virtual: 100}
	a := turn.Tenant{Name: "a", At: 130}
	line.Correct(&a, -50, 2, true) // it waits
	line.Grant([]*turn.Tenant{&a}, &a, 20, 2)
	if a.At != 130 || a.Credit != 30 {
		t.Errorf("after a job of 20, with a refund of 50: %+v, want it at 130 with 30 left", a)
	}
	line.Grant([]*turn.Tenant{&a}, &a, 40, 2)
	if a.At != 135 || a.Credit != 0 {
		t.Errorf("after another of 40: %+v, want it at 135 with nothing left", a)
	}
	line.Correct(&a, -50, 2, false)
	if a.Credit != 0 {
		t.Errorf("a tenant that does not wait has a credit of %v", a.Credit)
	}
	line.Correct(&a, 10, 2, false)
	if a.At != 140 {
		t.Errorf("after 10 more than it was charged: at %v, want 140", a.At)
	}
}

func TestLevelsGoBeforeShares(t *testing.T) {
	t.Parallel()
	line := turn.Line{}
	low, high := &turn.Tenant{Name: "low", Level: 2}, &turn.Tenant{Name: "high", Level: 1, At: 1000}
	if got := line.Next([]*turn.Tenant{low, high}); got != high {
		t.Errorf("%+v is next, want high", got)
	}
	if line.Grant([]*turn.Tenant{low, high}, high, 1, 1); line.Virtual != 0 {
		t.Errorf("the line is at %v, want 0, where low stands", line.Virtual)
	}
	high.Out = true
	if got := line.Next([]*turn.Tenant{low, high}); got != low {
		t.Errorf("%+v is next, want low, as high is out", got)
	}
	low.Out = true
	if got := line.Next([]*turn.Tenant{low, high}); got != nil {
		t.Errorf("%+v is next, and all are out", got)
	}
}

// A weight so large that its jobs cost next to nothing does not keep all others from their turns, not
// even where the line's time is so large that such a cost is lost in rounding.
func TestALargeWeightKeepsNobodyFromItsTurn(t *testing.T) {
	t.Parallel()
	l := turn.Line{Virtual: 1 << 33}
	large, small := &turn.Tenant{Name: "a", At: l.Virtual}, &turn.Tenant{Name: "b", At: l.Virtual}
	all, weights, had := []*turn.Tenant{large, small}, map[*turn.Tenant]float64{large: 1 << 20, small: 1 << 20}, 0
	for range 100 {
		next := l.Next(all)
		if l.Grant(all, next, 0x1p-20, weights[next]); next == small {
			had++
		}
	}
	if had < 10 {
		t.Errorf("one of two tenants had %d of 100 turns", had)
	}
}
