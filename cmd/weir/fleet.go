package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"weir/cmd/terminal"
	"weir/control/api"
	"weir/control/api/client"
	"weir/control/config"
)

func newFleet() *cobra.Command {
	c := &cobra.Command{
		Use:   "fleet COMMAND",
		Short: "Change lists on all nodes of a fleet, and ask its nodes",
		Long: `Asks the hub of a fleet, on this host or, after weir fleet login, elsewhere:
what weir block, explain, top and the like do on this host, weir fleet block,
explain and top do on all nodes.`,
		Example: `  weir fleet status
  weir fleet explain 198.51.100.7
  weir fleet block --ttl 1h --reason 'scans ssh' 198.51.100.0/24`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(
		newFleetLogin(),
		newFleetStatus(),
		newFleetConsole(),
		newFleetLists(),
		newFleetRefresh(),
		newFleetPlan(),
		newFleetReload(),
		newFleetAudit(),
		newFleetExplain(),
		newFleetTop(),
		newFleetFlood(),
		newFleetTrace(),
		newFleetChange("block", "Block addresses, prefixes or flows on all nodes", api.Change{Action: api.Block}),
		newFleetChange("unblock", "Remove entries that weir fleet block added", api.Change{Action: api.Block, Remove: true}),
		newFleetChange("allow", "Let addresses, prefixes or flows pass on all nodes", api.Change{Action: api.Allow}),
		newFleetChange("unallow", "Remove entries that weir fleet allow added", api.Change{Action: api.Allow, Remove: true}),
	)
	c.AddCommand(newFleetEntries(), newFleetExport(), newFleetImport(), newFleetFlush())
	c.AddCommand(newFleetEnforce(), newFleetTakeOver(), newFleetLost())
	c.AddCommand(newFleetRolls()...)
	return c
}

// notPublished follows what a command has done.
const notPublished = "It is not published yet: nodes get it as soon as the hub can publish it. weir fleet status says why."

// hubFlag is the flags --hub and --socket.
func hubFlag(c *cobra.Command) *string {
	c.Flags().String("hub", "", "`name` of a hub elsewhere, of weir fleet login (default $"+hubVariable+", or the one on this host)")
	return c.Flags().String("socket", api.DefaultHubSocket, "`path` of the hub's socket")
}

// unlessPublished returns the error of a change that the nodes do not get yet.
func unlessPublished(published bool) error {
	if published {
		return nil
	}
	return errUnpublished
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

When the command returns, the change is on the hub's disk, published to the
nodes, and says how many of them enforce it, by their reports, for which it
waits 5 s at most, 9 s after a start of the hub. Entries with a TTL expire on
each node by themselves, also while the hub is down.` + entriesLong,
		Example: "  weir fleet " + name + " 192.0.2.1",
	}
	f := c.Flags()
	f.StringVar(&change.List, "list", "", "`name` of the list (default "+config.FleetLists.Of("", change.Action)+")")
	ttl := entryFlags(f, &change, "`text` that the hub records with the entry")
	socket := hubFlag(c)
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		change.TTL = ttl.Seconds()
		entries, err := entriesOf(c, args)
		if err != nil {
			return err
		}
		change.Await = true
		if change.Entries = entries.text; len(change.Entries) == 0 {
			if *asJSON {
				return terminal.PrintJSON(c.OutOrStdout(), api.FleetChanged{})
			}
			return nil
		}
		changed, err := dialHub(c, *socket).ChangeFleet(c.Context(), change)
		if err != nil {
			return entries.locate(err)
		}
		return printFleetChange(c, change, changed, *asJSON)
	}
	return c
}

// printFleetChange prints what became of a change on all nodes, and returns the error with which the command
// ends where it is not in effect on each.
func printFleetChange(c *cobra.Command, change api.Change, changed *api.FleetChanged, asJSON bool) error {
	if asJSON {
		return cmp.Or(terminal.PrintJSON(c.OutOrStdout(), changed), unlessInEffect(changed))
	}
	printChanged(c.OutOrStdout(), "weir fleet", change, &changed.Changed)
	for _, w := range changed.Warnings {
		fmt.Fprintln(c.ErrOrStderr(), "weir: warning:", w)
	}
	printEnforcing(c, changed)
	return unlessInEffect(changed)
}

// printEnforcing prints on how many nodes a change is in effect.
func printEnforcing(c *cobra.Command, changed *api.FleetChanged) {
	switch {
	case !changed.Published:
		fmt.Fprintln(c.OutOrStdout(), notPublished)
	case changed.Nodes == 0 && changed.Added+changed.Removed == 0: // there is no change
	case changed.Enforcing < changed.Nodes:
		fmt.Fprintf(c.OutOrStdout(), "in effect on %d of %d nodes: weir fleet status says why not on all\n", changed.Enforcing, changed.Nodes)
	default:
		fmt.Fprintf(c.OutOrStdout(), "in effect on %d of %d nodes\n", changed.Enforcing, changed.Nodes)
	}
}

// unlessInEffect returns the error of a change that is not in effect on all nodes.
func unlessInEffect(changed *api.FleetChanged) error {
	if changed.Published && changed.Enforcing >= changed.Nodes {
		return nil
	}
	return errUnpublished
}

func newFleetRefresh() *cobra.Command {
	c := &cobra.Command{
		Use:   "refresh [LIST...]",
		Short: "Have the hub read the sources of lists now",
		Long: `Has the hub read the sources of the named lists now, or of all lists, and shows
the results. What has changed reaches the nodes as always: at once, or in waves.
If a source fails, its old contents stay.

With --accept, contents are accepted that have lost more entries than
max_shrink, grown by more than max_growth, or have become empty. That counts for
these contents alone: what is read later is compared with them.

With --rollback, a list returns to its contents before the last change of one of
its sources; "weir fleet lists --versions LIST" shows them. What is like the
contents that it returns from is refused until the source has something else, or
--accept takes it. While a rollout is under way, use weir fleet rollback.`,
		Example: `  weir fleet refresh
  weir fleet refresh drop --accept
  weir fleet refresh drop --rollback`,
	}
	return refreshes(c, hubFlag(c), dialHub, "accept shrunken, grown and empty contents of these lists once")
}

func newFleetReload() *cobra.Command {
	c := &cobra.Command{
		Use:   "reload",
		Short: "Have the hub read its configuration again",
		Long: `Makes the running hub read hub.yaml again, and shows what has changed. If
anything is wrong, or cannot change without a restart, all of the old
configuration stays. Nodes stay connected. A rollout that is under way keeps the
waves with which it began.`,
		Example: `  weir hub check /etc/weir-hub/hub.yaml   # first: find mistakes
  weir fleet reload`,
		Args: noArgs,
	}
	return question[*api.FleetReloaded]{
		hub: true,
		ask: func(c *cobra.Command, of *client.Client, _ []string) (*api.FleetReloaded, error) {
			return of.ReloadFleet(c.Context())
		},
		text: func(c *cobra.Command, r *api.FleetReloaded) {
			printChanges(c.OutOrStdout(), r.Changes)
			if !r.Published {
				fmt.Fprintln(c.OutOrStdout(), notPublished)
			}
		},
		outcome: func(r *api.FleetReloaded) error { return unlessPublished(r.Published) },
	}.complete(c)
}

func newFleetTakeOver() *cobra.Command {
	c := &cobra.Command{
		Use:   "take-over",
		Short: "Have this hub rule the nodes, not another one with its keys",
		Long: `Where two hubs with the same keys run, as after a copy of the hub's machine was
started, each of them acknowledges no commands as soon as it notices the other
one. Stop one of them. If that cannot be done, or this hub is to go on, this
command has it rule the nodes. The other one, if it still lives, publishes
nothing from then on: its nodes report that it is silent, and connect to this
hub where their files have its address.`,
		Example: "  weir fleet take-over",
		Args:    noArgs,
	}
	return question[*api.FleetTakenOver]{
		hub: true,
		ask: func(c *cobra.Command, of *client.Client, _ []string) (*api.FleetTakenOver, error) {
			return of.TakeOver(c.Context())
		},
		text: func(c *cobra.Command, t *api.FleetTakenOver) {
			fmt.Fprintln(c.OutOrStdout(), "this hub rules the nodes; taken over from the hub", t.From)
			if !t.Published {
				fmt.Fprintln(c.OutOrStdout(), notPublished)
			}
		},
		outcome: func(t *api.FleetTakenOver) error { return unlessPublished(t.Published) },
	}.complete(c)
}

func newFleetLost() *cobra.Command {
	c := &cobra.Command{
		Use:   "lost",
		Short: "List changes that a hub's restored state lacks",
		Long: `A hub that goes on from an older copy of its state takes back from its nodes
what commands had changed since. This command lists what nodes have had and the
hub could not take back: entries that were blocked or allowed are marked with a
plus, those that were removed with a minus. What was made again since is not
listed. The hub keeps the list for 30 days; changes that no node has reported
are not in it.

The exit code is 4 where something is lost.`,
		Example: "  weir fleet lost",
		Args:    noArgs,
	}
	return question[*api.FleetLost]{
		hub: true,
		ask: func(c *cobra.Command, of *client.Client, _ []string) (*api.FleetLost, error) {
			return of.FleetLost(c.Context())
		},
		text: func(c *cobra.Command, f *api.FleetLost) { printLost(c.OutOrStdout(), f.Lost) },
		outcome: func(f *api.FleetLost) error {
			if len(f.Lost) > 0 {
				return errProblem
			}
			return nil
		},
	}.complete(c)
}

func printLost(out io.Writer, all []api.LostChanges) {
	if len(all) == 0 {
		fmt.Fprintln(out, "nothing is known to be lost")
	}
	for _, l := range all {
		fmt.Fprintf(out, "%s  list %s, of which node %s had version %v: %s\n", l.Time.Local().Format(time.DateTime), l.List, l.Node, l.Version, l.Why)
		for _, e := range l.Added {
			fmt.Fprintln(out, "  +", e)
		}
		for _, e := range l.Removed {
			fmt.Fprintln(out, "  -", e)
		}
		if l.More > 0 {
			fmt.Fprintf(out, "  and %d more\n", l.More)
		}
	}
}

func newFleetAudit() *cobra.Command {
	c := &cobra.Command{
		Use:   "audit",
		Short: "Show who changed what at the hub, when and why",
		Long: `Shows the last changes of entries, trials and rollouts that were made at the
hub, by commands and its console, the latest first: who made each, and why it
failed, if it did. They include sources that were accepted, sessions of the
console that may change something, and nodes and sites that were enrolled or
revoked.

All are in audit.log in the hub's state directory, a line of JSON each.`,
		Example: `  weir fleet audit
  weir fleet audit --limit 200 --json | jq -r '.changes[] | select(.error)'`,
		Args: noArgs,
	}
	socket := hubFlag(c)
	showAudit(c, func(ctx context.Context, limit int) (*api.Audit, error) {
		return connectHub(c, *socket).Audit(ctx, limit)
	})
	return c
}
