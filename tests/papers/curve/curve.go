// Package curve draws curves in one style, for the pages of docs/papers and
// docs/benchmarks.md.
package curve

import (
	"errors"
	"fmt"
	"image/color"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

const (
	width  = 20 * vg.Centimeter
	height = 11 * vg.Centimeter
	margin = 4 * vg.Millimeter
)

// Formats are the formats that a figure can be written in, which are the file
// extensions too.
var Formats = []string{"svg", "png"}

// Points are the points of a curve, from left to right.
type Points plotter.XYs

// At appends the point (x, y).
func (p Points) At(x, y float64) Points { return append(p, plotter.XY{X: x, Y: y}) }

// Sample returns the points of f at the given places.
func Sample(at []float64, f func(x float64) float64) Points {
	points := make(Points, len(at))
	for i, x := range at {
		points[i].X, points[i].Y = x, f(x)
	}
	return points
}

// Figure is a drawing of curves over common axes, with a legend at the right.
type Figure struct {
	plot        *plot.Plot
	lines, dots int
}

// New makes an empty figure with the given title and axes.
func New(title, x, y string) *Figure {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Title.Padding, p.X.Label.Padding, p.Y.Label.Padding = margin, margin/2, margin/2
	for _, f := range []*font.Font{
		&p.Title.TextStyle.Font, &p.X.Label.TextStyle.Font, &p.Y.Label.TextStyle.Font,
		&p.X.Tick.Label.Font, &p.Y.Tick.Label.Font, &p.Legend.TextStyle.Font,
	} {
		f.Variant = "Sans"
	}
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.TickerFunc(steps), plot.TickerFunc(steps)
	p.Legend.Left, p.Legend.ThumbnailWidth, p.Legend.Padding = true, 3*margin, margin/4
	p.Add(plotter.NewGrid())
	return &Figure{plot: p}
}

// LogX makes the horizontal axis logarithmic. Points must lie above 0.
func (f *Figure) LogX() { logarithmic(&f.plot.X) }

// LogY makes the vertical axis logarithmic. Points must lie above 0.
func (f *Figure) LogY() { logarithmic(&f.plot.Y) }

func logarithmic(a *plot.Axis) {
	a.Scale, a.Tick.Marker = plot.LogScale{}, plot.TickerFunc(decades)
}

// Named is a curve with its name in the legend.
type Named struct {
	Name   string
	Points Points
	Dots   bool   // the points alone: measured values, or a choice
	Style  *Style // nil: the next one of a line in the figure
}

// Style is how a curve is drawn, so that it looks the same in several figures.
type Style struct {
	Color  color.Color
	Dashed bool
	Bold   bool // it stands out
}

// dashes are the dashes of a dashed style.
var dashes = []vg.Length{vg.Points(5), vg.Points(3)}

// Lines adds curves. It fails, naming the curve, if one has no points or some
// that are not finite.
func (f *Figure) Lines(curves ...Named) error {
	for _, c := range curves {
		if err := f.add(c); err != nil {
			return fmt.Errorf("curve: %q: %w", c.Name, err)
		}
	}
	return nil
}

func (f *Figure) add(c Named) error {
	if len(c.Points) == 0 {
		return errors.New("no points")
	}
	if c.Dots {
		dots, err := plotter.NewScatter(plotter.XYs(c.Points))
		if err != nil {
			return err
		}
		dots.Shape, dots.Radius = plotutil.Shape(f.dots), vg.Points(3)
		if c.Style != nil {
			dots.Color = c.Style.Color
		}
		f.dots++
		f.plot.Add(dots)
		f.plot.Legend.Add(c.Name, dots)
	} else {
		line, err := plotter.NewLine(plotter.XYs(c.Points))
		if err != nil {
			return err
		}
		line.Color, line.Dashes, line.Width = plotutil.Color(f.lines), plotutil.Dashes(f.lines), vg.Points(1.5)
		f.lines++
		if s := c.Style; s != nil {
			line.Color, line.Dashes = s.Color, nil
			if s.Dashed {
				line.Dashes = dashes
			}
			if s.Bold {
				line.Width = vg.Points(3.5)
			}
		}
		f.plot.Add(line)
		f.plot.Legend.Add(c.Name, line)
	}
	return nil
}

// Write draws the figure in one of the Formats.
func (f *Figure) Write(w io.Writer, format string) error {
	var to interface {
		vg.CanvasSizer
		io.WriterTo
	}
	switch format {
	case "svg":
		to = vgsvg.New(width, height)
		// Transparent, it would be black on a dark page.
		paper := vg.Rectangle{Max: vg.Point{X: width, Y: height}}
		to.SetColor(color.White)
		to.Fill(paper.Path())
	case "png":
		to = vgimg.PngCanvas{Canvas: vgimg.New(width, height)}
	default:
		return fmt.Errorf("curve: format %q is none of %s", format, strings.Join(Formats, ", "))
	}
	c := draw.Crop(draw.New(to), margin, -margin, margin, -margin)

	for _, a := range []*plot.Axis{&f.plot.X, &f.plot.Y} {
		if _, log := a.Scale.(plot.LogScale); log {
			enclose(a)
		}
	}
	legend := f.plot.Legend
	legend.Top = true
	// Draw alone places the legend inside the axes, over the curves.
	f.plot.Legend = plot.NewLegend()
	space := legend.Rectangle(c).Size().X + 3*margin
	f.plot.Draw(draw.Crop(c, 0, -space, 0, 0))
	f.plot.Legend = legend
	legend.Draw(draw.Crop(c, c.Size().X-space+margin, 0, 0, -3*margin))

	_, err := to.WriteTo(w)
	return err
}

// Save writes the figure to a file, in the format of its extension.
func (f *Figure) Save(path string) (err error) {
	format := strings.TrimPrefix(filepath.Ext(path), ".")
	if !slices.Contains(Formats, format) {
		return fmt.Errorf("curve: %s: extension is none of %s", path, strings.Join(Formats, ", "))
	}
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("curve: %w", err)
	}
	if err := f.Write(file, format); err != nil {
		file.Close()
		return fmt.Errorf("curve: %s: %w", path, err)
	}
	return file.Close()
}
