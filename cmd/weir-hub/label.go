package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"weir/cmd/terminal"
	"weir/control/config"
	"weir/control/fleet/authority"
	"weir/control/fleet/hub"
)

func newLabel() *cobra.Command {
	var add, remove []string
	c := &cobra.Command{
		Use:   "label NODE... [--add NAME,...] [--remove NAME,...] [--yes]",
		Short: "Change the labels of nodes",
		Long: `Adds labels to nodes, and removes others. A running hub has the nodes obey within
a second or two, without a restart or another file there; one that is away obeys
when it comes back. weir fleet status names nodes that do not obey. With neither
option it prints the labels.

A wave of rollouts that is left without nodes needs --yes: changes wait for such
nodes.`,
		Example: "  weir-hub label edge-1 edge-2 --add canary\n  weir-hub label edge-3 --remove canary --json",
		Args: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError{errors.New("want NODE")}
			}
			return nil
		},
	}
	c.Flags().StringSliceVar(&add, "add", nil, "`names` to add, joined by commas")
	c.Flags().StringSliceVar(&remove, "remove", nil, "`names` to remove, joined by commas")
	yes := c.Flags().Bool("yes", false, "also where a wave of rollouts is left without nodes")
	file := configFlag(c)
	asJSON := c.Flags().Bool("json", false, "print JSON")
	c.RunE = func(c *cobra.Command, args []string) error {
		h, a, err := openedAsOwner(*file)
		if err != nil {
			return err
		}
		members, err := a.Members()
		if err != nil {
			return err
		}
		for _, name := range args { // all or none
			if m, ok := members[name]; !ok || !m.Revoked.IsZero() {
				return usageError{fmt.Errorf("no node %q is enrolled", name)}
			}
		}
		left := fillsWaves(h, members, func(m map[string]authority.Member) {
			for _, name := range args {
				of := m[name]
				of.Labels = of.Relabeled(add, remove)
				m[name] = of
			}
		})
		if left != nil && !*yes {
			return left
		}
		type labeled struct {
			Node   string   `json:"node"`
			Labels []string `json:"labels"`
		}
		all := []labeled{}
		for _, name := range args {
			of := members[name].Labels
			if len(add)+len(remove) > 0 {
				if of, err = a.Label(name, add, remove); err != nil {
					return err
				}
			}
			all = append(all, labeled{name, append([]string{}, of...)})
		}
		if *asJSON {
			return terminal.PrintJSON(c.OutOrStdout(), map[string]any{"nodes": all})
		}
		for _, l := range all {
			fmt.Fprintf(c.OutOrStdout(), "%-24s %s\n", l.Node, strings.Join(l.Labels, ","))
		}
		return nil
	}
	return c
}

// fillsWaves returns which wave of rollouts a change of the members would leave without nodes.
func fillsWaves(h *config.Hub, members map[string]authority.Member, change func(map[string]authority.Member)) error {
	before := hub.EmptyWaves(h, members)
	change(members)
	for _, text := range hub.EmptyWaves(h, members) {
		if !slices.Contains(before, text) {
			return usageError{fmt.Errorf("after this, %s: enroll or label another node first, or add --yes", text)}
		}
	}
	return nil
}
