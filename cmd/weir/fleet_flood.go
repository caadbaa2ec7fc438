package main

import (
	"context"
	"errors"
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

func newFleetFlood() *cobra.Command {
	var apply string
	var end, nodes, labels []string
	var rehearsal time.Duration
	during, trial := api.FloodTTL, api.FloodTrial
	c := &cobra.Command{
		Use:   "flood",
		Short: "Show the floods that nodes see, beside each other, and drop them",
		Long: `Asks the nodes of a fleet what weir flood shows on each. A rule that several
nodes have found is one line: their packets are added up. All nodes measure what
it matches, and "would hit" is of the node where it would hit most.

--apply publishes rules to all nodes, or those with a label. Each node refuses
what weir limit would refuse there, tries it as weir limit --trial, and ends it
by itself, also without the hub. The command waits until the nodes have said
what they do. A node that is away gets it when it comes back, for the time that
is left. --rehearse has nodes count what the rules match, and drops nothing.` + askLong,
		Example: `  weir fleet flood
  weir fleet flood --rehearse 5s
  weir fleet flood --apply all
  weir fleet flood --apply 1,2 --ttl 1h --label canary
  weir fleet flood --end all
  weir fleet flood --json | jq .rules`,
		Args: noArgs,
	}
	f := c.Flags()
	f.StringVar(&apply, "apply", "", "drop what `rules` match, as in 1,2, or all that are sure")
	f.StringArrayVar(&end, "end", nil, "end a `pattern` that --apply has published, or all")
	durationFlag(f, &rehearsal, "rehearse", 0, "count for a `time` what the rules match, of all packets, and drop nothing")
	durationFlag(f, &during, "ttl", api.FloodTTL, "`time` after which --apply ends by itself")
	durationFlag(f, &trial, "trial", api.FloodTrial, "`time` for which --apply only counts at first; 0: none")
	f.StringSliceVar(&labels, "label", nil, "`labels` of the nodes that are to do it, joined by commas (default all)")
	f.StringSliceVar(&nodes, "node", nil, "`names` of the nodes to ask, joined by commas (default all)")
	c.MarkFlagsMutuallyExclusive("apply", "end", "rehearse")
	return question[any]{
		hub: true,
		ask: func(c *cobra.Command, of *client.Client, _ []string) (any, error) {
			if apply == "" && (f.Changed("ttl") || f.Changed("trial")) || len(labels) > 0 && apply == "" && !f.Changed("rehearse") {
				return nil, usageError{errors.New("--ttl, --trial and --label go with --apply, --label with --rehearse, too")}
			}
			change := api.FleetFloodsChange{Labels: labels, For: during.Seconds(), Trial: trial.Seconds(), Reason: fleetFloodReason}
			if len(end) > 0 {
				change = api.FleetFloodsChange{Off: true, Patterns: slices.DeleteFunc(end, func(text string) bool { return text == "all" })}
				if len(change.Patterns) > 0 && len(change.Patterns) < len(end) {
					return nil, usageError{errors.New("--end: want patterns, or all")}
				}
				return changeFleetFloods(c, of, change)
			}
			floods, err := of.FleetFloods(c.Context(), nodes)
			switch {
			case err != nil:
				return nil, badRequest(err)
			case f.Changed("rehearse"):
				return rehearseFleet(c, of, floods, rehearsal, labels)
			case apply == "":
				return floods, nil
			}
			return applyToFleet(c, of, floods, apply, change)
		},
		text: func(c *cobra.Command, answer any) {
			switch a := answer.(type) {
			case *api.FleetFloods:
				printFleetFloods(c.OutOrStdout(), a, time.Now())
			case *api.FleetFloodsChanged:
				if printFleetPatterns(c.OutOrStdout(), a.Patterns, time.Now()); !a.Published {
					fmt.Fprintln(c.OutOrStdout(), notPublished)
				}
			}
		},
		outcome: func(answer any) error {
			if f, ok := answer.(*api.FleetFloods); ok {
				return noAnswer(f.Nodes, floodAnswer)
			}
			return unlessPublished(answer.(*api.FleetFloodsChanged).Everywhere())
		},
	}.complete(c)
}

// fleetFloodReason is the reason of entries and patterns that --apply adds.
const fleetFloodReason = "weir fleet flood --apply"

func changeFleetFloods(c *cobra.Command, of *client.Client, change api.FleetFloodsChange) (*api.FleetFloodsChanged, error) {
	done, err := of.ChangeFleetFloods(c.Context(), change)
	return done, badRequest(err)
}

// applyToFleet drops what the rules of floods match that an argument of --apply names.
func applyToFleet(c *cobra.Command, of *client.Client, f *api.FleetFloods, text string, change api.FleetFloodsChange) (*api.FleetFloodsChanged, error) {
	found := api.Flood{}
	for _, r := range f.Rules {
		if text != "all" || !f.Applied(r.Pattern) { // on trial again, it would pass meanwhile
			found.Rules = append(found.Rules, r.FloodRule)
		}
	}
	rules, err := chosenRules(&api.Floods{Sampled: true, Now: &found}, text)
	if err != nil {
		return nil, err
	}
	for _, r := range rules {
		switch {
		case len(r.Addresses) == 0:
			change.Patterns = append(change.Patterns, r.Pattern)
			continue
		case len(change.Labels) > 0: // entries go to all nodes
			return nil, usageError{fmt.Errorf("--label: of %s addresses are blocked, on all nodes: name other rules, or leave out --label", r.Pattern)}
		}
		blocked, err := of.ChangeFleet(c.Context(), api.Change{Action: api.Block, Entries: r.Addresses, TTL: change.For, Reason: fleetFloodReason, Await: true})
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(c.ErrOrStderr(), "blocked on %d of %d nodes: %s\n", blocked.Enforcing, blocked.Nodes, plural(len(r.Addresses), "address", "addresses"))
	}
	if len(change.Patterns) == 0 {
		return &api.FleetFloodsChanged{Published: true, Patterns: []api.FleetPattern{}}, nil
	}
	return changeFleetFloods(c, of, change)
}

// rehearseFleet has nodes count what the rules of floods match, and drop nothing: also if this process is killed.
func rehearseFleet(c *cobra.Command, of *client.Client, f *api.FleetFloods, during time.Duration, labels []string) (*api.FleetFloodsChanged, error) {
	if during < time.Second || during > time.Minute {
		return nil, usageError{fmt.Errorf("--rehearse %v: want 1s to 1m", during)}
	}
	counts := (during + 20*time.Second).Seconds() // longer than it takes to publish it, and to read the counts
	change := api.FleetFloodsChange{Labels: labels, For: counts, Trial: counts, Reason: "weir fleet flood --rehearse"}
	for _, r := range f.Rules {
		if len(r.Addresses) == 0 && !f.Applied(r.Pattern) {
			change.Patterns = append(change.Patterns, r.Pattern)
		}
	}
	if len(change.Patterns) == 0 {
		return nil, errors.New("nothing to rehearse: weir fleet flood shows the floods, and the patterns that count already")
	}
	done, err := changeFleetFloods(c, of, change)
	if err != nil {
		return nil, err
	}
	select {
	case <-c.Context().Done():
		err = c.Context().Err()
	case <-time.After(during):
	}
	ctx := context.WithoutCancel(c.Context()) // what has begun ends, also where this is interrupted
	counted, failed := of.FleetFloods(ctx, nil)
	_, ended := of.ChangeFleetFloods(ctx, api.FleetFloodsChange{Off: true, Patterns: change.Patterns})
	if err = errors.Join(err, failed, ended); err != nil {
		return nil, err
	}
	for i, p := range done.Patterns {
		if at := slices.IndexFunc(counted.Patterns, func(o api.FleetPattern) bool { return o.ID == p.ID }); at >= 0 {
			done.Patterns[i] = counted.Patterns[at]
		}
	}
	return done, nil
}

// printFleetPatterns says what nodes do of patterns.
func printFleetPatterns(out io.Writer, all []api.FleetPattern, now time.Time) {
	for _, p := range all {
		var hits api.PatternPackets
		held, answered := uint64(0), 0
		for _, n := range p.Nodes {
			if held += n.Held; n.Hits != nil {
				answered++
				hits.Packets, hits.Conversing, hits.Unknown = hits.Packets+n.Hits.Packets, hits.Conversing+n.Hits.Conversing, hits.Unknown+n.Hits.Unknown
			}
		}
		state, ends := api.PatternEnforced, ", ends "+due(&p.Until, now)
		switch {
		case p.Ended:
			state, ends = api.PatternEnded, ""
		case p.Counts:
			state, ends = api.PatternOnTrial, ", nothing is dropped"
		}
		fmt.Fprintf(out, "%s: %s on %d of %s%s", p.Pattern, state, p.In(state), plural(len(p.Nodes), "node", "nodes"), ends)
		if answered > 0 {
			fmt.Fprintf(out, "; %s; %s dropped", hitsOf(hits), humanize.Comma(int64(held)))
		}
		fmt.Fprintln(out)
		for _, n := range p.Nodes {
			if n.State != state || n.Why != "" && state == api.PatternEnforced {
				fmt.Fprintln(out, "  "+n.Node+": "+strings.TrimSuffix(n.State+", "+n.Why, ", "))
			}
		}
	}
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
		printFleetPatterns(out, f.Patterns, now)
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
		if len(r.Also) > 0 {
			fmt.Fprintf(t, "\t   found as well, for the same packets: %s\n", strings.Join(r.Also, "; "))
		}
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
		fmt.Fprintf(t, "%s\t%d: %v usual conversations, %v usual packets, at the worst of %s: %s\n", label, i+1, r.Conversations, r.Packets,
			plural(max(r.Measured, len(r.Nodes)), "node", "nodes"), names(slices.Compact([]string{r.Conversations.Node, r.Packets.Node})))
		label = ""
	}
	if err := noAnswer(f.Nodes, func(n api.NodeFloods) (name, problem string) { return n.Node, n.Unmeasured }); err != nil {
		fmt.Fprintf(t, "\tnot measured: %v\n", err)
	}
	fmt.Fprintf(t, "do\t%s\n", f.Do())
	t.Flush()
	printFleetPatterns(out, f.Patterns, now)
}
