// Peers writes docs/benchmarks.md and its figures from a report of tests/bench:
// make bench-peers runs both. What the page says besides tables and
// figures stands in docs/benchmarks/page.md.tmpl.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"text/template"

	"weir/tests/bench/measure"
)

// Files of the page, in the directory of the documents.
const (
	pageFile     = "benchmarks.md"
	directory    = "benchmarks" // of the others
	reportFile   = "report.json"
	templateFile = "page.md.tmpl"
)

func main() {
	docs := flag.String("docs", "docs", "directory of the documents")
	flag.Parse()
	if err := write(*docs); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

// write makes the page and its figures from the report.
func write(docs string) error {
	r, err := measure.ReadReport(filepath.Join(docs, directory, reportFile))
	if err != nil {
		return err
	}
	r.Judge() // by the bars of today
	figures, err := r.Plot(filepath.Join(docs, directory))
	if err != nil {
		return err
	}
	rendered, err := render(&page{r, figures}, filepath.Join(docs, directory, templateFile))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(docs, pageFile), rendered, 0o644)
}

// page has the methods that the template calls.
type page struct {
	report  *measure.Report
	figures []measure.Figure
}

func render(p *page, file string) ([]byte, error) {
	t, err := template.ParseFiles(file)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := t.Execute(&b, p); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// Machine describes the machine and the run.
func (p *page) Machine() string {
	return "```\n" + strings.Join(p.report.Machine.Lines(), "\n") + "\n```"
}

// Bars returns the table of the bars.
func (p *page) Bars() string { return table(p.report.BarTable()) }

// Reached counts the bars.
func (p *page) Reached() string {
	n := make(map[string]int)
	for _, b := range p.report.Bars {
		n[b.Verdict()]++
	}
	return fmt.Sprintf("%d of %d bars are reached, %d missed, %d undecided", n["reached"], len(p.report.Bars), n["missed"], n["undecided"])
}

// Table returns the table of a benchmark, with warm or with cold caches.
func (p *page) Table(benchmark string, cold bool) string {
	return table(p.report.Table(func(r measure.Result) bool {
		return r.Benchmark == benchmark && r.Cold == cold && r.BitsPerKey == 0 && r.F1 == 0
	}))
}

// Measured reports whether the report has a contender of a benchmark.
func (p *page) Measured(benchmark, contender string) bool {
	return slices.ContainsFunc(p.report.Results, func(r measure.Result) bool {
		return r.Benchmark == benchmark && r.Contender == contender
	})
}

// Capacity returns the table of cores that line rates take.
func (p *page) Capacity() string { return table(p.report.CapacityTable()) }

// Driver is the time of a driver for a packet, in ns.
func (p *page) Driver() int { return measure.DriverNS }

// Beside returns the table of one column of a benchmark, with warm or with cold caches.
func (p *page) Beside(column, benchmark string, cold bool) string {
	return table(p.report.Beside(column, func(r measure.Result) bool {
		return r.Benchmark == benchmark && r.Cold == cold && r.BitsPerKey == 0
	}))
}

// Rates returns the table of false-positive rates.
func (p *page) Rates() string {
	return table(p.report.Table(func(r measure.Result) bool { return r.BitsPerKey != 0 }))
}

// Found returns the table of the heavy hitters found.
func (p *page) Found() string {
	return table(p.report.Table(func(r measure.Result) bool { return r.F1 != 0 }))
}

// Figure returns the Markdown of a figure, if the report has its results.
func (p *page) Figure(file string) string {
	for _, f := range p.figures {
		if f.File == file {
			return fmt.Sprintf("![%s](%s)", f.Caption, path.Join(directory, file))
		}
	}
	return "(not measured)"
}

// table formats lines of cells, the first a heading, as Markdown.
func table(lines [][]string) string {
	if len(lines) < 2 {
		return "(not measured)"
	}
	var b strings.Builder
	for i, cells := range lines {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | "))
		if i == 0 {
			b.WriteString(strings.Repeat("|---", len(cells)) + "|\n")
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}
