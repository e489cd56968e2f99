package main

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/mattn/go-runewidth"
)

// writeJSON is the answer to --json.
func (e *env) writeJSON(v any) error {
	enc := json.NewEncoder(e.out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

type colour string

const (
	none   colour = ""
	green  colour = "32"
	yellow colour = "33"
	red    colour = "31"
	cyan   colour = "36"
	bold   colour = "1"
	dim    colour = "2"
)

func (e *env) paint(c colour, text string) string {
	if c == none || text == "" || e.plain() {
		return text
	}
	return "\x1b[" + string(c) + "m" + text + "\x1b[0m"
}

// printable is a name or a key for a terminal, in which others may have put anything: what does not
// print is escaped.
func printable(s string) string {
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return strconv.QuoteToGraphic(s)
		}
	}
	if s == "" {
		return `""`
	}
	return s
}

// number writes at most two decimals, with commas, and rounds down: never more than there is, but
// for what float64 loses of a decimal fraction.
func number(v float64) string {
	const lost = 1e-9
	down := math.Floor(v*100+lost) / 100
	if math.Abs(v) >= 1<<50 {
		down = math.Floor(v)
	}
	text := strconv.FormatFloat(math.Abs(down), 'f', -1, 64)
	whole, fraction, _ := strings.Cut(text, ".")
	var b strings.Builder
	if down < 0 {
		b.WriteByte('-')
	}
	for i, digit := range whole {
		if i > 0 && (len(whole)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(digit)
	}
	if fraction != "" {
		b.WriteString("." + fraction)
	}
	return b.String()
}

// several writes how many there are of what is called so.
func several(n int64, one string) string {
	if n != 1 {
		one += "s"
	}
	return number(float64(n)) + " " + one
}

// lasting writes a duration by its two largest units.
func lasting(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + lasting(-max(d, -math.MaxInt64))
	case d < time.Microsecond:
		return "0s"
	case d < time.Millisecond:
		return strconv.FormatInt(d.Microseconds(), 10) + "µs"
	case d < time.Second:
		return strconv.FormatFloat(float64(d)/float64(time.Millisecond), 'g', 3, 64) + "ms"
	case d < time.Minute:
		return strconv.FormatFloat(math.Floor(d.Seconds()*10)/10, 'f', -1, 64) + "s"
	}
	const day = 24 * time.Hour
	text := ""
	for _, unit := range []struct {
		size time.Duration
		name string
	}{{365 * day, "y"}, {day, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}} {
		n := d / unit.size
		if n > 0 {
			d -= n * unit.size
			if text != "" {
				return text + fmt.Sprint(int64(n)) + unit.name
			}
			text = fmt.Sprint(int64(n)) + unit.name
		} else if text != "" {
			break
		}
	}
	return text
}

func instant(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// rule writes how many tokens come.
func rule(capacity, rate float64, period time.Duration, windowed bool) string {
	n := number(rate)
	if rate < 1 {
		n = strconv.FormatFloat(rate, 'g', 3, 64)
	}
	text := n + " per " + lasting(period)
	if windowed {
		text = n + " each " + lasting(period)
	}
	if capacity != rate {
		text += ", at most " + number(capacity)
	}
	return text
}

// bar draws how much of the capacity is left, in so many cells.
func (e *env) bar(value, capacity float64, cells int) string {
	share := 0.0
	if capacity > 0 && value > 0 {
		share = min(1, value/capacity)
	}
	if e.plain() {
		full := int(share * float64(cells))
		if full == 0 && share > 0 {
			full = 1
		}
		return "[" + strings.Repeat("#", full) + strings.Repeat(".", cells-full) + "]"
	}
	eighths := int(share * float64(cells) * 8)
	if eighths == 0 && share > 0 {
		eighths = 1
	}
	filled := strings.Repeat("█", eighths/8)
	used := eighths / 8
	if part := eighths % 8; part > 0 {
		filled += string([]rune("▏▎▍▌▋▊▉")[part-1])
		used++
	}
	return e.paint(shade(value, capacity), filled) + e.paint(dim, strings.Repeat("░", cells-used))
}

func shade(value, capacity float64) colour {
	switch {
	case value < 0:
		return red
	case value < capacity/10:
		return yellow
	}
	return green
}

// cell is a field of a table.
type cell struct {
	text  string
	paint colour
	right bool
	cells int // its width, if the text has colours of its own
}

func (c cell) width() int {
	if c.cells > 0 {
		return c.cells
	}
	return runewidth.StringWidth(c.text)
}

// table writes rows under a head, aligned. Where the terminal is too narrow, the columns that give
// are cut, in their order.
func (e *env) table(head []string, gives []int, rows [][]cell) {
	const gap = 2
	widths := make([]int, len(head))
	for i, h := range head {
		widths[i] = runewidth.StringWidth(h)
		for _, row := range rows {
			widths[i] = max(widths[i], row[i].width())
		}
	}
	total := gap * (len(widths) - 1)
	for _, w := range widths {
		total += w
	}
	const least = 12
	for _, i := range gives {
		if over := total - e.width; e.width > 0 && over > 0 && widths[i] > least {
			cut := min(over, widths[i]-least)
			widths[i], total = widths[i]-cut, total-cut
		}
	}
	line := func(row []cell) {
		var b strings.Builder
		for i, c := range row {
			if c.cells == 0 && c.width() > widths[i] {
				c.text = runewidth.Truncate(c.text, widths[i], "~")
			}
			pad := strings.Repeat(" ", widths[i]-c.width())
			text := e.paint(c.paint, c.text)
			if c.right {
				text = pad + text
			} else {
				text += pad
			}
			b.WriteString(text)
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", gap))
			}
		}
		e.sayf("%s\n", strings.TrimRight(b.String(), " "))
	}
	top := make([]cell, len(head))
	for i, h := range head {
		top[i] = cell{text: h, paint: bold, right: len(rows) > 0 && rows[0][i].right}
	}
	line(top)
	for _, row := range rows {
		line(row)
	}
}
