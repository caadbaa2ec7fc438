// Package measure compares weir with what it would replace: the kernel's hash,
// Bloom filter and LPM trie maps and, where they are installed, nftables, ipset
// and xdp-filter, in one run, with the same entries and keys.
//
// Each of them is a contender, which reads a text file, filters a wire of its own,
// takes changes, and counts drops. A benchmark lets contenders take turns, round
// by round, and reports medians. Absolute figures depend on the machine; ratios
// can be compared.
package measure

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"weir/tests/bench/probe"
)

// Options are the settings of a run.
type Options struct {
	Entries []int     // set sizes
	Rounds  int       // least number of turns of each contender
	Feeds   []string  // files to measure with, in addition to generated lists
	Zipf    float64   // exponent of the distribution of packets over addresses in wire; 0: uniform
	Peers   bool      // also nftables, ipset and xdp-filter, where installed
	Version string    // weir's, for the report
	Log     io.Writer // progress
}

// benchmark is a named measurement, which adds its results to the report.
type benchmark struct {
	name string
	run  func(*session) error
}

var benchmarks = []benchmark{
	{"lookup", (*session).lookup},
	{"load", (*session).load},
	{"update", (*session).update},
	{"wire", (*session).wire},
	{"options", (*session).options},
	{"hooks", (*session).hooks},
	{"cores", (*session).cores},
	{"ipv6", (*session).ipv6},
	{"heavy", (*session).heavy},
	{"stages", (*session).stages},
}

// Benchmarks returns the names that Run accepts.
func Benchmarks() (names []string) {
	for _, b := range benchmarks {
		names = append(names, b.name)
	}
	return names
}

// effort sizes the measurements.
type effort struct {
	lookups  int // of a contender in a turn
	frames   int // packets of a contender in a turn
	runs     int // test runs of a stage in a turn; their mean comes in whole nanoseconds
	prefixes int // size of the generated list of prefixes; 0: none
	usual    int // size of the list of options, hooks and cores
	wide     int // size of the list of IPv6 addresses
	wrong    int // false positives to wait for
}

// full is the effort for figures to rely on: a turn has each key once, or a quarter of
// them, and the standard deviation of a false-positive rate is 0.7 %.
var full = effort{lookups: probe.KeysLen, frames: probe.KeysLen / 4, runs: 2 << 20, prefixes: somePrefixesLen, usual: 100_000, wide: million, wrong: 20_000}

// slowly scales down lookups and frames for slow contenders.
func slowly(n int) int { return n / 4 }

// session is a run.
type session struct {
	Options
	effort
	ctx    context.Context
	began  time.Time
	report *Report
	keys   *probe.Keys
	lists  lists
}

// Run runs the named benchmarks, or all. After an error, such as ctx's, the report
// has the results so far.
func Run(ctx context.Context, o Options, names []string) (*Report, error) {
	return run(ctx, o, full, names)
}

func run(ctx context.Context, o Options, e effort, names []string) (_ *Report, err error) {
	s := &session{Options: o, effort: e, ctx: ctx, began: time.Now(), report: &Report{}}
	for _, feed := range o.Feeds { // fail now rather than after minutes
		if _, err := os.Stat(feed); err != nil {
			return nil, err
		}
	}
	if s.report.Machine, err = thisMachine(o); err != nil {
		return nil, err
	}
	if s.keys, err = probe.NewKeys(); err != nil {
		return nil, err
	}
	defer s.keys.Close()
	if s.lists.dir, err = newDir(); err != nil {
		return nil, err
	}
	defer s.lists.remove()
	defer os.Remove(string(pins)) // if it is empty
	todo := slices.DeleteFunc(slices.Clone(benchmarks), func(b benchmark) bool {
		return len(names) > 0 && !slices.Contains(names, b.name)
	})
	before := readCPUTime()
	for i, b := range todo {
		s.logf("%s, %d of %d", b.name, i+1, len(todo))
		if err := b.run(s); err != nil {
			s.report.Judge()
			return s.report, fmt.Errorf("%s: %w", b.name, err)
		}
	}
	s.report.Machine.Stolen = readCPUTime().stolenSince(before)
	s.report.Judge()
	return s.report, nil
}

func (s *session) logf(format string, args ...any) {
	if s.Log != nil {
		elapsed := time.Since(s.began).Round(time.Second)
		fmt.Fprintf(s.Log, "%6v  %s\n", elapsed, fmt.Sprintf(format, args...))
	}
}

func (s *session) add(r Result) { s.report.Results = append(s.report.Results, r) }
