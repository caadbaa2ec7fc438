package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"weir/control/bench"
)

func newBench() *cobra.Command {
	o := bench.Options{Entries: []int{1_000_000, 10_000_000}}
	c := &cobra.Command{
		Use:       "bench [" + strings.Join(bench.Benchmarks, "|") + "]...",
		Short:     "Measure weir beside the kernel's own maps on this machine",
		ValidArgs: bench.Benchmarks,
		Long: `Measures weir beside what it would replace, in one run, over the same keys, the
contenders taking turns: the kernel's hash, Bloom filter and LPM trie maps.
Absolute figures are the machine's; the ratios are what the bars are about.

lookup    random addresses in a loop in the kernel, none listed and all listed
prefixes  a list of prefixes of many lengths, against an LPM trie
wire      packets over a veth pair between two namespaces of its own
heavy     the same, with a tracker of heavy flows, and with a hot table
load      from a text file to enforcing, and the memory that it takes

Without arguments it measures all of them, in a few minutes. It needs root and
up to 4 GB of memory for ten million entries.`,
		Example: `  weir bench
  weir bench lookup --entries 100000,1000000 --json
  weir bench prefixes --feed networks.txt.gz`,
		Args: usageArgs(cobra.OnlyValidArgs),
	}
	f := c.Flags()
	f.IntSliceVar(&o.Entries, "entries", o.Entries, "`numbers` of entries to measure with")
	f.IntVar(&o.Rounds, "rounds", 7, "turns of each contender; the median counts")
	f.StringVar(&o.Feed, "feed", "", "list of IPv4 prefixes for the prefix benchmark; without it one is made up")
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, names []string) error {
		if o.Rounds < 1 || len(o.Entries) == 0 || slices.Min(o.Entries) < 1 {
			return usageError{fmt.Errorf("there must be at least one round and one entry")}
		}
		o.Log = c.ErrOrStderr()
		r, err := bench.Run(c.Context(), o, names)
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(c.OutOrStdout(), r)
		}
		printFigures(c.OutOrStdout(), r)
		return nil
	}
	return c
}

func printFigures(w io.Writer, r *bench.Report) {
	m := r.Machine
	fmt.Fprintf(w, "%s, %d cores, Linux %s\n", m.CPU, m.Cores, m.Kernel)
	fmt.Fprintf(w, "memory latency: %.0f ns within 1 MiB, %.0f within 10 MiB, %.0f within 100 MiB\n\n",
		m.LatencyNS[0], m.LatencyNS[1], m.LatencyNS[2])
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "benchmark\tcontender\tentries\tlisted\tns\tnet ns\tMpps\tof XDP_DROP\tseconds\tbytes/entry\t")
	for _, x := range r.Results {
		fmt.Fprintf(t, "%s\t%s\t%d\t%g %%\t%s\t%s\t%s\t%s\t%s\t%s\t\n", x.Benchmark, x.Contender, x.Entries, 100*x.ListedShare,
			figure(x.NS, 1), figure(x.NetNS, 1), figure(x.Mpps, 2), figure(x.Ratio, 2), figure(x.Seconds, 2), figure(x.BytesEntry, 1))
	}
	t.Flush()
	fmt.Fprintln(w)
	t = tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "bar\tfigure\tlimit\t")
	for _, b := range r.Bars {
		sign, verdict := "≤", "reached"
		if b.AtLeast {
			sign = "≥"
		}
		if !b.Reached {
			verdict = "missed"
		}
		fmt.Fprintf(t, "%s\t%.3f\t%s %.3g\t%s\n", b.Name, b.Value, sign, b.Limit, verdict)
	}
	t.Flush()
}

// figure leaves out what does not apply.
func figure(v float64, digits int) string {
	if v == 0 {
		return ""
	}
	return fmt.Sprintf("%.*f", digits, v)
}
