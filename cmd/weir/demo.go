package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"weir/cmd/interrupt"
	"weir/cmd/terminal"
	"weir/control/demo"
)

// errNotProved ends the demo with exitFailure; the verdict says why.
var errNotProved = errors.New("the demo failed, see above")

// consoleSeconds is how long there is something to look at in the console.
const consoleSeconds = 300

func newDemo() *cobra.Command {
	o := demo.Options{Filters: demoFilters{}}
	c := &cobra.Command{
		Use:   "demo",
		Short: "Filter traffic between two namespaces, and prove that it works",
		Long: `Makes two network namespaces with a veth pair between them, attaches, loads a
million generated entries with prefixes and flows among them, and sends numbered
packets as fast as a core can, about two thirds of them listed. A receiver
behind the filter counts the packets that pass, independently of weir's own
counters. Half way through, the lists are read again and the program is replaced
under traffic.

With --fleet, a hub (weir-hub) and three nodes, each in a namespace of its own,
filter by the hub's lists. During the traffic a feed changes at the hub, the hub
is killed, comes back, and takes a command. What all nodes have confirmed must
not pass from then on.

With --console, it also serves the console, prints its URL, and sends for five
minutes, unless it is interrupted or --seconds says otherwise.

It changes nothing outside its namespaces, and cleans up after itself. It needs
root. It exits with 1 if a listed packet passed or an unlisted one was dropped.`,
		Example: `  weir demo
  weir demo --feed feed.txt --seconds 5
  weir demo --feed feed.txt --pcap traffic.pcap
  weir demo --console
  weir demo --fleet`,
		Args: noArgs,
	}
	f := c.Flags()
	f.StringVar(&o.Feed, "feed", "", "`file` of a list to use instead of generated ones")
	f.StringVar(&o.Capture, "pcap", "", "`file` of a capture whose packets are sent instead of generated ones")
	f.IntVar(&o.Seconds, "seconds", 8, "`number` of seconds in which packets are sent")
	f.IntVar(&o.Entries, "entries", 1_000_000, "`number` of generated addresses")
	f.BoolVar(&o.Console, "console", false, "serve the console, a page for browsers")
	fleet := f.Bool("fleet", false, "show a fleet: a hub, and three nodes")
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if o.Seconds < 1 || o.Entries < 1 {
			return usageError{errors.New("--seconds and --entries are at least 1")}
		}
		if *fleet && (o.Feed != "" || o.Capture != "" || o.Console) {
			return usageError{errors.New("--fleet goes with none of --feed, --pcap and --console")}
		}
		if o.Console && !c.Flags().Changed("seconds") {
			o.Seconds = consoleSeconds
		}
		defer interrupt.InOrder()()
		// With --json, progress goes to the log.
		say := c.OutOrStdout()
		if *asJSON {
			say = c.ErrOrStderr()
		}
		out := newConsole(c.OutOrStdout(), say)
		o.Say = func(text string) { fmt.Fprintln(out, text) }
		shown := time.Duration(0)
		o.Show = func(p demo.Progress) {
			if out.terminal() {
				out.show(trafficLine(p))
			} else if p.Elapsed-shown > time.Second {
				shown = p.Elapsed
				fmt.Fprintln(out, trafficLine(p))
			}
		}
		var report any
		var err error
		passed := false
		print := func() {}
		if *fleet {
			var r *demo.FleetReport
			if r, err = runFleetDemo(c.Context(), o); err == nil {
				report, passed, print = r, r.Passed, func() { printFleetReport(c.OutOrStdout(), r) }
			}
		} else {
			var r *demo.Report
			if r, err = demo.Run(c.Context(), o); err == nil {
				report, passed, print = r, r.Passed, func() { printReport(c.OutOrStdout(), r) }
			}
		}
		out.show("")
		if errors.Is(err, context.Canceled) {
			return errors.New("interrupted; everything is cleaned up")
		}
		if err != nil {
			return err
		}
		if *asJSON {
			err = terminal.PrintJSON(c.OutOrStdout(), report)
		} else {
			print()
		}
		if err == nil && !passed {
			return errNotProved
		}
		return err
	}
	return c
}

// runFleetDemo runs the demo of a fleet with this program, and weir-hub.
func runFleetDemo(ctx context.Context, o demo.Options) (*demo.FleetReport, error) {
	hub, err := findHub()
	if err != nil {
		return nil, err
	}
	own, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return demo.RunFleet(ctx, demo.FleetOptions{Options: o, Weir: own, Hub: hub})
}

func trafficLine(p demo.Progress) string {
	return fmt.Sprintf("%4.1f s  %s  sent %s  passed %s  dropped %s  listed that came through: %d",
		p.Elapsed.Seconds(), humanize.SIWithDigits(p.PPS, 2, "pps"), count(float64(p.Sent.Total())),
		count(float64(p.Received.Unlisted+p.Received.Allowed)), count(float64(p.Dropped)), p.Received.Listed)
}

func printReport(w io.Writer, r *demo.Report) {
	n := func(x uint64) string { return humanize.Comma(int64(x)) }
	fmt.Fprintf(w, `
               sent            came through    dropped by weir
listed         %-15s %-15s %s
unlisted       %-15s %s
allowed        %-15s %s
lost before the filter: %s

%s on one core, sending and filtering, %s entries
%s
`,
		n(r.Sent.Listed), n(r.Received.Listed), n(r.Dropped),
		n(r.Sent.Unlisted), n(r.Received.Unlisted),
		n(r.Sent.Allowed), n(r.Received.Allowed), n(r.Lost),
		humanize.SIWithDigits(r.PPS, 2, "pps"), humanize.Comma(int64(r.Entries)), r.Verdict())
}

func printFleetReport(w io.Writer, r *demo.FleetReport) {
	n := func(x uint64) string { return humanize.Comma(int64(x)) }
	fmt.Fprintf(w, `
               sent            came through
listed         %-15s %s
unlisted       %-15s %s
allowed        %-15s %s

%d nodes, %s entries; on all nodes after: a feed %.2f s, a command %.3f s; %.2f s without a hub
%s
`,
		n(r.Sent.Listed), n(r.Received.Listed), n(r.Sent.Unlisted), n(r.Received.Unlisted), n(r.Sent.Allowed), n(r.Received.Allowed),
		r.Nodes, humanize.Comma(int64(r.Entries)), r.FeedSeconds, r.CommandSeconds, r.HubDownSeconds, r.Verdict())
}
