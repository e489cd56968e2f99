package page

import (
	"strings"
	"testing"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

func TestAPictureNamesFontsThatMostMachinesHave(t *testing.T) {
	t.Parallel()
	p := plot.New()
	p.Title.Text = "a title"
	svg := vgsvg.New(100, 100)
	p.Draw(draw.New(svg))
	var b strings.Builder
	if _, err := svg.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(SVG(b.String()), "font-family:Liberation Serif,Times New Roman,") {
		t.Errorf("no other font is named:\n%s", &b)
	}
}
