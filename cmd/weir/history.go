package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"weir/control/api"
	"weir/control/api/client"
	"weir/control/quantity"
)

func newHistory() *cobra.Command {
	asked, of := api.HistoryQuestion{}, ""
	c := &cobra.Command{
		Use:   "history",
		Short: "Show what passed and was dropped, for up to 30 days",
		Long: `Shows what passed and what was dropped, with the reasons and lists, as the
running daemon has recorded it below state_dir: for 24 hours in steps of ten
seconds, for 30 days in steps of a quarter of an hour. Rates are averages of a
step.

Times in which no daemon ran are missing, although packets were filtered. Lists
are counted by the packets that match them, also in monitor mode; each step has
the 32 with the most. With --list, they are shown for a list: what it matched,
what no other list would have dropped (noted every ten minutes, as far as the
addresses are known), and with how many of its addresses this host had conversed
in 24 hours.`,
		Example: `  weir history
  weir history --since 1h --step 1m
  weir history --since 30d
  weir history --since 30d --list drop
  weir history --since 10m --step 10s --json | jq -r '.points[] | [.time, .dropped_packets] | @tsv'`,
		Args: noArgs,
	}
	f := c.Flags()
	durationFlag(f, &asked.Since, "since", api.DefaultHistory, "how far back, a `time` up to 30d")
	durationFlag(f, &asked.Step, "step", 0, "`time` that a line covers: at least 10s, or 15m with more than a day (default: about 30 lines)")
	f.StringVar(&of, "list", "", "show what was recorded of this `list`")
	return question[*api.History]{
		ask: func(c *cobra.Command, daemon *client.Client, _ []string) (*api.History, error) {
			const lines = 30
			if asked.Step == 0 && !wantsJSON(c) {
				asked.Step = api.HistoryStep(asked.Since, lines)
			}
			checked := asked
			if err := checked.Check(); err != nil {
				return nil, usageError{fmt.Errorf("--%w", err)}
			}
			h, err := daemon.History(c.Context(), asked)
			if err == nil && of != "" {
				if h.Of(of); len(h.Total.Lists) == 0 {
					err = known(c.Context(), daemon, of)
				}
			}
			return h, err
		},
		text: func(c *cobra.Command, h *api.History) {
			if of != "" {
				printListHistory(c.OutOrStdout(), h, of)
				return
			}
			printHistory(c.OutOrStdout(), h)
		},
	}.complete(c)
}

// known returns an error if there is no list of a name.
func known(ctx context.Context, daemon *client.Client, name string) error {
	all, err := daemon.Lists(ctx)
	if err != nil {
		return err
	}
	names := make([]string, len(all.Lists))
	for i, l := range all.Lists {
		names[i] = l.Name
	}
	if slices.Contains(names, name) {
		return nil
	}
	return api.NoList(name, names)
}

func printHistory(out io.Writer, h *api.History) {
	if len(h.Points) == 0 {
		fmt.Fprintln(out, "nothing was recorded")
		return
	}
	form := timesOf(h)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "from\t%11s\t%11s\t%7s\t%s\n", "passed", "dropped", "share", "mostly")
	for _, p := range h.Points {
		seconds := max(p.Seconds, 1e-3)
		fmt.Fprintf(t, "%s\t%11s\t%11s\t%7s\t%s\n", p.Time.Local().Format(form),
			quantity.SI(float64(p.Passed)/seconds, 1, "pps"), quantity.SI(float64(p.Dropped)/seconds, 1, "pps"), percentage(p.Dropped, p.Passed+p.Dropped), mostly(p))
	}
	t.Flush()
	all := h.Total
	fmt.Fprintf(out, "\n%s of %s passed, %s of %s dropped in %v\n", plural(int(all.Passed), "packet", "packets"), humanize.Bytes(all.PassedBytes),
		humanize.Comma(int64(all.Dropped)), humanize.Bytes(all.DroppedBytes), quantity.Duration(time.Duration(all.Seconds*float64(time.Second)).Round(time.Second)))
	t = tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	slices.SortStableFunc(all.Reasons, func(a, b api.HistoryReason) int { return cmp.Compare(b.Packets, a.Packets) })
	for _, r := range all.Reasons {
		verdict := map[bool]string{true: "dropped", false: "passed"}[r.Drops]
		fmt.Fprintf(t, "  %s\t%s\t%15s\t%10s\n", r.Reason, verdict, humanize.Comma(int64(r.Packets)), humanize.Bytes(r.Bytes))
	}
	for _, l := range all.Lists {
		if l.Packets > 0 {
			fmt.Fprintf(t, "  list %s\tmatched\t%15s\t%10s\n", cmp.Or(l.List, "-"), humanize.Comma(int64(l.Packets)), humanize.Bytes(l.Bytes))
		}
	}
	for _, l := range all.Lists {
		if l.Conversed > 0 {
			fmt.Fprintf(t, "  list %s\tconversed\t%15s\taddresses\n", l.List, humanize.Comma(int64(l.Conversed)))
		}
	}
	if all.Other > 0 {
		fmt.Fprintf(t, "  other lists\tmatched\t%15s\t\n", humanize.Comma(int64(all.Other)))
	}
	t.Flush()
}

// timesOf returns the form of the times of a history.
func timesOf(h *api.History) string {
	switch {
	case h.Until.Sub(h.Since) > 24*time.Hour:
		return "2006-01-02 15:04"
	case h.Step >= time.Minute.Seconds():
		return "15:04"
	}
	return "15:04:05"
}

// printListHistory prints what was recorded of a list.
func printListHistory(out io.Writer, h *api.History, name string) {
	if len(h.Total.Lists) == 0 {
		fmt.Fprintf(out, "nothing was recorded of list %s\n", name)
		return
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	const row = "%s\t%15s\t%15s\t%10s\n"
	line := func(from string, all []api.HistoryList) {
		for _, l := range all {
			fmt.Fprintf(t, row, from, humanize.Comma(int64(l.Packets)), humanize.Comma(int64(l.Alone)), humanize.Comma(int64(l.Conversed)))
		}
	}
	fmt.Fprintf(t, row, "from", "matched", "alone", "conversed")
	for _, p := range h.Points {
		line(p.Time.Local().Format(timesOf(h)), p.Lists)
	}
	line("in all", h.Total.Lists)
	t.Flush()
	fmt.Fprintln(out, "\nMatched and alone: packets. Conversed: addresses of the list, in 24 hours, at most.")
}

// blocked is the reason of drops by block lists.
const blocked = "blocked"

// mostly returns the most frequent reason of drops, and, where lists are that, the list
// with the most matches. It leaves the list out where that may not have dropped the most: all that
// was counted as would-block may be its share, as of a list on trial.
func mostly(p api.HistoryPoint) string {
	var reason api.HistoryReason
	passed, next := uint64(0), uint64(0)
	for _, r := range p.Reasons {
		if r.Drops && r.Packets > reason.Packets {
			reason = r
		}
		if !r.Drops && r.Reason == api.ReasonWouldBlock {
			passed = r.Packets
		}
	}
	if len(p.Lists) > 1 {
		next = p.Lists[1].Packets
	}
	switch {
	case len(p.Lists) == 0, p.Lists[0].Packets == 0, p.Lists[0].List == "", reason.Reason != "" && reason.Reason != blocked:
		return reason.Reason
	case reason.Reason == "":
		return p.Lists[0].List
	case passed > 0 && p.Lists[0].Packets < passed+max(next, 1):
		return reason.Reason
	}
	return reason.Reason + ", " + p.Lists[0].List
}

func percentage(part, whole uint64) string {
	return fmt.Sprintf("%.1f %%", 100*float64(part)/max(1, float64(whole)))
}
