package curve

import (
	"bytes"
	"encoding/xml"
	"errors"
	"image/png"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gonum.org/v1/plot"
)

func labels(ticks []plot.Tick) string {
	var s []string
	for _, t := range ticks {
		s = append(s, t.Label)
	}
	return strings.Join(s, " ")
}

func TestTicks(t *testing.T) {
	for _, c := range []struct {
		ticker    func(low, high float64) []plot.Tick
		low, high float64
		want      string
	}{
		{steps, 6, 24, "6 8 10 12 14 16 18 20 22 24"},
		{steps, -0.4, 0.4, "-0.4 -0.3 -0.2 -0.1 0 0.1 0.2 0.3 0.4"},
		{steps, -3.6, 23, "0 5 10 15 20"},
		{decades, 1e-9, 1e18, "1e-9 1e-6 0.001 1 1000 1e6 1e9 1e12 1e15 1e18"},
		{steps, 0, 1, "0 0.2 0.4 0.6 0.8 1"},
		{steps, 0, 400, "0 50 100 150 200 250 300 350 400"},
		{decades, 2e-4, 5e-4, "0.0002 0.0003 0.0004 0.0005"},
		{decades, 0.05, 1, "0.05 0.1 0.2 0.5 1"},
		{decades, 1e-6, 1, "1e-6 1e-5 0.0001 0.001 0.01 0.1 1"},
		{decades, 1e-32, 1, "1e-32 1e-28 1e-24 1e-20 1e-16 1e-12 1e-8 0.0001 1"},
	} {
		if got := labels(c.ticker(c.low, c.high)); got != c.want {
			t.Errorf("%v to %v: ticks %q, want %q", c.low, c.high, got, c.want)
		}
	}
}

func TestEnclose(t *testing.T) {
	for _, c := range [][4]float64{{2.09e-4, 4.6e-4, 2e-4, 5e-4}, {0.013, 6, 0.01, 10}, {1, 100, 1, 100}} {
		a := plot.Axis{Min: c[0], Max: c[1]}
		enclose(&a)
		if math.Abs(a.Min/c[2]-1) > 1e-9 || math.Abs(a.Max/c[3]-1) > 1e-9 {
			t.Errorf("%v to %v is widened to %v to %v, want %v to %v", c[0], c[1], a.Min, a.Max, c[2], c[3])
		}
	}
}

func TestWrite(t *testing.T) {
	f := New("Title", "from", "to")
	f.LogX()
	f.LogY()
	if err := f.Lines(
		Named{Name: "square", Points: Sample([]float64{1, 10, 100}, func(x float64) float64 { return x * x })},
		Named{Name: "chosen", Dots: true, Points: Points{{X: 10, Y: 100}}},
	); err != nil {
		t.Fatal(err)
	}
	var svg, image, again bytes.Buffer
	for w, format := range map[*bytes.Buffer]string{&svg: "svg", &image: "png", &again: "svg"} {
		if err := f.Write(w, format); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(svg.Bytes(), again.Bytes()) {
		t.Error("the same figure is written in two ways")
	}
	for _, text := range []string{"Title", "from", "to", "square", "chosen", "10000"} {
		if !strings.Contains(svg.String(), ">"+text+"<") {
			t.Errorf("svg has no text %q", text)
		}
	}
	d := xml.NewDecoder(&svg)
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("svg: %v", err)
		}
	}
	if _, err := png.Decode(&image); err != nil {
		t.Errorf("png: %v", err)
	}
}

func TestRefuses(t *testing.T) {
	f := New("", "", "")
	if err := f.Lines(Named{Name: "nothing"}); err == nil || !strings.Contains(err.Error(), "nothing") {
		t.Errorf("a line of no points: error %v", err)
	}
	if err := f.Lines(Named{Name: "nowhere", Dots: true, Points: Points{{X: math.NaN()}}}); err == nil {
		t.Error("a point that is no number was taken")
	}
	if err := f.Write(io.Discard, "gif"); err == nil {
		t.Error("a gif was written")
	}
	for _, path := range []string{"x.gif", "x", filepath.Join("missing", "x.svg")} {
		if err := f.Save(filepath.Join(t.TempDir(), path)); err == nil {
			t.Errorf("%s was saved", path)
		}
	}
	if !slices.Contains(Formats, "svg") {
		t.Error("svg is no format")
	}
}
