package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"weir/control/api"
	"weir/control/api/client"
	"weir/control/stage/multicast"
)

func newMulticast() *cobra.Command {
	c := &cobra.Command{
		Use:   "multicast",
		Short: "Choose which interfaces get which multicast groups",
		Long: `weir copies packets to multicast groups from the filtered interfaces to those
that want the group, which the configuration names under multicast. Each has a
filter of the groups that it wants: from the configuration, or added here.`,
		Example: `  weir multicast list
  weir multicast add --iface eth1 239.1.2.3`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newMulticastList(),
		newMulticastChange(&cobra.Command{
			Use:   "add --iface NAME GROUP...",
			Short: "Forward multicast groups to an interface",
			Long: `Adds groups that an interface wants. When the command returns, their packets are
forwarded to it, and stay so after a restart if the daemon has a state_dir.
Changes are all-or-nothing.`,
			Example: `  weir multicast add --iface eth1 239.1.2.3 ff0e::1234`,
		}, false),
		newMulticastChange(&cobra.Command{
			Use:   "remove --iface NAME GROUP...",
			Short: "Remove groups that weir multicast add added",
			Long: `Removes groups that weir multicast add added. When the command returns, their
packets are no longer forwarded to the interface. Remove a group of the
configuration there. Groups of an interface that the configuration no longer
names are forgotten.`,
			Example: `  weir multicast remove --iface eth1 239.1.2.3`,
		}, true))
	return c
}

// newMulticastChange completes a command that asks for a change.
func newMulticastChange(c *cobra.Command, remove bool) *cobra.Command {
	change := api.MulticastChange{Remove: remove}
	f := c.Flags()
	f.StringVar(&change.Interface, "iface", "", "`name` of the interface")
	c.Args = someArgs("GROUP")
	return question[*api.MulticastChanged]{
		ask: func(c *cobra.Command, of *client.Client, args []string) (*api.MulticastChanged, error) {
			if change.Interface == "" {
				return nil, usageError{errors.New("--iface is required")}
			}
			for _, text := range args {
				if err := new(multicast.Group).UnmarshalText([]byte(text)); err != nil {
					return nil, usageError{err}
				}
			}
			change.Groups = args
			return of.ChangeMulticast(c.Context(), change)
		},
		text: func(c *cobra.Command, changed *api.MulticastChanged) {
			verb, n, unchanged := "forwarded to", changed.Added, "already"
			if remove {
				verb, n, unchanged = "no longer forwarded to", changed.Removed, "not before"
			}
			fmt.Fprintf(c.OutOrStdout(), "%s %s: %d", verb, changed.Interface, n)
			if changed.Unchanged > 0 {
				fmt.Fprintf(c.OutOrStdout(), "; %s: %d", unchanged, changed.Unchanged)
			}
			fmt.Fprintln(c.OutOrStdout())
		},
	}.complete(c)
}

func newMulticastList() *cobra.Command {
	var ifaces []string
	c := &cobra.Command{
		Use:   "list",
		Short: "Show forwarded multicast, and which interface wants which group",
		Long: `Shows the interfaces to which the running daemon forwards multicast, the groups
that they want, the packets sent there, and the copies that their filters
dropped. The rate is the false-positive rate of an interface's filter: the share
of unwanted groups that pass it, from the bits that are set now.`,
		Example: `  weir multicast list
  weir multicast list --iface eth1
  weir multicast list --json | jq -r '.interfaces[] | .name + " " + .groups[].group'`,
		Args: noArgs,
	}
	c.Flags().StringSliceVar(&ifaces, "iface", nil, "`interfaces` to show, joined by commas (default all)")
	return question[*api.Multicast]{
		ask: func(c *cobra.Command, of *client.Client, _ []string) (*api.Multicast, error) {
			m, err := of.Multicast(c.Context())
			if err != nil {
				return nil, err
			}
			return m, only(m, ifaces)
		},
		text: func(c *cobra.Command, m *api.Multicast) { printMulticast(c.OutOrStdout(), m) },
	}.complete(c)
}

// only leaves the interfaces of these names, unless there are none.
func only(m *api.Multicast, names []string) error {
	if len(names) == 0 {
		return nil
	}
	for _, name := range names {
		if !slices.ContainsFunc(m.Interfaces, func(i api.MulticastInterface) bool { return i.Name == name }) {
			return fmt.Errorf("multicast is not forwarded to an interface %s", name)
		}
	}
	m.Interfaces = slices.DeleteFunc(m.Interfaces, func(i api.MulticastInterface) bool { return !slices.Contains(names, i.Name) })
	return nil
}

func printMulticast(out io.Writer, m *api.Multicast) {
	count := func(n uint64) string { return humanize.Comma(int64(n)) }
	printRows(out, func(row func(name, format string, args ...any)) {
		row("groups", "%s of %s at most, at which filters err at a rate of %.1e", count(uint64(m.Groups)), count(uint64(m.MaxGroups)), m.Planned)
		row("copied", "%s packets", count(m.Copied))
		row("left to the stack", "%s packets, to groups that no interface wants", count(m.Left))
	})
	fmt.Fprintln(out)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	const figures = "%s\t%8s\t%13s\t%13s\t%8s\t%s\n"
	fmt.Fprintf(t, figures, "interface", "groups", "sent", "dropped", "rate", "")
	for _, i := range m.Interfaces {
		missing := ""
		switch {
		case !i.Configured:
			missing = "NOT CONFIGURED"
		case !i.Present:
			missing = "NOT THERE"
		}
		fmt.Fprintf(t, figures, i.Name, count(uint64(len(i.Groups))), count(i.Sent), count(i.Dropped), fmt.Sprintf("%.1e", i.FalsePositiveRate), missing)
	}
	t.Flush()
	for _, i := range m.Interfaces {
		if len(i.Groups) == 0 {
			continue
		}
		fmt.Fprintf(out, "\n%s\n", i.Name)
		for _, g := range i.Groups {
			var from []string
			if g.Configured {
				from = append(from, "configured")
			}
			if g.Added != nil {
				from = append(from, "manual, "+g.Added.Local().Format("2006-01-02 15:04:05"))
			}
			fmt.Fprintf(out, "  %-15s  %s\n", g.Group, strings.Join(from, "; "))
		}
	}
}
