package measure

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"

	"weir/tests/papers/curve"
)

// Figure is a drawn figure.
type Figure struct {
	File    string // in the directory
	Caption string
}

// figureOf specifies a figure: a value of the picked results against the number of
// entries, one curve for each contender.
type figureOf struct {
	file, title, y string
	log            bool
	pick           func(Result) bool
	value          func(Result) float64
}

var figures = []figureOf{
	{"lookup-clean.svg", "Lookups of keys that are not listed", "ns, less the loop", false, lookedUp(0), netNS},
	{"lookup-listed.svg", "Lookups of listed keys", "ns, less the loop", false, lookedUp(1), netNS},
	{"wire-clean.svg", "Packets on the wire, none listed", "rate, of XDP_DROP's", false, onWire(0), ratio},
	{"wire-listed.svg", "Packets on the wire, all listed", "rate, of XDP_DROP's", false, onWire(1), ratio},
	{"load.svg", "From a text file to enforcing", "seconds", true, ofSet("load"), seconds},
	{"update.svg", "Changes, 10k or one entry in fifty, to enforcing", "seconds", true, ofSet("update"), seconds},
}

func ofSet(benchmark string) func(Result) bool {
	return func(r Result) bool {
		return r.Benchmark == benchmark && r.Set == setRandom && !r.Cold && r.BitsPerKey == 0
	}
}

func lookedUp(listed float64) func(Result) bool {
	return func(r Result) bool { return ofSet("lookup")(r) && r.ListedShare == listed }
}

func onWire(listed float64) func(Result) bool {
	return func(r Result) bool { return ofSet("wire")(r) && r.ListedShare == listed }
}

// Plot draws the figures that the report has results for into a directory, as SVG.
func (r *Report) Plot(dir string) (drawn []Figure, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	for _, f := range figures {
		curves := r.curves(f)
		if len(curves) == 0 {
			continue
		}
		c := curve.New(f.title, "entries", f.y)
		c.LogX()
		if f.log {
			c.LogY()
		}
		if err := c.Lines(curves...); err != nil {
			return drawn, fmt.Errorf("%s: %w", f.file, err)
		}
		if err := c.Save(filepath.Join(dir, f.file)); err != nil {
			return drawn, err
		}
		drawn = append(drawn, Figure{f.file, f.title})
	}
	return drawn, nil
}

// curves returns the curves of a figure in the order of kinds, or none for results
// of a single size.
func (r *Report) curves(f figureOf) (curves []curve.Named) {
	sizes := make(map[int]bool)
	for _, k := range kinds {
		var points curve.Points
		for _, x := range r.Results {
			if f.pick(x) && x.Contender == k.name && f.value(x) > 0 {
				points = points.At(float64(x.Entries), f.value(x))
				sizes[x.Entries] = true
			}
		}
		if len(points) == 0 {
			continue
		}
		sort.Slice(points, func(i, j int) bool { return points[i].X < points[j].X })
		curves = append(curves, curve.Named{Name: k.name, Points: points, Dots: len(points) == 1})
	}
	if len(sizes) < 2 {
		return nil
	}
	return curves
}
