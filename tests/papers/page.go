package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"weir/tests/papers/curve"
)

// page is a markdown page in the making. The first error is kept and returned
// by close; what follows it does nothing.
type page struct {
	dir, name string
	source    string // what the page reproduces
	b         strings.Builder
	err       error
}

func newPage(dir, name, title string) *page {
	p := &page{dir: dir, name: name}
	fmt.Fprintf(&p.b, "# %s\n", title)
	return p
}

// from says which paper the page reproduces.
func (p *page) from(source string) {
	p.source = source
	p.text("%s", source)
}

func (p *page) section(title string) { fmt.Fprintf(&p.b, "\n## %s\n", title) }

func (p *page) text(format string, args ...any) {
	p.b.WriteString("\n" + strings.TrimSpace(fmt.Sprintf(format, args...)) + "\n")
}

func (p *page) table(header []string, rows ...[]string) {
	p.b.WriteString("\n")
	line := func(cells []string) { fmt.Fprintf(&p.b, "| %s |\n", strings.Join(cells, " | ")) }
	line(header)
	line(strings.Split(strings.Repeat("---,", len(header)-1)+"---", ","))
	for _, row := range rows {
		if len(row) != len(header) {
			p.fail(fmt.Errorf("row %q has %d cells of %d", row, len(row), len(header)))
		}
		line(row)
	}
}

// figure writes the figure beside the page and shows it.
func (p *page) figure(name, caption string, f *curve.Figure, curves ...curve.Named) {
	file := p.name + "-" + name + ".svg"
	if err := f.Lines(curves...); err != nil {
		p.fail(err)
		return
	}
	if p.err == nil {
		p.fail(f.Save(filepath.Join(p.dir, file)))
	}
	fmt.Fprintf(&p.b, "\n![%s](%s)\n\n*%s*\n", caption, file, caption)
}

func (p *page) fail(err error) {
	if err != nil && p.err == nil {
		p.err = fmt.Errorf("page %s: %w", p.name, err)
	}
}

func (p *page) close() error {
	if p.err == nil {
		p.fail(os.WriteFile(filepath.Join(p.dir, p.name+".md"), []byte(p.b.String()), 0o644))
	}
	return p.err
}

// num writes a value to as many significant digits as are compared.
func num(v float64, digits int) string { return strconv.FormatFloat(v, 'g', digits, 64) }

// fixed writes a value with as many digits behind the point.
func fixed(v float64, digits int) string { return strconv.FormatFloat(v, 'f', digits, 64) }

// span is the numbers from low to high in equal steps.
func span(low, high float64, steps int) []float64 {
	s := make([]float64, steps+1)
	for i := range s {
		s[i] = low + (high-low)*float64(i)/float64(steps)
	}
	return s
}
