package measure

import (
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"sort"
	"strings"

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
	value          func(Result) estimate
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

// colors are the contenders' colors in all figures, from the palette of Okabe and Ito,
// which the colour-blind can distinguish. weir's have two colours of their own.
var colors = map[string]color.Color{
	xdpDrop:     color.Gray{0x88},
	bare:        color.Gray{0x22},
	oneLine:     color.Gray{0xbb},
	oneBucket:   color.Gray{0x55},
	weirExact:   color.RGBA{0xd5, 0x5e, 0x00, 0xff}, // vermilion
	weirUsual:   color.RGBA{0xd5, 0x5e, 0x00, 0xff},
	weirApprox:  color.RGBA{0xe6, 0x9f, 0x00, 0xff}, // orange
	kernelHash:  color.RGBA{0x00, 0x72, 0xb2, 0xff}, // blue
	kernelBloom: color.RGBA{0x56, 0xb4, 0xe9, 0xff}, // sky blue
	kernelLPM:   color.RGBA{0x00, 0x3f, 0x5c, 0xff},
	nftables:    color.RGBA{0x00, 0x9e, 0x73, 0xff}, // bluish green
	ipset:       color.RGBA{0xcc, 0x79, 0xa7, 0xff}, // reddish purple
	xdpFilter:   color.Black,
}

// styleOf returns how a contender is drawn: weir stands out, and what has no list is
// dashed, like the usual configuration beside the plain one.
func styleOf(k kind) *curve.Style {
	return &curve.Style{Color: colors[k.name], Dashed: k.blind || k.name == weirUsual, Bold: strings.HasPrefix(k.name, "weir-")}
}

// curves returns the curves of a figure in the order of kinds, or none for results
// of a single size.
func (r *Report) curves(f figureOf) (curves []curve.Named) {
	sizes := make(map[int]bool)
	for _, k := range kinds {
		var points curve.Points
		for _, x := range r.Results {
			if f.pick(x) && x.Contender == k.name && f.value(x).value > 0 {
				points = points.At(float64(x.Entries), f.value(x).value)
				sizes[x.Entries] = true
			}
		}
		if len(points) == 0 {
			continue
		}
		sort.Slice(points, func(i, j int) bool { return points[i].X < points[j].X })
		curves = append(curves, curve.Named{Name: k.name, Points: points, Dots: len(points) == 1, Style: styleOf(k)})
	}
	if len(sizes) < 2 {
		return nil
	}
	return curves
}
