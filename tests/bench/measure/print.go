package measure

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

// column is a column of a benchmark's table, omitted if all its cells are empty.
type column struct {
	title string
	cell  func(Result) string
}

var columns = []column{
	{"set", func(r Result) string { return r.Set }},
	{"entries", func(r Result) string {
		if r.Entries == 0 {
			return ""
		}
		return count(r.Entries)
	}},
	{"contender", func(r Result) string { return r.Contender }},
	{"listed", func(r Result) string {
		if r.NS+r.Scaling == 0 || r.Benchmark == "heavy" || r.Benchmark == "stages" {
			return "" // there is no traffic, or all of it is clean
		}
		return fmt.Sprintf("%g %%", 100*r.ListedShare)
	}},
	{"caches", func(r Result) string {
		if r.Cold {
			return "cold"
		}
		return ""
	}},
	{"Zipf", func(r Result) string { return general(r.Zipf) }},
	{"ns", func(r Result) string { return figure(r.NS, 1) }},
	{"beyond bare, ns", func(r Result) string { return figure(r.BeyondNS, 1) }},
	{"net ns", func(r Result) string { return figure(r.NetNS, 1) }},
	{"Mpps", func(r Result) string { return figure(r.Mpps, 2) }},
	{"of XDP_DROP", func(r Result) string {
		if r.Benchmark == "hooks" {
			return ""
		}
		return figure(r.Ratio, 3)
	}},
	{"of generic XDP", func(r Result) string {
		if r.Benchmark != "hooks" {
			return ""
		}
		return figure(r.Ratio, 3)
	}},
	{"both / one", func(r Result) string { return figure(r.Scaling, 3) }},
	{"seconds", func(r Result) string { return figure(r.Seconds, 4) }},
	{"changes", func(r Result) string { return general(float64(r.Changes)) }},
	{"process, B/entry", func(r Result) string { return figure(r.BytesEntry, 1) }},
	{"peak, MB", func(r Result) string { return figure(float64(r.Peak)/1e6, 0) }},
	{"kernel, B/entry", func(r Result) string { return figure(r.KernelEntry, 2) }},
	{"bits/key", func(r Result) string { return general(r.BitsPerKey) }},
	{"false positives", func(r Result) string { return scientific(r.FalsePositive) }},
	{"predicted", func(r Result) string { return scientific(r.Predicted) }},
	{"optimum", func(r Result) string { return scientific(r.Optimum) }},
	{"F1", func(r Result) string { return figure(r.F1, 4) }},
	{"±", func(r Result) string {
		if r.Spread == 0 {
			return ""
		}
		return fmt.Sprintf("%.1f %%", 100*r.Spread)
	}},
	{"change", func(r Result) string {
		if r.Change == 0 {
			return ""
		}
		return fmt.Sprintf("%+.1f %%", 100*r.Change)
	}},
}

// figure formats v, or returns "" for 0, which does not apply.
func figure(v float64, digits int) string {
	if v == 0 {
		return ""
	}
	return fmt.Sprintf("%.*f", digits, v)
}

func general(v float64) string {
	if v == 0 {
		return ""
	}
	return fmt.Sprintf("%g", v)
}

func scientific(v float64) string {
	if v == 0 {
		return ""
	}
	return fmt.Sprintf("%.3e", v)
}

// count writes a number of entries as 1M or 300k.
func count(n int) string {
	switch {
	case n%million == 0:
		return fmt.Sprintf("%dM", n/million)
	case n%1000 == 0:
		return fmt.Sprintf("%dk", n/1000)
	}
	return fmt.Sprint(n)
}

// Table returns the picked results as lines of cells, the first a heading, without
// empty columns.
func (r *Report) Table(pick func(Result) bool) [][]string {
	var results []Result
	for _, x := range r.Results {
		if pick(x) {
			results = append(results, x)
		}
	}
	lines := make([][]string, 1+len(results))
	for _, c := range columns {
		cells := []string{c.title}
		used := false
		for _, x := range results {
			cell := c.cell(x)
			used = used || cell != ""
			cells = append(cells, cell)
		}
		if !used {
			continue
		}
		for i, cell := range cells {
			lines[i] = append(lines[i], cell)
		}
	}
	return lines
}

// Beside returns one column of the picked results, the contenders beside each other, as lines of
// cells, the first a heading. Where there are more contenders than sets and kinds of traffic, each
// contender has a line.
func (r *Report) Beside(title string, pick func(Result) bool) [][]string {
	cell := columns[slices.IndexFunc(columns, func(c column) bool { return c.title == title })].cell
	var kinds, contenders []string
	cells := make(map[[2]string]string)
	for _, x := range r.Results {
		value := cell(x)
		if !pick(x) || value == "" {
			continue
		}
		kind := x.Set + " " + count(x.Entries)
		switch {
		case x.Changes > 0:
			kind += fmt.Sprintf(", %d changes", x.Changes)
		case x.NS+x.Scaling > 0:
			kind += fmt.Sprintf(", %g %% listed", 100*x.ListedShare)
		}
		if !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
		if !slices.Contains(contenders, x.Contender) {
			contenders = append(contenders, x.Contender)
		}
		cells[[2]string{kind, x.Contender}] = value
	}
	rows, across := kinds, contenders
	if len(contenders) > len(kinds) {
		rows, across = contenders, kinds
	}
	lines := [][]string{append([]string{title}, across...)}
	for _, row := range rows {
		line := []string{row}
		for _, name := range across {
			line = append(line, cells[[2]string{row, name}]+cells[[2]string{name, row}])
		}
		lines = append(lines, line)
	}
	return lines
}

// BarTable returns the bars as lines of cells, the first a heading.
func (r *Report) BarTable() [][]string {
	lines := [][]string{{"bar", "figure", "95 %", "limit", ""}}
	for _, b := range r.Bars {
		sign, interval := "≤", ""
		if b.AtLeast {
			sign = "≥"
		}
		if b.Low < b.High {
			interval = fmt.Sprintf("%.4g – %.4g", b.Low, b.High)
		}
		lines = append(lines, []string{b.Name, fmt.Sprintf("%.4g", b.Value), interval, fmt.Sprintf("%s %.4g", sign, b.Limit), b.Verdict()})
	}
	return lines
}

// cache describes the last-level cache.
func (m Machine) cache() string {
	if m.CacheBytes == 0 {
		return "last-level cache unknown"
	}
	return fmt.Sprintf("last-level cache %d MiB", m.CacheBytes>>20)
}

// Lines describes the machine and the run.
func (m Machine) Lines() []string {
	lines := []string{
		fmt.Sprintf("%s, %d cores, %s, Linux %s, %s", m.CPU, m.Cores, m.cache(), m.Kernel, m.Arch),
		fmt.Sprintf("memory latency: %.0f ns within 1 MiB, %.0f within 10 MiB, %.0f within 100 MiB",
			m.LatencyNS[0], m.LatencyNS[1], m.LatencyNS[2]),
	}
	if m.Load+m.Stolen > 0 { // which earlier reports do not have
		lines = append(lines, fmt.Sprintf("load average before: %.2f; time that other virtual machines had: %.1f %%", m.Load, 100*m.Stolen))
	}
	var against []string
	for _, name := range slices.Sorted(maps.Keys(m.Mitigations)) {
		against = append(against, name+" "+m.Mitigations[name])
	}
	if len(against) > 0 {
		lines = append(lines, "mitigations: "+strings.Join(against, "; "))
	}
	for _, name := range slices.Sorted(maps.Keys(m.Versions)) {
		v := m.Versions[name]
		if v == "" {
			v = "not installed"
		}
		lines = append(lines, name+": "+v)
	}
	return append(lines, m.Time.Format("2006-01-02 15:04 MST")+": "+strings.Join(m.Command, " "))
}

// Print writes the report as text.
func (r *Report) Print(w io.Writer) error {
	for _, line := range r.Machine.Lines() {
		fmt.Fprintln(w, line)
	}
	for _, name := range Benchmarks() {
		lines := r.Table(func(x Result) bool { return x.Benchmark == name })
		if len(lines) == 1 {
			continue
		}
		fmt.Fprintf(w, "\n%s\n", name)
		if err := align(w, lines, tabwriter.AlignRight); err != nil {
			return err
		}
	}
	for _, part := range []struct {
		lines [][]string
		title string
		flags uint
	}{
		{r.CapacityTable(), fmt.Sprintf("capacity: cores for line rate, with a driver that takes %d ns", DriverNS), tabwriter.AlignRight},
		{r.BarTable(), "bars", 0},
	} {
		if len(part.lines) == 1 {
			continue
		}
		fmt.Fprintf(w, "\n%s\n", part.title)
		if err := align(w, part.lines, part.flags); err != nil {
			return err
		}
	}
	return nil
}

func align(w io.Writer, lines [][]string, flags uint) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', flags)
	for _, cells := range lines {
		fmt.Fprintln(t, strings.Join(cells, "\t")+"\t")
	}
	return t.Flush()
}
