package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"weir/control/feed"
	"weir/control/list"
	"weir/control/list/listfile"
)

// errDiffer ends a command with exitDiffer, and nothing more to say.
var errDiffer = errors.New("the lists differ")

func newDiff() *cobra.Command {
	var o listfile.Options
	c := &cobra.Command{
		Use:   "diff OLD NEW",
		Short: "Compare two list files by their entries",
		Long: `Compares two list files by their entries, ignoring order, comments and
duplicates. "-" marks an entry that only the first file has, "+" one that only
the second has; the last line has the numbers. The file "-" is standard input;
either may be compressed, and empty, but not without entries.
FILE,format=csv,column=2 is in another format, with the options that it has in
weir.yaml.

Entries are compared as they are written, a range as the prefixes that cover it:
10.0.0.0/24 and its two halves differ, though they contain the same addresses.`,
		Example: `  weir diff feed.txt feed.new
  curl -s https://example.com/feed.txt | weir diff /var/lib/feeds/feed.txt -
  weir diff --exit-code old.txt new.txt || echo "they differ"`,
		Args: theArgs("OLD", "NEW"),
	}
	f := c.Flags()
	f.BoolVar(&o.Lenient, "lenient", false, "mask host bits in prefixes instead of calling the line bad")
	f.BoolVar(&o.IgnorePorts, "ignore-ports", false, "read 192.0.2.1:443 as the address alone instead of calling the line bad")
	exitCode := f.Bool("exit-code", false, "exit with 3 if they differ")
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, files []string) error {
		if files[0] == "-" && files[1] == "-" {
			return usageError{errors.New("standard input can be one of them only")}
		}
		var sides [2]*list.Set
		for i, given := range files {
			file, format, err := cutFormat(given)
			if err != nil {
				return err
			}
			if sides[i], err = readSet(c, file, format, o); err != nil {
				return err
			}
		}
		delta := sides[1].Diff(sides[0])
		both := sides[0].Len() - delta.Remove.Len()
		out := bufio.NewWriterSize(c.OutOrStdout(), 64<<10)
		if *asJSON {
			printDeltaJSON(out, delta, both)
		} else {
			printDelta(out, delta)
			count := func(n int) string { return humanize.Comma(int64(n)) }
			fmt.Fprintf(out, "removed: %s, added: %s, in both: %s\n", count(delta.Remove.Len()), count(delta.Add.Len()), count(both))
		}
		if err := out.Flush(); err != nil {
			return err
		}
		if *exitCode && delta.Len() > 0 {
			return errDiffer
		}
		return nil
	}
	return c
}

// readSet reads a file, and reports its bad lines.
func readSet(c *cobra.Command, file string, format feed.Format, o listfile.Options) (*list.Set, error) {
	var err error
	var entries list.Entries
	var report listfile.Report
	if file == "-" || format.Kind != feed.Plain {
		_, entries, report, err = readIn(c, file, format, o)
	} else {
		out := newConsole(c.OutOrStdout(), c.ErrOrStderr())
		o.Progress = func(done, total int64) { out.reading(file, done, total) }
		entries, report, err = listfile.Load(file, o)
		out.show("")
	}
	if err != nil {
		return nil, err
	}
	if entries.Len() == 0 && report.Lines > 0 {
		return nil, fmt.Errorf("%s: no entries", report.File)
	}
	if report.Bad > 0 {
		fmt.Fprintf(c.ErrOrStderr(), "%v; bad lines in %s, which do not count: %d of %d\n",
			report.Errors[0], report.File, report.Bad, report.Lines)
	}
	printLeftOut(c, report)
	return entries.Set(), nil
}

// printLeftOut says what of a file is no entry by the grammar of its format.
func printLeftOut(c *cobra.Command, r listfile.Report) {
	if left := r.Skipped(); len(left) > 0 {
		fmt.Fprintf(c.ErrOrStderr(), "%s: left out by the format: %s\n", r.File, strings.Join(left, ", "))
	}
}

// printDelta prints a line for each entry, in the order of the entries.
func printDelta(out *bufio.Writer, d list.Delta) {
	printLines(out, d.Remove.V4.Plain, d.Add.V4.Plain, text)
	printLines(out, d.Remove.V6.Plain, d.Add.V6.Plain, text)
	printLines(out, d.Remove.V4.Src, d.Add.V4.Src, text)
	printLines(out, d.Remove.V4.Dst, d.Add.V4.Dst, destination)
	printLines(out, d.Remove.V6.Src, d.Add.V6.Src, text)
	printLines(out, d.Remove.V6.Dst, d.Add.V6.Dst, destination)
	printLines(out, d.Remove.Flows, d.Add.Flows, text)
}

func text[K fmt.Stringer](k K) string          { return k.String() }
func destination[P list.Prefix[P]](p P) string { return p.Key(false).String() }

func printLines[K list.Ordered[K]](out *bufio.Writer, removed, added list.Sorted[K], text func(K) string) {
	old, new := slices.Collect(removed.All()), slices.Collect(added.All())
	for len(old)+len(new) > 0 {
		mark, from := byte('+'), &new
		if len(new) == 0 || len(old) > 0 && old[0].Compare(new[0]) < 0 {
			mark, from = '-', &old
		}
		out.WriteByte(mark)
		out.WriteString(text((*from)[0]))
		out.WriteByte('\n')
		*from = (*from)[1:]
	}
}

// printDeltaJSON prints as it goes, since there may be millions of entries.
func printDeltaJSON(out io.Writer, d list.Delta, both int) {
	fmt.Fprint(out, "{\"removed\": [")
	printEntriesJSON(out, d.Remove)
	fmt.Fprint(out, "],\n\"added\": [")
	printEntriesJSON(out, d.Add)
	fmt.Fprintf(out, "],\n\"both\": %d}\n", both)
}

func printEntriesJSON(out io.Writer, s *list.Set) {
	separator := "\n  "
	for e := range s.All() {
		fmt.Fprint(out, separator, strconv.Quote(e.String())) // it is ASCII
		separator = ",\n  "
	}
}
