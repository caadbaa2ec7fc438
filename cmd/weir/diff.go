package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"weir/control/list"
)

// errDiffer ends a command with exitDiffer, and nothing more to say.
var errDiffer = errors.New("the lists differ")

func newDiff() *cobra.Command {
	var o list.Options
	c := &cobra.Command{
		Use:   "diff OLD NEW",
		Short: "Say which entries two list files do not have in common",
		Long: `Compares two list files by their entries, whatever their order, comments and
duplicates: a line with "-" for each entry that only the first one has, one with
"+" for each that only the second one has, then how many. "-" in the place of a
file is standard input; either may be compressed.

Entries are compared as they are written, a range as the prefixes that it takes:
10.0.0.0/24 and its two halves differ, though they hold the same addresses.`,
		Example: `  weir diff feed.txt feed.new
  curl -s https://example.com/feed.txt | weir diff /var/lib/feeds/feed.txt -
  weir diff --exit-code old.txt new.txt || echo "they differ"`,
		Args: theArgs("OLD", "NEW"),
	}
	f := c.Flags()
	f.BoolVar(&o.Lenient, "lenient", false, "mask host bits in prefixes instead of calling the line bad")
	exitCode := f.Bool("exit-code", false, "exit with 3 if they differ")
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, files []string) error {
		if files[0] == "-" && files[1] == "-" {
			return usageError{errors.New("standard input can be one of them only")}
		}
		var sides [2]sorted
		for i, file := range files {
			var err error
			if sides[i], err = readSorted(c, file, o); err != nil {
				return err
			}
		}
		out := bufio.NewWriterSize(c.OutOrStdout(), 64<<10)
		var total difference
		if *asJSON {
			total = printDifferenceJSON(out, sides[0], sides[1])
		} else {
			total = compare(sides[0], sides[1], func(mark byte, entry string) {
				out.WriteByte(mark)
				out.WriteString(entry)
				out.WriteByte('\n')
			})
			count := func(n int) string { return humanize.Comma(int64(n)) }
			fmt.Fprintf(out, "removed: %s, added: %s, in both: %s\n", count(total.removed), count(total.added), count(total.both))
		}
		if err := out.Flush(); err != nil {
			return err
		}
		if *exitCode && total.removed+total.added > 0 {
			return errDiffer
		}
		return nil
	}
	return c
}

// sorted are the entries of a list, each once, in an order.
type sorted struct {
	v4    []list.V4Prefix
	v6    []netip.Prefix
	flows []string
}

// readSorted reads a file, and tells of its bad lines.
func readSorted(c *cobra.Command, file string, o list.Options) (s sorted, err error) {
	var entries list.Entries
	var report list.Report
	if file == "-" {
		entries, report, err = list.Parse(stdinName, c.InOrStdin(), o)
	} else {
		out := newConsole(c.OutOrStdout(), c.ErrOrStderr())
		show := progress(out)
		o.Progress = func(done, total int64) { show(file, done, total) }
		entries, report, err = list.Load(file, o)
		out.show("")
	}
	if err != nil {
		return s, err
	}
	if report.Bad > 0 {
		fmt.Fprintf(c.ErrOrStderr(), "%v; bad lines in %s, which do not count: %d of %d\n",
			report.Errors[0], report.File, report.Bad, report.Lines)
	}
	s.v4 = entries.V4
	slices.Sort(s.v4)
	s.v4 = slices.Compact(s.v4)
	s.v6 = entries.V6
	slices.SortFunc(s.v6, netip.Prefix.Compare)
	s.v6 = slices.Compact(s.v6)
	for _, f := range entries.Flows {
		s.flows = append(s.flows, f.String())
	}
	slices.Sort(s.flows)
	s.flows = slices.Compact(s.flows)
	return s, nil
}

// difference counts entries.
type difference struct{ removed, added, both int }

// compare calls tell for each entry that only one side has, with '-' for the old
// side and '+' for the new one.
func compare(old, new sorted, tell func(mark byte, entry string)) difference {
	var d difference
	merge(&d, old.v4, new.v4, cmp.Compare, list.V4Prefix.String, tell)
	merge(&d, old.v6, new.v6, netip.Prefix.Compare, func(p netip.Prefix) string {
		if p.IsSingleIP() {
			return p.Addr().String()
		}
		return p.String()
	}, tell)
	merge(&d, old.flows, new.flows, strings.Compare, func(flow string) string { return flow }, tell)
	return d
}

func merge[T any](d *difference, old, new []T, compare func(a, b T) int, text func(T) string, tell func(byte, string)) {
	for len(old) > 0 || len(new) > 0 {
		order := 0
		switch {
		case len(new) == 0:
			order = -1
		case len(old) == 0:
			order = 1
		default:
			order = compare(old[0], new[0])
		}
		switch {
		case order < 0:
			d.removed++
			tell('-', text(old[0]))
			old = old[1:]
		case order > 0:
			d.added++
			tell('+', text(new[0]))
			new = new[1:]
		default:
			d.both++
			old, new = old[1:], new[1:]
		}
	}
}

// printDifferenceJSON prints as it goes, since there may be millions of entries.
func printDifferenceJSON(out io.Writer, old, new sorted) difference {
	var d difference
	for _, side := range []struct {
		name string
		mark byte
	}{{"{\"removed\": [", '-'}, {"],\n\"added\": [", '+'}} {
		fmt.Fprint(out, side.name)
		separator := "\n  "
		d = compare(old, new, func(mark byte, entry string) {
			if mark == side.mark {
				fmt.Fprint(out, separator, strconv.Quote(entry)) // it is ASCII
				separator = ",\n  "
			}
		})
	}
	fmt.Fprintf(out, "],\n\"both\": %d}\n", d.both)
	return d
}
