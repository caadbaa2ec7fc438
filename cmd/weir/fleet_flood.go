package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"weir/control/api"
	"weir/control/api/client"
	"weir/control/quantity"
)

func newFleetFlood() *cobra.Command {
	c := &cobra.Command{
		Use:   "flood",
		Short: "Show the floods that nodes see, beside each other",
		Long: `Asks the nodes of a fleet what weir flood shows on each. A rule that several
nodes have found is one line: its packets are those of all of these nodes, and
"would hit" is of the node where it would hit most.` + askLong,
		Example: `  weir fleet flood
  weir fleet flood --node edge-1,edge-2
  weir fleet flood --json | jq .rules`,
		Args: noArgs,
	}
	nodes := nodesFlag(c)
	return question[*api.FleetFloods]{
		hub: true,
		ask: func(c *cobra.Command, of *client.Client, _ []string) (*api.FleetFloods, error) {
			f, err := of.FleetFloods(c.Context(), *nodes)
			return f, badRequest(err)
		},
		text:    func(c *cobra.Command, f *api.FleetFloods) { printFleetFloods(c.OutOrStdout(), f, time.Now()) },
		outcome: func(f *api.FleetFloods) error { return noAnswer(f.Nodes, floodAnswer) },
	}.complete(c)
}

func floodAnswer(n api.NodeFloods) (name, problem string) { return n.Node, n.Problem }

func printFleetFloods(out io.Writer, f *api.FleetFloods, now time.Time) {
	answered, flooded := 0, f.Flooded()
	rate, usual, since := 0., 0., now
	for _, n := range f.Nodes {
		if n.Floods == nil {
			continue
		}
		answered++
		rate, usual = rate+n.Floods.Rate, usual+n.Floods.Usual
		if x := n.Floods.Now; x != nil && x.Begin.Before(since) {
			since = x.Begin
		}
	}
	rates := fmt.Sprintf("%s, usual %s", quantity.SI(rate, 1, "pps"), quantity.SI(usual, 1, "pps"))
	if len(flooded) == 0 {
		fmt.Fprintf(out, "no flood at %s: %s\n", plural(answered, "node that has answered", "nodes that have answered"), rates)
		return
	}
	fmt.Fprintf(out, "FLOOD at %d of %s since %s (%v)   %s\n", len(flooded), plural(answered, "node", "nodes"),
		since.Local().Format(time.TimeOnly), quantity.Duration(now.Sub(since).Round(time.Second)), rates)
	t := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	label := "it is"
	for i, r := range f.Rules {
		text := fmt.Sprintf("%d  %s", i+1, r.Pattern)
		if r.Name != "" {
			text += ": " + r.Name
		}
		if r.Proposed {
			text += " (not sure)"
		}
		fmt.Fprintf(t, "%s\t%s\n", label, text)
		fmt.Fprintf(t, "\t   %d of %s %s it: %s; %s\n", len(r.Nodes), plural(answered, "node", "nodes"),
			map[bool]string{true: "sees", false: "see"}[len(r.Nodes) == 1], names(r.Nodes), quantity.SI(r.Rate, 1, "pps"))
		label = ""
	}
	for _, n := range flooded {
		if x := n.Floods.Now; len(x.Rules) == 0 {
			fmt.Fprintf(t, "%s\t   at %s %s: %s\n", label, n.Node, x.Kind.Headline(), x.Is()[0])
			label = ""
		}
	}
	fmt.Fprintf(t, "dropped\t%s of it now\n", inPercent(f.Dropped()))
	label = "would hit"
	for i, r := range f.Rules {
		fmt.Fprintf(t, "%s\t%d: %v usual conversations, %v usual packets\n", label, i+1, r.Conversations, r.Packets)
		label = ""
	}
	fmt.Fprintf(t, "do\t%s\n", f.Do())
	t.Flush()
}
