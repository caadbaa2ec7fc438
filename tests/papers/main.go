// Papers regenerates docs/papers: a page for each paper that weir implements,
// with its figures and tables computed anew, the paper's value beside ours and
// every departure explained. make papers runs it.
//
// A page is a function in a file of its own, listed in pages. Whatever is
// random in it is seeded, so that the same sources give the same pages.
package main

import (
	"flag"
	"fmt"
	"os"
)

// paper is a page to write: in name.md, its figures in name-*.svg.
type paper struct {
	name, title string
	write       func(p *page)
}

// pages are all pages, in the order of the index.
var pages = []paper{
	{"weighted", "Weighted Bloom Filter", weightedPaper},
	{"weighted-report", "Weighted Bloom Filter: the report", weightedReport},
	{"false-positive-rate", "A new analysis of the false positive rate of a Bloom filter", falsePositiveRate},
	{"ibf", "Importance-aware Bloom Filter", importanceAware},
	{"survey", "Network Applications of Bloom Filters: A Survey", survey},
}

func main() {
	dir := flag.String("o", "docs/papers", "directory to write to")
	flag.Parse()
	if err := generate(*dir, pages); err != nil {
		fmt.Fprintln(os.Stderr, "papers:", err)
		os.Exit(1)
	}
}

func generate(dir string, pages []paper) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	index := newPage(dir, "README", "The papers, reproduced")
	index.text(`What weir implements, computed anew from its own packages by "make papers":
figures and tables of the papers, the paper's value beside ours, and departures
explained. The same values are held by the packages' tests. The second table below
lists everything in the papers, also what is left out.
[Another page](../comparison.md) compares weir's filters and sketches with younger ones.`)
	var rows [][]string
	for _, each := range pages {
		p := newPage(dir, each.name, each.title)
		each.write(p)
		if err := p.close(); err != nil {
			return err
		}
		rows = append(rows, []string{fmt.Sprintf("[%s](%s.md)", each.title, each.name), p.source})
	}
	index.table([]string{"page", "paper"}, rows...)
	index.systems()
	return index.close()
}
