package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weir/control/api"
	"weir/control/config"
)

func newFleet() *cobra.Command {
	c := &cobra.Command{
		Use:   "fleet COMMAND",
		Short: "Change lists on all nodes of a fleet, and ask its nodes",
		Long: `Asks the hub of a fleet, which must run on this host: what weir block, explain,
top and the like do on this host, weir fleet block, explain and top do on all
nodes.`,
		Example: `  weir fleet status
  weir fleet explain 198.51.100.7
  weir fleet block --ttl 1h --reason 'scans ssh' 198.51.100.0/24`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(
		newFleetStatus(),
		newFleetConsole(),
		newFleetLists(),
		newFleetRefresh(),
		newFleetAudit(),
		newFleetExplain(),
		newFleetTop(),
		newFleetTrace(),
		newFleetChange("block", "Block addresses, prefixes or flows on all nodes", api.Change{Action: api.Block}),
		newFleetChange("unblock", "Remove entries that weir fleet block added", api.Change{Action: api.Block, Remove: true}),
		newFleetChange("allow", "Let addresses, prefixes or flows pass on all nodes", api.Change{Action: api.Allow}),
		newFleetChange("unallow", "Remove entries that weir fleet allow added", api.Change{Action: api.Allow, Remove: true}),
	)
	c.AddCommand(newFleetRolls()...)
	return c
}

// notPublished follows what a command has done.
const notPublished = "The broker cannot be reached: nodes get it as soon as it can. weir fleet status says why."

// hubFlag is the flag --socket.
func hubFlag(c *cobra.Command) *string {
	return c.Flags().String("socket", api.DefaultHubSocket, "`path` of the hub's socket")
}

func newFleetChange(name, short string, change api.Change) *cobra.Command {
	use := name + " ENTRY... | -"
	if !change.Remove {
		use = name + " [--ttl TIME] [--reason TEXT] ENTRY... | -"
	}
	c := &cobra.Command{
		Use:   use,
		Short: short,
		Long: short + `.

When the command returns, the change is on the hub's disk and published to the
nodes, unless it says otherwise. Entries with a TTL expire on each node by
themselves, also while the hub is down.` + entriesLong,
		Example: "  weir fleet " + name + " 192.0.2.1",
	}
	var ttl time.Duration
	f := c.Flags()
	byDefault := map[string]string{api.Block: config.FleetBlock, api.Allow: config.FleetAllow}[change.Action]
	f.StringVar(&change.List, "list", "", "`name` of the list (default "+byDefault+")")
	if !change.Remove {
		durationFlag(f, &ttl, "ttl", 0, "`time` after which the entries expire, as in 90s, 12h or 1d; 0: never")
		f.StringVar(&change.Reason, "reason", "", "`text` that the hub records with the entry")
	}
	socket := hubFlag(c)
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		change.TTL = ttl.Seconds()
		entries, err := entriesOf(c, args)
		if err != nil {
			return err
		}
		changed := &api.FleetChanged{}
		if change.Entries = entries.text; len(change.Entries) > 0 {
			if changed, err = api.DialHub(*socket).ChangeFleet(c.Context(), change); err != nil {
				return entries.locate(err)
			}
		}
		if *asJSON {
			return printJSON(c.OutOrStdout(), changed)
		}
		if len(change.Entries) > 0 {
			printChanged(c.OutOrStdout(), change, &changed.Changed)
			if !changed.Published {
				fmt.Fprintln(c.OutOrStdout(), notPublished)
			}
		}
		return nil
	}
	return c
}

func newFleetRefresh() *cobra.Command {
	c := &cobra.Command{
		Use:   "refresh [LIST...]",
		Short: "Have the hub read the sources of lists now",
		Long: `Has the hub read the sources of the named lists now, or of all lists, and shows
the results. What has changed reaches the nodes as always: at once, or in waves.
If a source fails, its old contents stay.

With --accept, contents are accepted that have lost more entries than
max_shrink, or have become empty. That counts for these contents alone: what is
read later is compared with them.`,
		Example: `  weir fleet refresh
  weir fleet refresh drop --accept`,
	}
	socket := hubFlag(c)
	accept := c.Flags().Bool("accept", false, "accept shrunken and empty contents of these lists once")
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, names []string) error {
		return refresh(c, api.DialHub(*socket), names, *accept, *asJSON)
	}
	return c
}

func newFleetAudit() *cobra.Command {
	c := &cobra.Command{
		Use:   "audit",
		Short: "Show who changed what at the hub, when and why",
		Long: `Shows the last changes of entries and rollouts that were made at the hub, by
commands and its console, the latest first: who made them, and why those failed
that did. Sources that were accepted, sessions of the console that may change
something, and nodes and sites that were enrolled or revoked are among them.

All are in audit.log in the hub's state directory, a line of JSON each.`,
		Example: `  weir fleet audit
  weir fleet audit --limit 200 --json | jq -r '.changes[] | select(.error)'`,
		Args: noArgs,
	}
	socket := hubFlag(c)
	showAudit(c, func() *api.Client { return api.DialHub(*socket) })
	return c
}

func newFleetStatus() *cobra.Command {
	c := &cobra.Command{
		Use:   "status",
		Short: "Show the lists of a fleet, and which versions its nodes have",
		Long: `Shows the lists of a fleet, and its nodes: current, behind a version, stale
(without news from the hub), silent, unseen since the hub started, or revoked.

Exit code 4: there are problems, or nodes that are behind, stale or silent.`,
		Example: "  weir fleet status --json",
		Args:    noArgs,
	}
	socket := hubFlag(c)
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		f, err := api.DialHub(*socket).Fleet(c.Context())
		if err != nil {
			return err
		}
		if *asJSON {
			err = printJSON(c.OutOrStdout(), f)
		} else {
			printNodes(c.OutOrStdout(), f)
		}
		if err == nil && !healthy(f) {
			err = errUnfiltered
		}
		return err
	}
	return c
}

// healthy reports whether there is nothing to be done.
func healthy(f *api.HubStatus) bool {
	for _, n := range f.Nodes {
		switch n.State {
		case api.NodeBehind, api.NodeStale, api.NodeSilent:
			return false
		}
	}
	return len(f.Problems) == 0
}

func printNodes(out io.Writer, f *api.HubStatus) {
	for _, p := range f.Problems {
		fmt.Fprintln(out, "problem:", p)
	}
	states := make(map[string]int)
	for _, n := range f.Nodes {
		states[n.State]++
	}
	var counts []string
	for _, s := range []string{api.NodeCurrent, api.NodeBehind, api.NodeStale, api.NodeSilent, api.NodeUnseen, api.NodeRevoked} {
		if states[s] > 0 {
			counts = append(counts, fmt.Sprintf("%s %d", s, states[s]))
		}
	}
	fmt.Fprintf(out, "nodes: %d", len(f.Nodes))
	if len(counts) > 0 {
		fmt.Fprintf(out, " (%s)", strings.Join(counts, ", "))
	}
	fmt.Fprintln(out)
	fmt.Fprintf(out, "\n%-24s %-6s %12s %8s  %-18s %s\n", "LIST", "ACTION", "ENTRIES", "MANUAL", "VERSION", "PUBLISHED")
	for _, l := range f.Lists {
		published := "yes"
		if l.Published != l.Version {
			published = l.Published.String()
		}
		fmt.Fprintf(out, "%-24s %-6s %12s %8s  %-18v %s\n", l.Name, l.Action, count(float64(l.Entries)), count(float64(l.Manual)), l.Version, published)
	}
	for _, l := range f.Lists {
		if r := l.Rollout; r != nil && (r.State == api.RolloutRunning || r.State == api.RolloutPaused) {
			fmt.Fprintf(out, "rollout of %s: version %v is %s, in wave %d of %d\n", l.Name, r.To, r.State, r.Wave, len(r.Waves))
		}
	}
	if len(f.Nodes) == 0 {
		return
	}
	fmt.Fprintf(out, "\n%-24s %-8s %-8s %12s %12s  %s\n", "NODE", "STATE", "SEEN", "PASSED", "DROPPED", "LABELS")
	for _, n := range f.Nodes {
		seen, passed, dropped := "-", "-", "-"
		if n.Seen != nil {
			seen = f.Time.Sub(*n.Seen).Round(time.Second).String()
		}
		if n.Report != nil {
			passed, dropped = count(float64(n.Report.Passed)), count(float64(n.Report.Dropped))
		}
		fmt.Fprintf(out, "%-24s %-8s %-8s %12s %12s  %s\n", n.Name, n.State, seen, passed, dropped, strings.Join(n.Labels, ","))
		if n.Report == nil {
			continue
		}
		for _, p := range n.Report.Problems {
			fmt.Fprintf(out, "  problem: %s\n", p)
		}
		for _, l := range n.Report.Lists {
			if l.Error != "" {
				fmt.Fprintf(out, "  list %s: %s\n", l.Name, l.Error)
			}
		}
	}
}
