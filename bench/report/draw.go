package main

import (
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/weir-go/weir/bench/internal/page"
)

// Colours that are told apart also by the colour-blind: one for each family.
var colors = map[family]color.Color{
	weir:     color.RGBA{0, 114, 178, 255},
	postgres: color.RGBA{230, 159, 0, 255},
	inRedis:  color.RGBA{213, 94, 0, 255},
	memory:   color.RGBA{110, 110, 110, 255},
}

// Within a family they are told apart by these.
var (
	glyphs = []draw.GlyphDrawer{draw.CircleGlyph{}, draw.BoxGlyph{}, draw.PyramidGlyph{},
		draw.CrossGlyph{}, draw.RingGlyph{}}
	dashes = [][]vg.Length{nil, {6, 2}, {2, 2}, {8, 2, 2, 2}, {1, 3}}
)

// draw writes the pictures of the page into a folder.
func (f *figures) draw(docs string) error {
	for _, w := range workloads {
		name := "benchmarks-" + strings.ReplaceAll(string(w), " ", "-") + ".svg"
		if err := f.drawSpeed(w, filepath.Join(docs, name)); err != nil {
			return err
		}
	}
	return f.drawAudit(filepath.Join(docs, "benchmarks-granted.svg"))
}

func newPlot() *plot.Plot {
	p := plot.New()
	p.BackgroundColor = color.White // or it is transparent, and cannot be read on a dark page
	return p
}

// drawSpeed draws the throughput over the number of callers: a line for each contender.
func (f *figures) drawSpeed(w workload, file string) error {
	p, legend := newPlot(), plot.NewLegend()
	p.Title.Text = "Calls a second: " + string(w)
	p.X.Label.Text = "callers"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = callerTicks{}, powerTicks{}
	p.Add(plotter.NewGrid())
	legend.Top = true
	legend.Padding = vg.Points(3)
	seen := map[family]int{}
	for _, c := range f.contenders {
		var points plotter.XYs
		for _, n := range callers {
			if cell := f.cells[c.name][setting{w, n}]; cell != nil {
				// the scale has no 0
				points = append(points, plotter.XY{X: float64(n), Y: max(1, cell.rate())})
			}
		}
		i := seen[c.family]
		seen[c.family]++
		if len(points) == 0 {
			continue
		}
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return err
		}
		line.Width, line.Color, line.Dashes = vg.Points(1.5), colors[c.family],
			dashes[i%len(dashes)]
		dots.Color, dots.Shape, dots.Radius = colors[c.family], glyphs[i%len(glyphs)], vg.Points(3)
		p.Add(line, dots)
		legend.Add(c.name, line, dots)
	}
	const aside = 7.5 * vg.Centimeter
	return save(file, 24*vg.Centimeter, 12*vg.Centimeter, func(all draw.Canvas) {
		p.Draw(draw.Crop(all, 0, -aside, 0, 0))
		legend.Left = true
		legend.Draw(draw.Crop(all, all.Size().X-aside+vg.Points(10), 0, 0, -vg.Points(20)))
	})
}

// drawAudit draws what each contender granted of what was allowed.
func (f *figures) drawAudit(file string) error {
	p := newPlot()
	p.Title.Text = fmt.Sprintf("Granted by a limit of 1,000 a second to %d callers who never pause",
		auditors)
	p.X.Label.Text = "percent of what was allowed"
	p.X.Min = 0
	var names []string
	most := 110.0
	for i := len(f.contenders) - 1; i >= 0; i-- { // the first on top
		c := f.contenders[i]
		share := f.audits[c.name].share()
		most = max(most, share*1.05)
		bar, err := plotter.NewBarChart(plotter.Values{share}, vg.Points(12))
		if err != nil {
			return err
		}
		bar.Horizontal, bar.XMin = true, float64(len(names))
		bar.Color, bar.LineStyle.Width = colors[c.family], 0
		p.Add(bar)
		names = append(names, c.name)
	}
	limit, err := plotter.NewLine(
		plotter.XYs{{X: 100, Y: -0.5}, {X: 100, Y: float64(len(names)) - 0.5}},
	)
	if err != nil {
		return err
	}
	limit.Dashes = []vg.Length{4, 3}
	p.Add(limit)
	p.NominalY(names...)
	p.X.Max = most
	return save(file, 20*vg.Centimeter, 10*vg.Centimeter, p.Draw)
}

func save(file string, width, height vg.Length, paint func(draw.Canvas)) error {
	svg := vgsvg.New(width, height)
	all := draw.New(svg)
	all.SetColor(color.White)
	all.Fill(all.Path())
	const margin = 8
	paint(draw.Crop(all, margin, -margin, margin, -margin))
	var picture strings.Builder
	if _, err := svg.WriteTo(&picture); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(page.SVG(picture.String())), 0o644)
}

// callerTicks are where there is something.
type callerTicks struct{}

func (callerTicks) Ticks(_, _ float64) (ticks []plot.Tick) {
	for _, n := range callers {
		ticks = append(ticks, plot.Tick{Value: float64(n), Label: fmt.Sprint(n)})
	}
	return ticks
}

// powerTicks are powers of ten.
type powerTicks struct{}

func (powerTicks) Ticks(least, most float64) (ticks []plot.Tick) {
	for x := 1.0; x <= most; x *= 10 {
		if x >= least {
			ticks = append(ticks, plot.Tick{Value: x, Label: thousands(x)})
		}
	}
	return ticks
}
