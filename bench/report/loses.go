package main

import (
	"fmt"
	"slices"
	"strings"
)

// Whatever these texts say is computed: a sentence that the figures do not bear is not written.

// faster reports whether a was faster than b in each round, and by what in the median. The rounds
// of two contenders are next to each other, so what holds in each of them is no accident of the
// machine.
func faster(a, b *cell) (by float64, always bool) {
	ratios := make([]float64, min(len(a.rates), len(b.rates)))
	always = len(ratios) > 0
	for i := range ratios {
		ratios[i] = a.rates[i] / max(b.rates[i], 1) // a slice may be too short for one call
		always = always && ratios[i] > 1
	}
	return median(ratios), always
}

// of are the contenders of whom it holds.
func (f *figures) of(holds func(contender) bool) (all []contender) {
	for _, c := range f.contenders {
		if holds(c) {
			all = append(all, c)
		}
	}
	return all
}

// fastest is the one with the highest throughput in a setting, nil if none was measured there.
func (f *figures) fastest(among []contender, s setting) *contender {
	var best *contender
	for i, c := range among {
		if cell := f.cells[c.name][s]; cell != nil &&
			(best == nil || cell.rate() > f.cells[best.name][s].rate()) {
			best = &among[i]
		}
	}
	return best
}

// settings are all, in the order of the tables.
func settings() (all []setting) {
	for _, w := range workloads {
		for _, n := range callers {
			all = append(all, setting{w, n})
		}
	}
	return all
}

// loses is the chapter on where Weir is not the best.
func (f *figures) loses() string {
	ways := f.of(func(c contender) bool { return c.family == weir })
	joined := f.of(func(c contender) bool { return c.family == weir && c.joins })
	others := f.of(func(c contender) bool { return c.family != weir })
	var b strings.Builder
	b.WriteString(
		"Limiters with a higher throughput than Weir's fastest way. Their factor is the median of the rounds:\n\n",
	)
	b.WriteString(f.fasterTable(ways, others))
	b.WriteString(
		"\nFaster than the fastest of Weir's ways that roll back with the caller's writes:\n\n",
	)
	b.WriteString(f.fasterTable(joined, others))
	b.WriteString("\n")
	for _, o := range others {
		b.WriteString(f.tally(o, ways))
	}
	return b.String()
}

func (f *figures) fasterTable(ways, others []contender) string {
	var b strings.Builder
	b.WriteString("| | | Weir's | faster |\n|---|---|---|---|\n")
	for _, s := range settings() {
		best := f.fastest(ways, s)
		if best == nil {
			continue
		}
		type lead struct {
			name string
			by   float64
		}
		var leads []lead
		for _, o := range others {
			if cell := f.cells[o.name][s]; cell != nil {
				if by, always := faster(cell, f.cells[best.name][s]); always {
					leads = append(leads, lead{o.name, by})
				}
			}
		}
		slices.SortStableFunc(leads, func(x, y lead) int {
			if x.by > y.by {
				return -1
			}
			return 1
		})
		text := make([]string, len(leads))
		for i, l := range leads {
			text[i] = l.name + " " + times(l.by)
		}
		if len(leads) == 0 {
			text = []string{"none"}
		}
		fmt.Fprintf(&b, "| %s | %s | %s (%s/s) | %s |\n", s.workload, callersText(s.callers),
			best.name,
			thousands(f.cells[best.name][s].rate()), strings.Join(text, ", "))
	}
	return b.String()
}

// tally says of how many settings another is faster or slower than all of Weir's ways.
func (f *figures) tally(o contender, ways []contender) string {
	var all, above, below int
	for _, s := range settings() {
		cell := f.cells[o.name][s]
		if cell == nil {
			continue
		}
		all++
		fasterThan, slowerThan, compared := 0, 0, 0
		for _, w := range ways {
			if own := f.cells[w.name][s]; own != nil {
				compared++
				if _, always := faster(cell, own); always {
					fasterThan++
				}
				if _, always := faster(own, cell); always {
					slowerThan++
				}
			}
		}
		if fasterThan == compared {
			above++
		}
		if slowerThan == compared {
			below++
		}
	}
	return fmt.Sprintf("- **%s** was faster than every way of Weir in %s, and slower than every way in %s.\n",
		o.name,
		ofSettings(above, all), ofSettings(below, all))
}

func ofSettings(n, all int) string {
	switch n {
	case 0:
		return fmt.Sprintf("none of %d settings", all)
	case all:
		return fmt.Sprintf("all %d settings", all)
	}
	return fmt.Sprintf("%d of %d settings", n, all)
}

// times writes a factor.
func times(x float64) string {
	if x < 9.95 {
		return fmt.Sprintf("%.1f times", x)
	}
	return thousands(x) + " times"
}

// short is the share of what was allowed, in percent, below which a limiter has withheld tokens
// that were there: 64 callers who never pause leave none behind.
const short = 95

// auditText says who granted too much, and who too little.
func (f *figures) auditText() string {
	var over, under, slow []string
	for _, c := range f.contenders {
		a := f.audits[c.name]
		switch {
		case a.over() > 0:
			over = append(over, fmt.Sprintf("%s (%s)", c.name, beyond(a.over())))
		case a.share() < short && a.denied():
			under = append(under, fmt.Sprintf("%s (%.0f %%)", c.name, a.share()))
		case a.share() < short:
			slow = append(slow, fmt.Sprintf("%s (%.0f %%)", c.name, a.share()))
		}
	}
	text := "No limiter granted more than the limit allows."
	if len(over) > 0 {
		text = "More than the limit allows was granted by " + strings.Join(over, ", ") + "."
	}
	if len(under) > 0 {
		text += fmt.Sprintf(" Some denied calls although they had granted less than %d %% of what was allowed: %s.",
			short, strings.Join(under, ", "))
	}
	if len(slow) > 0 {
		text += fmt.Sprintf(" Some were too slow to reach the limit, so they denied no call: %s.",
			strings.Join(slow, ", "))
	}
	return wrap(text, "") + "\n"
}
