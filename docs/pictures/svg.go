package main

import (
	"fmt"
	"html"
	"strconv"
	"strings"
)

// style is for light pages and for dark ones. The picture brings its own background, as a page may
// be light while the system is dark.
const style = `<style>
text { font: 13px "Helvetica Neue", Helvetica, Arial, sans-serif; fill: #1f2328 }
.small { font-size: 12px }
.strong { font-weight: bold }
.code { font: 12px "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace }
.faint { fill: #59636e }
.page { fill: #ffffff }
.box { fill: #f6f8fa; stroke: #818b98 }
.answer { fill: #ddf4ff; stroke: #0969da }
.held { fill: #fff1e5; stroke: #bc4c00 }
.grid { stroke: #d1d9e0 }
.axis { stroke: #59636e }
.edge { stroke: #59636e; fill: none; stroke-width: 1.5 }
.waits { stroke: #bc4c00; fill: none; stroke-width: 1.5; stroke-dasharray: 5 4 }
.curve { stroke: #0969da; fill: none; stroke-width: 2.5 }
.debt { fill: #bc4c00; fill-opacity: 0.18 }
.pause { fill: #59636e; fill-opacity: 0.18 }
.head { fill: #59636e }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc }
.faint { fill: #9198a1 }
.page { fill: #0d1117 }
.box { fill: #151b23; stroke: #656c76 }
.answer { fill: #10243e; stroke: #4493f8 }
.held { fill: #301a0e; stroke: #db6d28 }
.grid { stroke: #2f3742 }
.axis { stroke: #9198a1 }
.edge { stroke: #9198a1 }
.waits { stroke: #db6d28 }
.curve { stroke: #4493f8 }
.debt { fill: #db6d28 }
.pause { fill: #9198a1 }
.head { fill: #9198a1 }
}
</style>
<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto-start-reverse">` +
	`<path class="head" d="M0 0L8 4L0 8z"/></marker></defs>
`

// canvas collects the elements of a picture. Text that does not fit into its box is an error.
type canvas struct {
	width, height float64
	title         string
	b             strings.Builder
	err           error
}

func (c *canvas) svg() (string, error) {
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %s %s" width="%s" height="%s" role="img">
<title>%s</title>
%s<rect class="page" width="100%%" height="100%%" rx="6"/>
%s</svg>
`, n(c.width), n(c.height), n(c.width), n(c.height), html.EscapeString(c.title), style,
		c.b.String()), c.err
}

// n is a number with one decimal at the most.
func n(x float64) string {
	return strings.TrimSuffix(strconv.FormatFloat(x, 'f', 1, 64), ".0")
}

func (c *canvas) rect(class string, x, y, w, h float64) {
	fmt.Fprintf(&c.b, `<rect class="%s" x="%s" y="%s" width="%s" height="%s" rx="4"/>`+"\n", class,
		n(x), n(y), n(w), n(h))
}

func (c *canvas) line(class string, x1, y1, x2, y2 float64) {
	fmt.Fprintf(&c.b, `<line class="%s" x1="%s" y1="%s" x2="%s" y2="%s"/>`+"\n", class, n(x1),
		n(y1), n(x2), n(y2))
}

// path goes from point to point, and ends in an arrow.
func (c *canvas) path(class string, points ...float64) {
	fmt.Fprintf(&c.b, `<polyline class="%s" points="%s" marker-end="url(#head)"/>`+"\n", class,
		list(points))
}

func (c *canvas) curve(class string, points ...float64) {
	fmt.Fprintf(&c.b, `<polyline class="%s" points="%s"/>`+"\n", class, list(points))
}

func (c *canvas) area(class string, points ...float64) {
	fmt.Fprintf(&c.b, `<polygon class="%s" points="%s"/>`+"\n", class, list(points))
}

func list(points []float64) string {
	all := make([]string, len(points))
	for i, p := range points {
		all[i] = n(p)
	}
	return strings.Join(all, " ")
}

// text writes at x and the baseline y. The anchor is start, middle or end.
func (c *canvas) text(class, anchor string, x, y float64, s string) {
	fmt.Fprintf(&c.b, `<text class="%s" x="%s" y="%s" text-anchor="%s">%s</text>`+"\n", class, n(x),
		n(y), anchor, html.EscapeString(s))
	left, w := x, width(class, s)
	switch anchor {
	case "middle":
		left -= w / 2
	case "end":
		left -= w
	}
	if (left < 0 || left+w > c.width) && c.err == nil {
		c.err = fmt.Errorf("%q leaves the picture", s)
	}
}

// box is a rectangle with lines of text in its middle.
func (c *canvas) box(class string, x, y, w, h float64, font string, lines ...string) {
	c.rect(class, x, y, w, h)
	top := y + h/2 + 4.5 - float64(len(lines)-1)*8.5
	for i, s := range lines {
		c.text(font, "middle", x+w/2, top+float64(i)*17, s)
		if width(font, s) > w-8 && c.err == nil {
			c.err = fmt.Errorf("%q is too wide for its box", s)
		}
	}
}

// width is about as wide as the text gets in the widest of the fonts.
func width(class, s string) float64 {
	per := 6.7
	switch {
	case strings.Contains(class, "code"):
		per = 7.3
	case strings.Contains(class, "strong"):
		per = 7.2
	case strings.Contains(class, "small"):
		per = 6.2
	}
	return per * float64(len([]rune(s)))
}
