// Filters writes docs/comparison.md: weir's filters and sketches beside others, at equal memory
// or an equal rate. make bench-filters runs it.
//
// What is random is seeded, so that the same sources give the same page. Times are of the
// machine, and stand in a part of their own: -times measures them anew, or else they stay.
//
// It is a module of its own, so that the filters of others are no dependencies of weir.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// section is a part of the page. Its figures follow from the sources.
type section struct {
	title string
	write func(p *page) error
	quick bool // takes a second or two to compute
}

var sections = []section{
	{"Filters at one rate", atOneRate, true},
	{"Filters in the same memory", inOneMemory, false},
	{"Sketches of heavy hitters", sketches, false},
	{"Filters that know the traffic", learning, false},
	{"Filters that mend their mistakes", mending, false},
	{"Filters that grow", growth, false},
	{"Windows that slide", windows, false},
}

// Lines of the page that enclose what depends on the machine.
const (
	timesBegin = "<!-- of one machine: begin -->"
	timesEnd   = "<!-- of one machine: end -->"
)

func main() {
	file := flag.String("o", "docs/comparison.md", "page to write")
	measure := flag.Bool("times", false, "measure times anew, too")
	flag.Parse()
	if err := run(*file, *measure); err != nil {
		fmt.Fprintln(os.Stderr, "filters:", err)
		os.Exit(1)
	}
}

func run(file string, measure bool) error {
	old, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	text, err := compare(string(old), sections, measure)
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(text), 0o644)
}

// compare returns the page, with the sections that are given computed anew and all else as it
// was in the old one.
func compare(old string, fresh []section, measure bool) (string, error) {
	p := new(page)
	p.b.WriteString("# Beside other filters and sketches\n")
	p.text(introduction)
	for _, s := range sections {
		if !slices.ContainsFunc(fresh, func(f section) bool { return f.title == s.title }) {
			kept, ok := between(old, "\n## "+s.title+"\n", "\n## ")
			if !ok {
				return "", fmt.Errorf("the page has no section %q: run make bench-filters", s.title)
			}
			p.b.WriteString("\n## " + s.title + "\n" + kept)
			continue
		}
		p.b.WriteString("\n## " + s.title + "\n")
		if err := s.write(p); err != nil {
			return "", err
		}
	}
	p.b.WriteString("\n## Times\n")
	p.text(timesText)
	kept, ok := between(old, timesBegin+"\n", timesEnd)
	if measure || !ok {
		times := new(page)
		if err := measureTimes(times); err != nil {
			return "", err
		}
		kept = times.b.String()
	}
	p.b.WriteString("\n" + timesBegin + "\n" + kept + timesEnd + "\n")
	return p.b.String(), nil
}

// between returns what stands between two texts, the first of which must be there.
func between(s, begin, end string) (string, bool) {
	_, rest, ok := strings.Cut(s, begin)
	if !ok {
		return "", false
	}
	kept, _, _ := strings.Cut(rest, end)
	return kept, true
}

// page is a page in the making.
type page struct{ b strings.Builder }

func (p *page) text(format string, args ...any) {
	p.b.WriteString("\n" + strings.TrimSpace(fmt.Sprintf(format, args...)) + "\n")
}

func (p *page) table(header []string, rows ...[]string) {
	p.b.WriteString("\n")
	line := func(cells []string) { fmt.Fprintf(&p.b, "| %s |\n", strings.Join(cells, " | ")) }
	line(header)
	line(slices.Repeat([]string{"---"}, len(header)))
	for _, row := range rows {
		line(row)
	}
}
