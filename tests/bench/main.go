// Bench measures weir and what it would replace on this machine: see
// go run ./tests/bench --help, and docs/benchmarks.md.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"weir/tests/bench/measure"
)

// version is weir's, set by the Makefile.
var version = "dev"

// Exit codes.
const (
	exitFailure = 1
	exitUsage   = 2
)

// usageError is a wrong command line.
type usageError struct{ error }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := execute(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// execute runs a command line and returns the exit code.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	c := newCommand()
	c.SetArgs(args)
	c.SetOut(stdout)
	c.SetErr(stderr)
	err := c.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(stderr, "bench:", err)
	if errors.As(err, new(usageError)) {
		return exitUsage
	}
	return exitFailure
}

func newCommand() *cobra.Command {
	o := measure.Options{Entries: []int{1_000_000, 10_000_000}, Version: version}
	c := &cobra.Command{
		Use:   "bench [" + strings.Join(measure.Benchmarks(), "|") + "]...",
		Short: "Measure weir and what it would replace, on this machine",
		Long: `Measures weir and what it would replace in one run, with the same entries and
keys, the contenders taking turns: the kernel's hash, Bloom filter and LPM trie
maps and, with --peers, nftables, ipset with iptables, and xdp-filter, where they
are installed. Absolute figures depend on the machine; most bars are ratios, or
nanoseconds beyond a program that only drops. One is undecided where its limit is
within the figure's 95 % confidence interval. On a quiet machine, as the ± column
shows, the ratios of two runs differ by less than 5 %: compare them with --against.

lookup   lookups in a loop in the kernel, of unlisted keys and of listed ones,
         from 1M entries on also with cold caches; and false-positive rates
load     from a text file to enforcing, and the memory it takes
update   changes of an active list
wire     packets over veth pairs between network namespaces, none of them listed
         and all; at 1M entries also 1 % and 50 %
options  what an operator's options cost a packet
hooks    packets with weir at TC, against generic XDP
cores    packets on two cores at once, against one
ipv6     packets from IPv6 addresses
heavy    packets again, with a tracker of heavy hitters, and with a hot table
stages   what loop detection, digests and multicast forwarding cost a packet

Without arguments it measures all of them. Lists of more than 20M entries are only
loaded. It needs root and up to 4 GB of memory for ten million entries, 8 for a
hundred million.`,
		Example: `  go run ./tests/bench
  go run ./tests/bench lookup --entries 100000,1000000 --json
  go run ./tests/bench wire --peers --feed networks.txt.gz
  go run ./tests/bench wire --zipf 1.1 --plot figures
  go run ./tests/bench wire --json >before.json && go run ./tests/bench wire --against before.json`,
		Args: func(_ *cobra.Command, names []string) error {
			for _, name := range names {
				if !slices.Contains(measure.Benchmarks(), name) {
					return usageError{fmt.Errorf("unknown benchmark %q: want %s", name, strings.Join(measure.Benchmarks(), ", "))}
				}
			}
			return nil
		},
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	f := c.Flags()
	f.IntSliceVar(&o.Entries, "entries", o.Entries, "`numbers` of entries to measure with")
	f.IntVar(&o.Rounds, "rounds", 6, "least `number` of turns of each contender; up to ten times as many where figures vary")
	f.StringArrayVar(&o.Feeds, "feed", nil, "`list` of IPv4 addresses and prefixes to measure with too; repeatable")
	f.Float64Var(&o.Zipf, "zipf", 0, "`exponent` of the distribution of packets over sources in wire; 0: uniform")
	f.BoolVar(&o.Peers, "peers", false, "measure nftables, ipset and xdp-filter too")
	plot := f.String("plot", "", "`directory` for figures, as SVG")
	against := f.String("against", "", "earlier `report`, from --json, to compare with")
	asJSON := f.Bool("json", false, "print JSON")
	c.RunE = func(c *cobra.Command, names []string) error {
		if o.Rounds < 1 || len(o.Entries) == 0 || slices.Min(o.Entries) < 1 {
			return usageError{errors.New("--rounds and --entries must be at least 1")}
		}
		if o.Zipf != 0 && o.Zipf <= 1 {
			return usageError{fmt.Errorf("--zipf %g: the exponent must be 0 or above 1", o.Zipf)}
		}
		earlier := new(measure.Report)
		if *against != "" {
			var err error
			if earlier, err = measure.ReadReport(*against); err != nil {
				return err
			}
		}
		o.Log = c.ErrOrStderr()
		r, err := measure.Run(c.Context(), o, names)
		if err != nil && (r == nil || len(r.Results) == 0) {
			return err
		}
		r.Compare(earlier)
		if err := errors.Join(err, write(c.OutOrStdout(), r, *asJSON)); err != nil || *plot == "" {
			return err
		}
		_, err = r.Plot(*plot)
		return err
	}
	return c
}

func write(w io.Writer, r *measure.Report, asJSON bool) error {
	if !asJSON {
		return r.Print(w)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(r)
}
