package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"weir/control/bench"
)

func newBench() *cobra.Command {
	o := bench.Options{Entries: []int{1_000_000, 10_000_000}, Version: version}
	c := &cobra.Command{
		Use:       "bench [" + strings.Join(bench.Benchmarks(), "|") + "]...",
		Short:     "Measure weir beside what it would replace, on this machine",
		ValidArgs: bench.Benchmarks(),
		Long: `Measures weir beside what it would replace, in one run, over the same entries
and keys, the contenders taking turns: the kernel's hash, Bloom filter and LPM
trie maps and, with --peers, nftables, ipset with iptables, and xdp-filter,
where they are installed. Absolute figures are the machine's; the ratios are
what the bars are about. On a quiet machine, which ± tells, those of two runs
differ by less than 5 %: --against shows it.

lookup  lookups in a loop in the kernel, none listed and all listed, with warm
        caches and cold ones; and how often a filter errs
load    from a text file to enforcing, and the memory that it takes
update  changes of a list that is in force
wire    packets over veth pairs between namespaces of its own: 0, 1, 50 and
        100 % of them listed
heavy   packets again, with a tracker of heavy flows, and with a hot table
stages  what a node of a domain that looks for loops costs a packet, what
        recording its digest does, and what forwarding multicast does

Without arguments it measures all of them. It needs root and up to 4 GB of
memory for ten million entries.`,
		Example: `  weir bench
  weir bench lookup --entries 100000,1000000 --json
  weir bench wire --peers --feed networks.txt.gz
  weir bench wire --zipf 1.1 --plot figures
  weir bench wire --json >before.json && weir bench wire --against before.json`,
		Args: validArgs,
	}
	f := c.Flags()
	f.IntSliceVar(&o.Entries, "entries", o.Entries, "`numbers` of entries to measure with")
	f.IntVar(&o.Rounds, "rounds", 7, "`number` of turns of each contender at least; up to ten times as many where figures vary")
	f.StringArrayVar(&o.Feeds, "feed", nil, "`list` to measure with too, of IPv4 addresses and prefixes; repeat for more")
	f.Float64Var(&o.Zipf, "zipf", 0, "`exponent` by which the packets of wire are distributed over sources; 0: evenly")
	f.BoolVar(&o.Peers, "peers", false, "measure nftables, ipset and xdp-filter too")
	plot := f.String("plot", "", "`directory` to draw figures in, as SVG")
	against := f.String("against", "", "`report` of an earlier run, by --json, to tell the changes from")
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, names []string) error {
		if o.Rounds < 1 || len(o.Entries) == 0 || slices.Min(o.Entries) < 1 {
			return usageError{fmt.Errorf("there must be at least one round and one entry")}
		}
		if o.Zipf != 0 && o.Zipf <= 1 {
			return usageError{fmt.Errorf("--zipf %g: the exponent must be above 1, or 0", o.Zipf)}
		}
		earlier := new(bench.Report)
		if *against != "" {
			var err error
			if earlier, err = bench.ReadReport(*against); err != nil {
				return err
			}
		}
		o.Log = c.ErrOrStderr()
		r, err := bench.Run(c.Context(), o, names)
		if err != nil {
			return err
		}
		r.Compare(earlier)
		show := r.Print
		if *asJSON {
			show = func(w io.Writer) error { return printJSON(w, r) }
		}
		if err := show(c.OutOrStdout()); err != nil || *plot == "" {
			return err
		}
		_, err = r.Plot(*plot)
		return err
	}
	return c
}
