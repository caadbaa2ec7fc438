package main

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"weir/cmd/terminal"
	"weir/control/list/listfile"
	"weir/control/plan"
	"weir/control/quantity"
	"weir/control/stages"
)

// missing returns a usage error for the first of the flags that is not set, if any.
func missing(f *pflag.FlagSet, names ...string) error {
	for _, name := range names {
		if !f.Changed(name) {
			return usageError{fmt.Errorf("--%s is missing", name)}
		}
	}
	return nil
}

// planError makes an invalid request a usageError, and leaves other errors alone.
func planError(err error) error {
	if errors.As(err, new(plan.InvalidError)) {
		return usageError{err}
	}
	return err
}

// printResult prints a plan as JSON, or for readers.
func printResult(c *cobra.Command, asJSON bool, p plan.Result) error {
	return printPlan(c, asJSON, p, func(row func(string, string, ...any)) {
		for _, r := range p.Rows() {
			row(r.Name, "%s", r.Text)
		}
	})
}

// printPlan prints a plan as JSON, or as the rows that rows adds.
func printPlan(c *cobra.Command, asJSON bool, plan any, rows func(row func(name, format string, args ...any))) error {
	if asJSON {
		return terminal.PrintJSON(c.OutOrStdout(), plan)
	}
	printRows(c.OutOrStdout(), rows)
	return nil
}

func printRows(w io.Writer, rows func(row func(name, format string, args ...any))) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	rows(func(name, format string, args ...any) {
		fmt.Fprintf(t, "%s\t"+format+"\n", append([]any{name}, args...)...)
	})
	t.Flush()
}

func newPlan() *cobra.Command {
	var r plan.Request
	c := &cobra.Command{
		Use:   "plan (--entries N | --from FILE)",
		Short: "Plan the size and the error rate of a filter",
		Long: `Plans a filter for a number of entries: its geometry, its memory in the kernel,
and the share of unlisted keys that it drops by mistake. With
--flows, also the share of packets, for flows whose popularity follows Zipf's
law, with and without more bits for the most popular flows.

With --from, the entries of a list file are counted; a file in another format is
named with its options as in weir.yaml: FILE,format=mmdb,countries=RU.

Kernel memory counts the cascade, or the table.
Markers need up to 2 MiB more each for IPv4 sources and destinations, and up to
10 bits per IPv6 entry. In the daemon, lists need 8 bytes per IPv4 prefix.`,
		Example: `  weir plan --entries 10M
  weir plan --entries 10M --mode approx --memory 80MB
  weir plan --entries 10M --mode approx --fpr 1e-4 --zipf 1.1 --flows 4M --hot 65536
  weir plan --entries 10M --bits-per-entry 14
  weir plan --from /var/lib/GeoIP/country.mmdb,format=mmdb,except=DE`,
		Args: noArgs,
	}
	f := c.Flags()
	entries := plan.CountFlag(f, "entries", "`number` of entries")
	from := f.String("from", "", "list `file` whose entries are counted")
	lists := plan.CountFlag(f, "lists", "`number` of lists that the entries are of (default 1)")
	f.StringVar(&r.Mode, "mode", "", "`mode`: exact or approx (default exact, where that fits the rest)")
	f.Float64Var(&r.BitsPerEntry, "bits-per-entry", 0, "size of the filter in `bits` per entry, in approximate mode")
	f.Float64Var(&r.Rate, "fpr", 0, "false-positive `rate` to reach, in approximate mode")
	var memory quantity.Size
	f.TextVar(&memory, "memory", memory, "`size` of the kernel's memory that the filter may take")
	f.Float64Var(&r.Zipf, "zipf", 0, "`exponent` of the popularity of flows")
	flows := plan.CountFlag(f, "flows", "`number` of flows that the traffic consists of")
	hot := plan.CountFlag(f, "hot", "`number` of the most popular flows that get bits of their own")
	asJSON := jsonFlag(c)
	choices(c, "mode", "exact", "approx")
	c.RunE = func(c *cobra.Command, _ []string) error {
		switch {
		case *from != "" && c.Flags().Changed("entries"):
			return usageError{errors.New("--entries or --from, one of them")}
		case *from != "":
			file, format, err := cutFormat(*from)
			if err != nil {
				return err
			}
			set, err := readSet(c, file, format, listfile.Options{})
			if err != nil {
				return err
			}
			*entries = set.Len()
		case !c.Flags().Changed("entries"):
			return usageError{errors.New("--entries or --from is missing")}
		}
		r.Lists, r.Entries, r.Memory, r.Flows, r.Hot = *lists, *entries, int(memory), *flows, *hot
		s, err := plan.Size(r)
		if err != nil {
			return planError(err)
		}
		return printResult(c, *asJSON, s)
	}
	c.AddCommand(newPlanFPR(), newPlanCounting(), newPlanCompress(),
		newPlanStable(), newPlanInvertible(), newPlanSummary())
	for _, p := range stages.Plans() {
		c.AddCommand(newPlanOf(p))
	}
	return c
}

// newPlanOf returns the command of a plan.
func newPlanOf(p plan.Command) *cobra.Command {
	c := &cobra.Command{Use: p.Use, Short: p.Short, Long: p.Long, Example: p.Example, Args: noArgs}
	p.Flags(c.Flags())
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := missing(c.Flags(), p.Required...); err != nil {
			return err
		}
		r, err := p.Plan()
		if err != nil {
			return planError(err)
		}
		return printResult(c, *asJSON, r)
	}
	return c
}

func rateRows(r plan.Rates, row func(name, format string, args ...any)) {
	row("exact", "%.6g", r.Exact)
	row("classic", "%.6g", r.Classic)
	row("Bloom 1970", "%.6g", r.Bloom1970)
}

func newPlanFPR() *cobra.Command {
	c := &cobra.Command{
		Use:   "fpr --n N (--m M [--k K] | --fpr RATE)",
		Short: "False-positive rate of a Bloom filter, or the smallest for one",
		Long: `Prints the false-positive rate of a standard Bloom filter of m bits for n
elements with k hash functions, by default the best k: the true one, the
textbook's and Bloom's of 1970. With --fpr, prints the smallest filter that
reaches a rate.`,
		Example: `  weir plan fpr --m 8192 --n 1000 --k 6
  weir plan fpr --n 1M --fpr 1e-3 --json`,
		Args: noArgs,
	}
	f := c.Flags()
	m := plan.CountFlag(f, "m", "`number` of bits")
	n := plan.CountFlag(f, "n", "`number` of elements")
	k := f.Int("k", 0, "`number` of hash functions (default the best)")
	rate := f.Float64("fpr", 0, "`rate` to find the smallest filter for")
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := missing(c.Flags(), "n"); err != nil {
			return err
		}
		if c.Flags().Changed("fpr") {
			if *m != 0 || *k != 0 {
				return usageError{errors.New("--fpr computes m and k: give --n only")}
			}
			s, err := plan.SmallestFor(*n, *rate)
			if err != nil {
				return planError(err)
			}
			return printPlan(c, *asJSON, s, func(row func(string, string, ...any)) {
				row("bits", "%s, %.3f an element", humanize.Comma(int64(s.M)), s.BitsPerEntry)
				row("hash functions", "%d", s.K)
				row("of the lower bound", "%.3f", s.AboveLowerBound)
				rateRows(s.Rates, row)
			})
		}
		if err := missing(c.Flags(), "m"); err != nil {
			return err
		}
		r, err := plan.FilterOf(*m, *n, *k, c.Flags().Changed("k"))
		if err != nil {
			return planError(err)
		}
		return printPlan(c, *asJSON, r, func(row func(string, string, ...any)) {
			row("hash functions", "%d", r.K)
			rateRows(r.Rates, row)
		})
	}
	return c
}

func newPlanCounting() *cobra.Command {
	c := &cobra.Command{
		Use:   "counting --m M --n N",
		Short: "Counting filter with 4-bit counters: rate, and risk of overflow",
		Long: `Plans a counting Bloom filter, from which elements can be removed: it has a
counter of 4 bits where a Bloom filter has a bit. An element adds one to each of
its --k counters, and subtracts it when it is removed.

"memory" is the size of all counters, two to a byte. "false positives" is the
share of other elements that the filter takes for its own when it has --n.
"any overflow" is an upper bound of the probability that one of the counters
would count to more than 15. Such a counter stays at 15 and is never
decremented: no element is lost, but false positives stay more frequent.`,
		Example: `  weir plan counting --m 1M --n 131072
  weir plan counting --m 1M --n 131072 --k 3 --json`,
		Args: noArgs,
	}
	f := c.Flags()
	m := plan.CountFlag(f, "m", "`number` of counters")
	n := plan.CountFlag(f, "n", "`number` of elements")
	k := f.Int("k", 0, "`number` of hash functions (default the best)")
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := missing(c.Flags(), "m", "n"); err != nil {
			return err
		}
		r, err := plan.CountingFor(*m, *n, *k)
		if err != nil {
			return planError(err)
		}
		return printPlan(c, *asJSON, r, func(row func(string, string, ...any)) {
			row("memory", "%s", humanize.IBytes(uint64(r.Bytes)))
			row("hash functions", "%d", r.K)
			row("false positives", "%.6g", r.Rate)
			row("any overflow", "%.3g at most", r.Overflow)
		})
	}
	return c
}

func newPlanCompress() *cobra.Command {
	c := &cobra.Command{
		Use:   "compress --n N --sent BITS --memory BITS",
		Short: "Filter compressed to be sent: the best for its size on the wire",
		Long: `Prints the filter with the lowest false-positive rate whose compressed size is
at most --sent bits an element. More bits in memory make it sparser, and better
for the same size on the wire.`,
		Example: `  weir plan compress --n 100000 --sent 8 --memory 14
  weir plan compress --n 100000 --sent 16 --memory 48 --json`,
		Args: noArgs,
	}
	f := c.Flags()
	n := plan.CountFlag(f, "n", "`number` of elements")
	sent := f.Float64("sent", 8, "`bits` an element that may be sent")
	memory := f.Float64("memory", 16, "`bits` an element in memory, before compression")
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := missing(c.Flags(), "n"); err != nil {
			return err
		}
		r, err := plan.CompressFor(*n, *sent, *memory)
		if err != nil {
			return planError(err)
		}
		return printPlan(c, *asJSON, r, func(row func(string, string, ...any)) {
			row("bits", "%s, %s sent", humanize.Comma(int64(r.M)), humanize.Comma(int64(r.SentBits)))
			row("hash functions", "%d", r.K)
			row("false positives", "%.6g", r.Rate)
			row("uncompressed", "%.6g, with as many bits as are sent", r.Plain)
		})
	}
	return c
}
