package ticket

import (
	"cmp"
	"slices"

	"github.com/weir-go/weir/ratelimit"
)

// Gaps are the places that jobs have left in the lines of their limits, in the order in which they
// left: those behind them move up.
type Gaps map[Row][]gap

type gap struct {
	at   int64 // when it was left
	take ratelimit.Take
}

// Left remembers the gaps of a job that has been freed.
func (g Gaps) Left(t *Ticket) {
	g.CloseUp(t, t.Gone)
	for _, k := range t.Taken.Takes {
		if k.Ahead() { // else the line has moved for all
			of := Row{k.Limit, k.Key}
			g[of] = append(g[of], gap{t.Gone, k})
			slices.SortFunc(g[of], func(a, b gap) int { return cmp.Compare(a.at, b.at) })
		}
	}
	if t.First != nil {
		g.Left(t.First)
	}
}

// CloseUp moves a ticket up by the gaps before it that it does not know of yet, of those that were
// left before some time, and reports whether there were any.
func (g Gaps) CloseUp(t *Ticket, before int64) (moved bool) {
	at, takes := t.At, t.Taken.Takes
	for i, k := range takes {
		for _, left := range g[Row{k.Limit, k.Key}] {
			if at < left.at && left.at < before && takes[i].Behind(left.take) {
				takes[i], moved = takes[i].MoveUp(left.take.Count), true
				t.At = max(t.At, left.at)
			}
		}
	}
	return moved
}

// Forget forgets gaps that were left before some time, and of each limit and key the oldest beyond
// a number.
func (g Gaps) Forget(before int64, most int) {
	for of, all := range g {
		i := slices.IndexFunc(all, func(left gap) bool { return left.at >= before })
		if i < 0 {
			i = len(all)
		}
		if i = max(i, len(all)-most); i == len(all) {
			delete(g, of)
		} else {
			g[of] = slices.Delete(all, 0, i)
		}
	}
}
