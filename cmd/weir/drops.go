package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"weir/control/api"
	"weir/control/api/client"
	"weir/control/quantity"
)

func newDrops() *cobra.Command {
	var by string
	asked := api.DropsQuestion{}
	c := &cobra.Command{
		Use:   "drops",
		Short: "Show who is being dropped, and by which list",
		Long: `Shows what the running daemon has dropped in the last minutes, up to an hour:
by source, entry that matched, list, reason, autonomous system or country.

What monitor mode has let pass is included. Where other packets were dropped in
the same time, it has a column of its own, "monitored". What lists on trial have
let pass is included with the reason would-block.

A count such as "118–120" is known only within these bounds. Packets of sources
that had little at the time have no row: the last line has their total, and
sources above it may have sent some of them.
"-" instead of an entry means that it is no longer listed, or has ports.`,
		Example: `  weir drops
  weir drops --by entry --last 1m
  weir drops --by asn --last 1h -n 10
  weir drops --json | jq -r '.drops[] | select(.packets_per_second > 1000).key'`,
		Args: noArgs,
	}
	f := c.Flags()
	f.StringVar(&by, "by", api.BySource, "add up by source, entry, list, reason, asn or country")
	f.Lookup("by").Usage = "`what` each line is: " + strings.Join(api.DropsBy, ", ")
	choices(c, "by", api.DropsBy...)
	durationFlag(f, &asked.Last, "last", api.DefaultDropsFor, "how far back, a `time` up to 1h")
	f.IntVarP(&asked.Limit, "limit", "n", api.DefaultDrops, "most `rows` to show")
	return question[*api.Drops]{
		ask: func(c *cobra.Command, of *client.Client, _ []string) (*api.Drops, error) {
			switch asked.By = by; {
			case !slices.Contains(api.DropsBy, by):
				return nil, usageError{fmt.Errorf("--by %q: want %s", by, strings.Join(api.DropsBy, ", "))}
			case asked.Last <= 0 || asked.Last > api.MaxDropsFor:
				return nil, usageError{fmt.Errorf("--last %v: want up to %v", quantity.Duration(asked.Last), quantity.Duration(api.MaxDropsFor))}
			case asked.Limit < 1 || asked.Limit > api.MaxDrops:
				return nil, usageError{fmt.Errorf("--limit %d: want 1 to %d", asked.Limit, api.MaxDrops)}
			}
			return of.Drops(c.Context(), asked)
		},
		text: func(c *cobra.Command, d *api.Drops) { printDrops(c.OutOrStdout(), d) },
	}.complete(c)
}

func printDrops(out io.Writer, d *api.Drops) {
	const unmonitored = "would have been dropped, if not for monitor mode"
	span := quantity.Duration(d.Until.Sub(d.Since).Round(time.Second))
	if d.Packets == 0 {
		fmt.Fprintf(out, "nothing %s\n", map[bool]string{false: "was dropped", true: unmonitored}[d.Monitor])
		return
	}
	dropped, bytes := d.Packets-d.MonitorPackets-d.TrialPackets, d.Bytes-d.MonitorBytes-d.TrialBytes
	if dropped > 0 || d.MonitorPackets == 0 {
		fmt.Fprintf(out, "%s of %s dropped in %v", plural(int(dropped), "packet", "packets"), humanize.Bytes(bytes), span)
		if d.MonitorPackets > 0 {
			fmt.Fprintf(out, "; %s of %s %s", humanize.Comma(int64(d.MonitorPackets)), humanize.Bytes(d.MonitorBytes), unmonitored)
		}
	} else {
		fmt.Fprintf(out, "%s of %s %s in %v", plural(int(d.MonitorPackets), "packet", "packets"), humanize.Bytes(d.MonitorBytes), unmonitored, span)
	}
	if d.TrialPackets > 0 {
		fmt.Fprintf(out, "; %s of %s passed, by lists on trial", humanize.Comma(int64(d.TrialPackets)), humanize.Bytes(d.TrialBytes))
	}
	fmt.Fprint(out, "\n\n")
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	row := func(key, packets, monitored, rate, share, last string) {
		if d.MonitorPackets > 0 && dropped > 0 {
			packets = fmt.Sprintf("%12s\t%12s", packets, monitored)
		}
		fmt.Fprintf(t, "%s\t%12s\t%9s\t%6s\t%s\n", key, packets, rate, share, last)
	}
	lastColumn := map[string]string{api.ByList: "sources", api.ByReason: "sources"}
	row(d.By, "packets", "monitored", "rate", "share", cmp.Or(lastColumn[d.By], "reason, list"))
	for _, r := range d.Drops {
		packets := humanize.Comma(int64(r.Packets))
		if r.Least < r.Packets {
			packets = humanize.Comma(int64(r.Least)) + "–" + packets
		}
		last := strings.Join(append(slices.Clone(r.Reasons), r.Lists...), ", ")
		if d.By == api.ByList || d.By == api.ByReason {
			last = humanize.Comma(int64(r.Sources))
		}
		key := cmp.Or(r.Key, "-")
		if r.Name != "" {
			key += " " + r.Name
		}
		if r.Direction == "out" {
			key += " (out)"
		}
		row(key, packets, humanize.Comma(int64(r.MonitorPackets)), quantity.SI(r.Rate, 1, "pps"), fmt.Sprintf("%.1f %%", 100*r.Share), last)
	}
	t.Flush()
	if d.More > 0 {
		fmt.Fprintf(out, "and %d more: -n %d shows them\n", d.More, len(d.Drops)+d.More)
	}
	if d.Other > 0 {
		fmt.Fprintf(out, "in no row, of sources with little at the time: %s\n", plural(int(d.Other), "packet", "packets"))
	}
}
