package spread

import (
	"cmp"
	"math"
	"slices"

	"github.com/weir-go/weir/internal/limits/algebra"
)

// Part is what is to be taken from one shard.
type Part struct {
	Shard int
	Count float64 // tokens
	Most  float64 // that may be taken
	Least float64 // that must be left
}

// Plan says how a limit grants a call.
type Plan struct {
	// the shards that would grant the call alone, the fullest first. If there are none:
	Able  []int
	Parts []Part // what to take from several, in the order of their rows
	Ahead bool   // the parts are reserved
	// no more than half of the shards would grant the call alone, or the parts are gathered from
	// what little room MaxReserved or Within leaves in each
	Scarce bool
}

// Gathers reports whether the plan takes what little several shards have left.
func (p *Plan) Gathers() bool { return len(p.Able) == 0 && (!p.Ahead || p.Scarce) }

// Plan returns how the limit would grant the call at now. If no shard grants it alone, Plan gathers
// tokens from the fullest shards, or reserves in several so that their lines stay level. With ahead
// it only reserves. It uses only shards that may allows; nil allows all.
func (w *Whole) Plan(a *algebra.Ask, now int64, ahead bool, may func(int) bool) (p Plan, ok bool) {
	shares := a.Shares(w.Shards)
	most, share := Largest(a, &shares)
	if most < share && most*float64(w.Shards) >= a.Count {
		if p, ok := w.planBy(a, now, ahead, may, shares, most); ok {
			return p, true
		}
	}
	return w.planBy(a, now, ahead, may, shares, share)
}

// planBy is Plan for parts of at most so many tokens, unless they must be larger.
func (w *Whole) planBy(
	a *algebra.Ask, now int64, ahead bool, may func(int) bool, shares algebra.Shares, most float64,
) (p Plan, ok bool) {
	there := make([]Part, 0, w.Shards)
	var loose []Part // the shards that are not paused
	row := *a
	var values []float64
	left, able := -a.Count, 0
	for i := range w.Shards {
		row.Rule, row.Leave = *shares.Of(i), leaves(a, w.Shards, i)
		b := row.At(w.Rows[i], now)
		values = append(values, b.Value)
		left += max(0, b.Value)
		_, alone := row.Grants(b)
		if alone {
			able++
		}
		if may != nil && !may(i) {
			continue
		}
		one := Part{Shard: i, Count: b.Value - row.Leave, Most: shares.Each.Capacity}
		if there = append(there, one); b.PausedUntil == algebra.Open {
			loose = append(loose, one)
		}
		if alone && (a.Count <= most || b.Value >= a.Count || w.Shards == 1 || !a.Pausable()) {
			p.Able = append(p.Able, i)
		}
	}
	rounded := (a.Count + a.Capacity) * lastDigits
	if w.Shards > 1 && left < a.Leave-rounded && a.Leave > 0 {
		return Plan{}, false
	}
	if len(p.Able) > 0 {
		slices.SortStableFunc(p.Able, func(a, b int) int {
			return cmp.Compare(values[b], values[a])
		})
		p.Scarce = 2*able <= w.Shards
		return p, true
	}
	if w.Shards == 1 || len(there) == 0 {
		return p, false
	}
	if !ahead {
		if p.Parts, ok = Gather(loose, a.Count, rounded); ok {
			for k := range p.Parts {
				q := &p.Parts[k]
				// the second may be rounded
				q.Least = min(leaves(a, w.Shards, q.Shard), values[q.Shard]-q.Count)
			}
			return p, true
		}
	}
	if !a.Pausable() {
		return p, false
	}
	// Use few rows, but so many that none has to give more than half a share unless it has more
	// tokens than others: then their lines can be level. If MaxReserved is nearly reached, more
	// shards may have room when these have not. One shard alone has none, as none is able.
	slices.SortStableFunc(there, byCount)
	all := float64(len(there))
	usual := all
	if size := min(most, shares.Each.Capacity/2); size > 0 {
		usual = min(math.Ceil(a.Count/size), all)
	}
	for k := max(usual, min(2, all)); ; k = min(2*k, all) {
		if p, ok = w.planAhead(a, now, there[:int(k)]); ok || k == all {
			p.Scarce = ok && k > usual
			return p, ok
		}
	}
}

// planAhead reserves in some shards, and leaves out those that do not grant their parts. A part may
// be larger than it should only if all shards together have no room.
func (w *Whole) planAhead(a *algebra.Ask, now int64, there []Part) (p Plan, ok bool) {
	p.Ahead = true
	for {
		sum := 0.0
		for _, q := range there {
			sum += q.Most
		}
		if len(there) == 0 || sum < a.Count && len(there) < w.Shards {
			return Plan{}, false
		}
		free, rooms := slices.Clone(there), make([]float64, w.Shards)
		for k := range free {
			q := &free[k]
			if sum < a.Count*(1-rounding) {
				q.Most = math.Inf(1)
			}
			rooms[q.Shard] = room(a, w.Shards, q)
			q.Most = min(q.Most, rooms[q.Shard])
		}
		p.Parts = Level(free, a.Count)
		var denied []int
		for k := range p.Parts {
			q := &p.Parts[k]
			if over := q.Count - rooms[q.Shard]; over > 0 && over <= (a.Count+a.Capacity)*lastDigits {
				q.Count = rooms[q.Shard]
			}
			row := PartOf(a, w.Shards, q.Shard, q.Count)
			if _, ok := row.Grants(row.At(w.Rows[q.Shard], now)); !ok {
				denied = append(denied, q.Shard)
			}
			q.Least = max(q.Least, row.Least())
		}
		if len(denied) == 0 {
			return p, true
		}
		there = slices.DeleteFunc(slices.Clone(there), func(q Part) bool {
			return slices.Contains(denied, q.Shard)
		})
	}
}

// rounding is how much of a count may be missing because the parts of something were rounded.
const rounding = 1e-9

// lastDigits is how much of a number may be missing because its parts were added up.
const lastDigits = 0x1p-50

// room returns how much a shard grants ahead, as far as MaxReserved bounds that.
func room(a *algebra.Ask, n int, q *Part) float64 {
	if a.Credit { // then the bound is for what stands before the call
		return math.Inf(1)
	}
	row := OfShard(a, n, q.Shard)
	least := row.Floor(true)
	most := q.Count - least
	for most > 0 && q.Count-most < least { // by rounding
		most = math.Nextafter(most, 0)
	}
	return max(0, most)
}

// byCount sorts the fullest first.
func byCount(a, b Part) int { return cmp.Or(cmp.Compare(b.Count, a.Count), a.Shard-b.Shard) }

func byShard(a, b Part) int { return a.Shard - b.Shard }

// Gather takes n from the fullest shards, and from as few as possible. The parts may add up to less
// than n, by what may be missing because shares of a limit are rounded.
func Gather(there []Part, n, rounded float64) (parts []Part, ok bool) {
	there = slices.SortedStableFunc(slices.Values(there), byCount)
	rest := n
	for _, p := range there {
		if p.Count < 0 || p.Count == 0 && n > 0 {
			break
		}
		p.Count = min(p.Count, rest)
		parts = append(parts, p)
		if rest -= p.Count; rest <= rounded {
			slices.SortFunc(parts, byShard)
			return parts, true
		}
	}
	return nil, false
}

// Excess says which shards are charged n tokens that were used, but not reserved: the fullest ones,
// and no more of them than have n together. In a limit that is nearly empty, many shards have a
// little. Then only a few are charged, and owe what they do not have. The others may still grant
// the little that they have.
func Excess(there []Part, n, share float64) []Part {
	there = slices.SortedStableFunc(slices.Values(there), byCount)
	few := int(min(4+2*math.Ceil(n/share), float64(len(there))))
	if parts, ok := Gather(there[:few], n, 0); ok {
		return parts
	}
	// half a share each, as far as that is possible
	owing := int(min(math.Ceil(2*n/share), float64(few)))
	for owing < few && there[owing].Count > n/8 { // for less, no further row is locked
		owing++
	}
	return Level(there[:max(1, owing)], n)
}

// Level takes n so that the shards from which it takes are left with the same number of tokens. It
// takes more than most from a shard only if all of them together have no room.
func Level(there []Part, n float64) []Part {
	there = slices.SortedStableFunc(slices.Values(there), byCount)
	room := 0.0
	for _, p := range there {
		room += p.Most
	}
	if room < n*(1-rounding) {
		for k := range there {
			there[k].Most = math.Inf(1)
		}
	}
	taken := func(left float64) (sum float64) {
		for _, p := range there {
			sum += min(p.Most, max(0, p.Count-left))
		}
		return sum
	}
	left, above := there[len(there)-1].Count-n, there[0].Count
	for range 64 {
		if middle := left + (above-left)/2; taken(middle) >= n {
			left = middle
		} else {
			above = middle
		}
	}
	// Round to few digits, like the parts of what was divided (see shard.Split). Then they add up
	// without rounding, and a debt of ten tokens does not become one that a window of ten cannot
	// repay. Round down, so that the last part is none that has to take more than the others.
	if _, exp := math.Frexp(max(math.Abs(there[0].Count), n)); n > 0 {
		left = math.Ldexp(math.Floor(math.Ldexp(left, 44-exp)), exp-44)
	}
	var parts []Part
	rest := n
	for _, p := range there {
		had := p.Count
		if p.Count = min(p.Most, max(0, had-left), rest); p.Count <= n*rounding {
			continue
		}
		rest -= p.Count
		p.Least = had - 3*p.Count
		parts = append(parts, p)
	}
	if len(parts) == 0 {
		parts = append(parts, Part{Shard: there[0].Shard, Least: math.Inf(-1)})
	}
	if last := &parts[len(parts)-1]; rest > 0 { // by rounding
		last.Count += rest
		last.Least -= rest
	}
	slices.SortFunc(parts, byShard)
	return parts
}
