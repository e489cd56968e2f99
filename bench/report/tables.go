package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// parts are the generated parts of the page, by their marks.
func (f *figures) parts() map[string]string {
	return map[string]string{
		"short":      f.short(),
		"contenders": f.contendersTable(),
		"many":       f.speedTable(manyKeys),
		"one":        f.speedTable(oneKey),
		"audit":      f.auditTable() + "\n" + f.auditText(),
		"loses":      f.loses(),
	}
}

func (c config) String() string {
	rounds := "one round"
	if c.rounds > 1 {
		rounds = fmt.Sprintf("the median of %d rounds", c.rounds)
	}
	return wrap(fmt.Sprintf("Each figure is %s of %v, after %v of warming up; for the table of grants, calls were counted for %v in "+
		"each round. Many keys are %s.", rounds, c.length, c.warm, c.audit,
		thousands(float64(c.keys))), "") + "\n"
}

// emptyText tells what the measuring costs, which is in all figures.
func (f *figures) emptyText() string {
	return fmt.Sprintf("Calling and measuring a limiter that does nothing took %s.\n",
		duration(time.Duration(1e9/f.empty.rate())))
}

// short tells the spans of what a call takes, by where the balances are.
func (f *figures) short() string {
	s := setting{manyKeys, 1}
	var spans []string
	for _, where := range []struct {
		family family
		name   string
	}{{memory, "in memory"}, {inRedis, "over Redis"}, {weir, "with Weir"},
		{postgres, "with the others on Postgres"}} {
		var all []time.Duration
		for _, c := range f.contenders {
			if cell := f.cells[c.name][s]; cell != nil && c.family == where.family {
				all = append(all, median(cell.p50))
			}
		}
		if len(all) == 0 {
			continue
		}
		span := duration(slices.Min(all))
		if most := duration(slices.Max(all)); most != span {
			span += " to " + most
		}
		spans = append(spans, span+" "+where.name)
	}
	return wrap(fmt.Sprintf("With one caller and %s, a call took at the median: %s.", s.workload,
		strings.Join(spans, ", ")), "") + "\n"
}

func (f *figures) contendersTable() string {
	var b strings.Builder
	yes := map[bool]string{true: "yes", false: "no"}
	b.WriteString(
		"| | balances in | one limit for all processes | rolls back with the caller's writes |\n|---|---|---|---|\n",
	)
	for _, c := range f.contenders {
		where := string(c.family)
		if c.family == weir {
			where = string(postgres)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", c.name, where, yes[c.shared], yes[c.joins])
	}
	for _, c := range f.contenders {
		b.WriteString("\n" + wrap(fmt.Sprintf("- **%s.** %s", c.name, c.about), "  "))
	}
	return b.String() + "\n"
}

func (f *figures) speedTable(w workload) string {
	var b strings.Builder
	b.WriteString("| |")
	for _, n := range callers {
		fmt.Fprintf(&b, " %s |", callersText(n))
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(callers)) + "\n")
	for _, c := range f.contenders {
		fmt.Fprintf(&b, "| %s |", c.name)
		for _, n := range callers {
			cell, ok := f.cells[c.name][setting{w, n}]
			if !ok {
				b.WriteString(" - |")
				continue
			}
			fmt.Fprintf(&b, " %s (%s, %s) |", thousands(cell.rate()), duration(median(cell.p50)),
				duration(median(cell.p99)))
		}
		b.WriteString("\n")
	}
	return b.String()
}

func (f *figures) auditTable() string {
	var b strings.Builder
	b.WriteString(
		"| | calls a second | granted | allowed | granted of what was allowed | granted beyond |\n|---|---|---|---|---|---|\n",
	)
	for _, c := range f.contenders {
		a := f.audits[c.name]
		granted, allowed := a.most()
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %.1f %% | %s |\n", c.name,
			thousands(median(a.rates)),
			thousands(float64(granted)), thousands(allowed), a.share(), beyond(a.over()))
	}
	return b.String()
}

// beyond writes thousandths in percent.
func beyond(over int) string { return fmt.Sprintf("%.1f %%", float64(over)/10) }

func callersText(n int) string {
	if n == 1 {
		return "1 caller"
	}
	return fmt.Sprintf("%d callers", n)
}

// thousands writes a whole number, in groups of three digits.
func thousands(x float64) string {
	s := strconv.FormatFloat(x, 'f', 0, 64)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// duration writes two or three digits that count.
func duration(d time.Duration) string {
	x, unit := float64(d), "ns"
	for _, larger := range []string{"µs", "ms", "s"} {
		if x < 999.5 {
			break
		}
		x, unit = x/1000, larger
	}
	if x >= 10 || unit == "ns" {
		return fmt.Sprintf("%.0f %s", x, unit)
	}
	return fmt.Sprintf("%.1f %s", x, unit)
}

// wrap breaks a paragraph into lines, of which all but the first are indented.
func wrap(text, indent string) string {
	const most = 128
	var b strings.Builder
	used := 0
	for i, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case used+1+n > most:
			b.WriteString("\n" + indent)
			used = len(indent)
		default:
			b.WriteByte(' ')
			used++
		}
		b.WriteString(word)
		used += n
	}
	return b.String()
}
