package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"text/tabwriter"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"weir/cmd/terminal"
	"weir/control/replay"
	"weir/control/stage/tracker"
)

func newReplay() *cobra.Command {
	var o replay.Options
	var v *configFlags
	c := &cobra.Command{
		Use:   "replay [--block FILE...] CAPTURE...",
		Short: "Pass captures through the filter and show what it would do",
		Long: `Passes every packet of the captures through the program that weir attaches, in a
test run of the kernel, or through its reference in Go, which needs no
privileges. Nothing is attached and no packet is sent.

A capture is pcap or pcapng, plain or compressed with gzip or zstd; - is
standard input. Raw IP and Linux cooked captures are read as Ethernet.

--verdicts writes a line for each packet: packet,verdict,reason,list. Packets
are numbered from 1 through all captures, in the order of the arguments. An
earlier file is replaced at the end, also where a capture is cut short. The list
is the one that blocks the packet, or would if it were not on trial or if not
for monitor mode; approximate mode does not know it.

--heavy counts all captures as one interval, in constant memory, and misses no
flow above the share. Bytes are those that were captured.

--flood searches one capture for floods, second by second by its own times: it
prints when a second was far above the usual, the rules that match the excess,
and what else they would hit, and drops what they match from then on. No list is
asked. --own names the networks of the host, whose packets go out.`,
		Example: `  weir replay --block feed.txt traffic.pcap
  weir replay --engine go --block feed.txt --json traffic.pcapng.gz
  weir replay --heavy key=src,unit=bytes,threshold=1% traffic.pcap
  weir replay --flood --own 203.0.113.0/24 traffic.pcap
  tcpdump -w - -c 1000 | weir replay --block feed.txt --verdicts verdicts.csv -`,
		Args: someArgs("CAPTURE"),
	}
	f := c.Flags()
	f.TextVar(&o.Kind, "engine", o.Kind, "`engine` that decides: kernel or go")
	f.StringVar(&o.Verdicts, "verdicts", "", "CSV `file` to write the verdict on each packet to")
	searches := f.Bool("flood", false, "search the capture for floods, and print rules that match them")
	var own []string
	f.StringSliceVar(&own, "own", nil, "with --flood: `prefix` of the host's own addresses (repeatable)")
	choices(c, "engine", "kernel", "go")
	v = newConfigFlags(c, "engine", "verdicts", "heavy", "json", "flood", "own")
	f.Func("heavy", "print the heavy hitters of a `tracker`, as in key=src,unit=bytes,threshold=0.1%; as for weir run --track, with a share alone",
		func(s string) error {
			spec, err := tracker.ParseCapture(s)
			o.Heavy = &spec
			return err
		})
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, captures []string) error {
		if *searches {
			return replayFlood(c, own, o.Verdicts, captures, *asJSON)
		}
		if len(own) > 0 {
			return errors.New("--own is of --flood")
		}
		out := newConsole(c.OutOrStdout(), c.ErrOrStderr())
		o.Stdin = c.InOrStdin()
		p, err := v.prepare(c, out)
		if err != nil {
			return err
		}
		var only tracker.Sections
		if o.Heavy != nil {
			only.Trackers = []tracker.Spec{*o.Heavy}
		}
		p.ReplaceTrackers(only)
		build := p.BuildKernel
		if o.Kind == replay.InGo {
			build = p.Build
		}
		if o.Engine, err = build(); err != nil {
			return err
		}
		defer o.Engine.Close()
		o.Lists = p.Rules
		summary, err := replay.Files(c.Context(), o, captures)
		if summary == nil || err != nil && summary.Packets == 0 {
			return err
		}
		// What was read before an error is worth knowing, too.
		if *asJSON {
			if bad := terminal.PrintJSON(c.OutOrStdout(), summary); bad != nil {
				return bad
			}
			return err
		}
		printSummary(c.OutOrStdout(), summary)
		return err
	}
	return c
}

// replayFlood searches a capture for floods.
func replayFlood(c *cobra.Command, own []string, verdicts string, captures []string, asJSON bool) error {
	if len(captures) != 1 {
		return fmt.Errorf("--flood reads one capture, not %d: the times of two do not go together", len(captures))
	}
	o := replay.FloodOptions{Verdicts: verdicts, Stdin: c.InOrStdin()}
	for _, s := range own {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return fmt.Errorf("--own %q: want a prefix, as in 203.0.113.0/24", s)
		}
		o.Own = append(o.Own, p.Masked())
	}
	s, err := replay.Flood(c.Context(), o, captures[0])
	if s == nil || err != nil && s.Packets == 0 {
		return err
	}
	if asJSON {
		return errors.Join(terminal.PrintJSON(c.OutOrStdout(), s), err)
	}
	w := c.OutOrStdout()
	for _, f := range s.Findings {
		fmt.Fprintf(w, "%gs\t%s packets/s, usual %s: %s\n", f.Seconds, humanize.Comma(int64(f.Rate)), humanize.Comma(int64(f.Usual)), f.Verdict)
		for _, u := range f.Rules {
			fmt.Fprintf(w, "\t%s\n\t\t%.1f-%.1f %% of packets, %d sources seen; of usual packets %.2f %%, of conversations %.2f %%\n",
				u.Pattern, 100*u.Low, 100*u.High, u.Sources, 100*u.Packets, 100*u.Conversations)
		}
		if f.Proposed {
			fmt.Fprintf(w, "\tnot applied: too few quiet seconds before, or not where the flood goes\n")
		}
	}
	fmt.Fprintf(w, "packets %s, dropped %s\n", humanize.Comma(int64(s.Packets)), humanize.Comma(int64(s.Dropped)))
	return err
}

func printSummary(w io.Writer, s *replay.Summary) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name string, n int) {
		fmt.Fprintf(t, "%s\t%s\t%s\n", name, humanize.Comma(int64(n)), percent(n, s.Packets))
	}
	fmt.Fprintf(t, "packets\t%s\t%s\n", humanize.Comma(int64(s.Packets)), humanize.Bytes(uint64(s.Bytes)))
	for _, verdict := range []string{"pass", "drop"} {
		row(verdict, s.Verdicts[verdict])
	}
	fmt.Fprintln(t, "reason")
	for _, reason := range s.Top() {
		row("  "+reason, s.Reasons[reason])
	}
	byList := func(title string, lists []string, counts map[string]int) {
		if len(lists) > 0 {
			fmt.Fprintln(t, title)
		}
		for _, list := range lists {
			row("  "+list, counts[list])
		}
	}
	byList("blocked by list", s.TopLists(), s.Lists)
	byList("passed, would be blocked by list", s.TopWouldBlock(), s.WouldBlock)
	if s.Heavy != nil {
		fmt.Fprintln(t, "heavy hitters\tpackets\tbytes")
		for _, f := range s.Heavy {
			fmt.Fprintf(t, "  %s\t%s\t%s", f.Key, humanize.Comma(int64(f.Packets)), humanize.Comma(int64(f.Bytes)))
			if f.Before > 0 {
				fmt.Fprintf(t, "\t(and up to %d before)", f.Before)
			}
			fmt.Fprintln(t)
		}
		if s.HeavyDenied > 0 {
			fmt.Fprintf(t, "%d packets found the memory for flows full: flows may be missing, give it more with memory=\n", s.HeavyDenied)
		}
	}
	t.Flush()
}

func percent(n, of int) string {
	if of == 0 {
		return ""
	}
	return strings.TrimSpace(fmt.Sprintf("%.2f %%", 100*float64(n)/float64(of)))
}
