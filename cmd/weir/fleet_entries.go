package main

import (
	"cmp"
	"fmt"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"weir/cmd/terminal"
)

func newFleetEntries() *cobra.Command {
	c := &cobra.Command{
		Use:   "entries [LIST]",
		Short: "Show what was blocked and allowed on all nodes by commands",
		Long: `Shows the entries that weir fleet block, allow and import have added at the hub,
of one list or of all, sorted by list and entry: until when, by whom and why.
weir fleet export shows all entries of a list, with those of its feed.`,
		Example: `  weir fleet entries
  weir fleet entries manual --expiring 1h
  weir fleet entries --json | jq -r '.entries[] | select(.user == "alice").entry'`,
	}
	return showsEntries(c, hubFlag(c), new(bool), dialHub)
}

func newFleetExport() *cobra.Command {
	c := &cobra.Command{
		Use:   "export LIST [--format plain|ipset|nft]",
		Short: "Print all entries of a list at the hub",
		Long: `Prints all entries of the last version of a list at the hub, of its feed and
manual ones, in the formats of weir export. Nodes may have an earlier version:
weir fleet status says so. Where entries are left out that a format cannot
express, the exit code is 1.`,
		Example: `  weir fleet export manual
  weir fleet export drop | weir diff - drop.txt`,
		Args: theArgs("LIST"),
	}
	return exports(c, hubFlag(c), dialHub)
}

func newFleetImport() *cobra.Command {
	var of imported
	c := &cobra.Command{
		Use:   "import LIST FILE|- [--format FORMAT]",
		Short: "Add the entries of a file to a list on all nodes",
		Long: `Adds the entries of a file, or of standard input, to a list on all nodes: all of
them, or none if one is wrong. When the command returns they are on the hub's
disk and published to the nodes, and it says how many enforce them.
` + importLong + importFormats(),
		Example: `  weir fleet import manual blocked.txt --ttl 1d --reason 'incident 42'`,
		Args:    theArgs("LIST", "FILE"),
	}
	of.flags(c, "`text` that says why: weir fleet entries shows it")
	socket := hubFlag(c)
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := of.read(c, args); err != nil {
			return err
		}
		client := dialHub(c, *socket)
		status, err := client.Fleet(c.Context())
		if err != nil {
			return err
		}
		actions := make(map[string]string)
		for _, l := range status.Lists {
			actions[l.Name] = l.Action
		}
		if of.Action, err = actionOf(actions, of.List); err != nil {
			return err
		}
		of.Await = true
		changed, err := client.ChangeFleet(c.Context(), of.Change)
		if err != nil {
			return err
		}
		return printFleetChange(c, of.Change, changed, *asJSON)
	}
	return c
}

func newFleetFlush() *cobra.Command {
	c := &cobra.Command{
		Use:   "flush LIST",
		Short: "Remove all manual entries of a list on all nodes",
		Long: `Removes all entries of a list that weir fleet block, allow and import have
added, without a question. What its feed lists stays. weir fleet export saves
them, without their times and reasons, and weir fleet import adds them again.`,
		Example: `  weir fleet flush manual`,
		Args:    theArgs("LIST"),
	}
	socket := hubFlag(c)
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		changed, err := dialHub(c, *socket).FlushFleet(c.Context(), args[0])
		switch {
		case err != nil:
			return err
		case *asJSON:
			return cmp.Or(terminal.PrintJSON(c.OutOrStdout(), changed), unlessInEffect(changed))
		}
		fmt.Fprintf(c.OutOrStdout(), "removed from list %s: %s\n", changed.List, humanize.Comma(int64(changed.Removed)))
		printEnforcing(c, changed)
		return unlessInEffect(changed)
	}
	return c
}
