package main

import (
	"fmt"
	"image/color"
	"os"

	"github.com/jackc/pgx/v5"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/weir-go/weir/bench/internal/page"
)

// drawThroughput draws the throughput over the number of shards: a line for each number of callers,
// whole at SERIALIZABLE and broken at READ COMMITTED.
func drawThroughput(file string, t *throughput) error {
	p := plot.New()
	p.BackgroundColor = color.White // or it is transparent, and cannot be read on a dark page
	p.Title.Text = "One limit, 2 ms of work after each take"
	p.X.Label.Text = "shards"
	p.Y.Label.Text = "throughput relative to one key per user"
	p.X.Scale = plot.LogScale{}
	p.X.Tick.Marker = shardTicks{}
	p.Y.Min, p.Y.Max = 0, 1.1
	p.Legend.Left, p.Legend.Top = false, false
	p.Legend.YOffs = vg.Points(12)
	p.Add(plotter.NewGrid())
	colors := []color.Color{color.RGBA{0, 114, 178, 255}, color.RGBA{0, 158, 115, 255},
		color.RGBA{230, 159, 0, 255}, color.RGBA{213, 94, 0, 255}}
	for i, callers := range callerNumbers {
		for _, level := range levels {
			var points plotter.XYs
			for _, shards := range shardNumbers {
				points = append(points,
					plotter.XY{X: float64(shards), Y: t.relative(setting{callers, shards, level})})
			}
			line, dots, err := plotter.NewLinePoints(points)
			if err != nil {
				return err
			}
			line.Width, line.Color, dots.Color = vg.Points(1.5), colors[i], colors[i]
			dots.Shape, dots.Radius = draw.CircleGlyph{}, vg.Points(2.5)
			if level == pgx.ReadCommitted {
				line.Dashes = []vg.Length{vg.Points(4), vg.Points(3)}
				p.Add(line)
				continue
			}
			p.Add(line, dots)
			label := fmt.Sprintf("%d callers", callers)
			if callers == 1 {
				label = "1 caller"
			}
			p.Legend.Add(label, line, dots)
		}
	}
	if err := p.Save(16*vg.Centimeter, 10*vg.Centimeter, file); err != nil {
		return err
	}
	picture, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(page.SVG(string(picture))), 0o644)
}

// shardTicks are where there is something.
type shardTicks struct{}

func (shardTicks) Ticks(_, _ float64) (ticks []plot.Tick) {
	for _, n := range shardNumbers {
		ticks = append(ticks, plot.Tick{Value: float64(n), Label: fmt.Sprint(n)})
	}
	return ticks
}
