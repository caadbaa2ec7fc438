// Package measure measures weir beside what it would replace: the kernel's hash,
// Bloom filter and LPM trie maps and, where they are installed, nftables, ipset
// and xdp-filter, in the same run, over the same entries and the same keys.
//
// Each is a contender: it reads a text file, stands on a wire of its own, takes
// changes, and counts what it drops. A benchmark lets contenders take turns,
// round by round, and the median of the rounds counts. Absolute figures are the
// machine's; ratios can be compared.
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

// Options say what to measure.
type Options struct {
	Entries []int     // set sizes
	Rounds  int       // turns of each contender at least; up to ten times as many where figures vary
	Feeds   []string  // lists to measure with, besides those that are made up
	Zipf    float64   // exponent by which the packets of the wire are distributed over addresses; 0: all alike
	Peers   bool      // measure nftables, ipset and xdp-filter too, where they are installed
	Version string    // weir's, for the report
	Log     io.Writer // progress
}

// A benchmark measures one thing, and adds the results.
type benchmark struct {
	name string
	run  func(*session) error
}

var benchmarks = []benchmark{
	{"lookup", (*session).lookup},
	{"load", (*session).load},
	{"update", (*session).update},
	{"wire", (*session).wire},
	{"heavy", (*session).heavy},
	{"stages", (*session).stages},
}

// Benchmarks are the names that Run takes.
func Benchmarks() (names []string) {
	for _, b := range benchmarks {
		names = append(names, b.name)
	}
	return names
}

// effort is how much goes into each figure.
type effort struct {
	lookups  int // of a contender in a turn
	frames   int // packets of a contender in a turn
	runs     int // test runs of a stage in a turn, whose mean comes in whole nanoseconds
	prefixes int // size of the list of prefixes that is made up
	wrong    int // false positives that are waited for
}

// full is what figures need in order to stand: turns in which each key comes
// once, or half of them do, and 0.7 % of standard deviation in a rate.
var full = effort{lookups: probe.KeysLen, frames: probe.KeysLen / 2, runs: 2 << 20, prefixes: somePrefixesLen, wrong: 20_000}

// slowly is what slow contenders get of lookups and frames.
func slowly(n int) int { return n / 4 }

// session is a run in progress.
type session struct {
	Options
	effort
	ctx    context.Context
	began  time.Time
	report *Report
	keys   *probe.Keys
	lists  lists
}

// Run measures the named benchmarks, or all of them. It ends early with ctx's
// error; what was measured until then is in the report all the same.
func Run(ctx context.Context, o Options, names []string) (*Report, error) {
	return run(ctx, o, full, names)
}

func run(ctx context.Context, o Options, e effort, names []string) (_ *Report, err error) {
	s := &session{Options: o, effort: e, ctx: ctx, began: time.Now(), report: &Report{}}
	for _, feed := range o.Feeds { // better now than after minutes
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
	for _, b := range benchmarks {
		if len(names) > 0 && !slices.Contains(names, b.name) {
			continue
		}
		if err := b.run(s); err != nil {
			return s.report, fmt.Errorf("%s: %w", b.name, err)
		}
	}
	s.report.judge()
	return s.report, nil
}

func (s *session) logf(format string, args ...any) {
	if s.Log != nil {
		elapsed := time.Since(s.began).Round(time.Second)
		fmt.Fprintf(s.Log, "%6v  %s\n", elapsed, fmt.Sprintf(format, args...))
	}
}

func (s *session) add(r Result) { s.report.Results = append(s.report.Results, r) }
