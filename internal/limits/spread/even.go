package spread

import (
	"cmp"
	"slices"

	"github.com/weir-go/weir/internal/limits/algebra"
)

// Even are equal parts of a count, each to be taken from one of some shards.
type Even struct {
	Parts  int
	From   []int   // candidates, the fullest first
	Least  float64 // that each must be left with
	AtOnce int     // how many of the candidates have their part, so that it need not wait
}

// Even returns how to take a count that is too large for one shard in equal parts, if the shards
// that may allows can grant them.
//
// The number of parts is a power of two, so that they add up exactly. A part may be half as large
// again as the call should wait for in one shard, because more parts lock more rows, but not larger
// than half a share. There are four candidates for each, as other transactions may hold some of
// them. Each may be two parts worse than the last candidate is known to be.
func (w *Whole) Even(a *algebra.Ask, now int64, may func(int) bool) (e Even, ok bool) {
	shares := a.Shares(w.Shards)
	most, share := Largest(a, &shares)
	if a.Count <= most {
		return e, false
	}
	for e.Parts = 2; a.Count > float64(e.Parts)*min(1.5*most, share/2); {
		if e.Parts *= 2; e.Parts > w.Shards {
			return e, false
		}
	}
	part := a.Count / float64(e.Parts)
	left := make(map[int]float64, w.Shards)
	for i := range w.Shards {
		row := PartOf(a, w.Shards, i, part)
		if after, ok := row.Grants(row.At(w.Rows[i], now)); ok && may(i) {
			left[i], e.From = after.Value, append(e.From, i)
		}
	}
	if len(e.From) < e.Parts {
		return e, false
	}
	slices.SortStableFunc(e.From, func(i, j int) int { return cmp.Compare(left[j], left[i]) })
	e.From = e.From[:min(len(e.From), 4*e.Parts)]
	e.Least = left[e.From[len(e.From)-1]] - 2*part
	for e.AtOnce < len(e.From) && left[e.From[e.AtOnce]] >= 0 {
		e.AtOnce++
	}
	return e, true
}
