package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"weir/control/api"
	"weir/control/api/client"
)

var errRestart = errors.New("a reload would refuse this: restart the hub")

func newFleetPlan() *cobra.Command {
	c := &cobra.Command{
		Use:   "plan [FILE]",
		Short: "Show what a reload of the hub would change, and on which nodes",
		Long: `Has the running hub compare its configuration with hub.yaml as it is now, or
with a FILE of this host, -: standard input. It shows each change, and which
nodes would get or lose lists, at once or wave by wave, by their labels. It
changes nothing, and reads no sources. The exit code is 1 where a reload would
refuse the configuration.`,
		Example: `  weir fleet plan && weir fleet reload
  weir fleet plan --hub paris hub.yaml`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usageError{errors.New("want one FILE")}
			}
			return nil
		},
	}
	return question[*api.FleetPlan]{
		hub: true,
		ask: func(c *cobra.Command, of *client.Client, args []string) (*api.FleetPlan, error) {
			var q api.FleetPlanQuestion
			if len(args) == 1 {
				text, err := readPlan(c, args[0])
				if err != nil {
					return nil, err
				}
				q.File, q.Text = args[0], text
			}
			return of.PlanFleet(c.Context(), q)
		},
		text: func(c *cobra.Command, p *api.FleetPlan) { printFleetPlan(c.OutOrStdout(), c.ErrOrStderr(), p) },
		outcome: func(p *api.FleetPlan) error {
			if len(p.Restart) > 0 {
				return errRestart
			}
			return nil
		},
	}.complete(c)
}

// readPlan reads a configuration.
func readPlan(c *cobra.Command, name string) (string, error) {
	in := c.InOrStdin()
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return "", err
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, api.MaxPlan+1))
	if err == nil && len(text) == 0 {
		err = fmt.Errorf("%s: it is empty", name)
	}
	return string(text), err
}

func printFleetPlan(out, warnings io.Writer, p *api.FleetPlan) {
	for _, change := range p.Changes {
		fmt.Fprintln(out, change)
	}
	if len(p.Changes) == 0 {
		fmt.Fprintln(out, "a reload would change nothing")
	}
	for _, l := range p.Lists {
		fmt.Fprintln(out, plannedText(l))
	}
	for _, change := range p.Restart {
		fmt.Fprintln(out, "needs a restart:", change)
	}
	for _, w := range p.Warnings {
		fmt.Fprintln(warnings, "weir: warning:", w)
	}
}

// plannedText returns a line on a list, as in "list drop: 3 nodes instead of 8, 1,000,003 entries; no longer on edge-4".
func plannedText(l api.PlannedList) string {
	nodes := func(n int) string { return plural(n, "node", "nodes") }
	entries := plural(l.Entries, "entry", "entries")
	var b strings.Builder
	fmt.Fprintf(&b, "list %s: ", l.Name)
	switch {
	case l.Before == nil:
		fmt.Fprintf(&b, "new, on %s", nodes(l.After.Nodes))
	case l.After == nil:
		fmt.Fprintf(&b, "removed from %s, with %s", nodes(l.Before.Nodes), entries)
	case len(l.Gain)+len(l.Lose) == 0:
		fmt.Fprintf(&b, "changed, on %s, %s", nodes(l.After.Nodes), entries)
	default:
		fmt.Fprintf(&b, "on %s instead of %d, %s", nodes(l.After.Nodes), l.Before.Nodes, entries)
	}
	if l.After != nil {
		for i, w := range l.After.Waves {
			fmt.Fprintf(&b, "; wave %d: %s on %s", i+1, w.Mode, nodes(w.Nodes))
			if len(w.Labels) > 0 {
				fmt.Fprintf(&b, " with %s", strings.Join(w.Labels, " or "))
			}
		}
		if len(l.After.Waves) > 0 {
			b.WriteString("; then all")
		}
	}
	if l.Before != nil && l.After != nil {
		if len(l.Gain) > 0 {
			b.WriteString("; also on " + names(l.Gain))
		}
		if len(l.Lose) > 0 {
			b.WriteString("; no longer on " + names(l.Lose))
		}
	}
	return b.String()
}
