package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"weir/control/api"
	"weir/control/api/client"
	"weir/control/ruleset"
)

func newEnforce() *cobra.Command {
	var change api.EnforceChange
	var after time.Duration
	c := &cobra.Command{
		Use:   "enforce LIST [--after TIME] [--off]",
		Short: "End the trial of a list, or put it on trial",
		Long: `Has the running daemon enforce a list that is on trial: what its entries match
was counted as would-block, and is dropped from now on. With --off the list is
put on trial. Other lists, and what is counted, stay as they are.

With --after, the list is on trial until then, and enforced by itself. If no
daemon runs at that time, the next one enforces it when it starts.

The command overrides the key enforce of the list in the configuration. That
outlasts reloads and, if there is a state_dir, restarts and crashes. It ends
when the key changes, or the list is removed from the configuration. Manual
entries that would cut off this host, or your SSH session, are not enforced
without --force, and neither are lists with addresses with which this host has
conversed in the last 24 hours, as "weir collateral LIST" shows them. weir
status, lists, explain and audit show what is on trial.`,
		Example: `  weir enforce drop               # the trial was long enough
  weir enforce drop --after 24h   # unless --off comes first
  weir enforce drop --off         # it has caught somebody innocent`,
		Args: theArgs("LIST"), ValidArgsFunction: completeLists(1),
	}
	trialFlags(c, &change, &after)
	c.Flags().BoolVar(&change.Force, "force", false, "enforce the list even if that cuts off this host, you, or whom it converses with")
	return question[*api.Enforced]{
		ask: func(c *cobra.Command, of *client.Client, args []string) (*api.Enforced, error) {
			if err := checkAfter(c, after); err != nil {
				return nil, err
			}
			change.After, change.SSH = after.Seconds(), ruleset.SSHConnection()
			return of.Enforce(c.Context(), args[0], change)
		},
		text: func(c *cobra.Command, e *api.Enforced) { fmt.Fprintln(c.OutOrStdout(), e) },
	}.complete(c)
}

// trialFlags are the flags of a change of a trial.
func trialFlags(c *cobra.Command, change *api.EnforceChange, after *time.Duration) {
	durationFlag(c.Flags(), after, "after", 0, "`time` until the list is enforced by itself, as in 24h; 0: at once")
	c.Flags().BoolVar(&change.Off, "off", false, "put the list on trial; with --after until then")
}

// checkAfter returns what is wrong with the flag --after.
func checkAfter(c *cobra.Command, after time.Duration) error {
	if after < 0 || after == 0 && c.Flags().Changed("after") {
		return usageError{errors.New("--after: want a time from now on, as in 24h, or leave it out")}
	}
	return nil
}

func newFleetEnforce() *cobra.Command {
	var change api.EnforceChange
	var after time.Duration
	c := &cobra.Command{
		Use:   "enforce LIST [--after TIME] [--off]",
		Short: "End the trial of a list on all nodes, or put it on trial",
		Long: `Has all nodes enforce a list of the hub that is on trial: what its entries
match was counted as would-block, and is dropped from now on. With --off the
list is put on trial. Its contents, and rollouts of them, stay as they are.

With --after, the list is on trial until then, and the hub has it enforced by
itself, or when it starts if it does not run at that time. A node that does not
hear the hub keeps the list as it is until it does.

The command overrides the key enforce of the list in hub.yaml, until the key
changes, or the list is removed there. Nodes of earlier versions and nodes with
mode: approx cannot have a list on trial: they refuse the list, and do not
filter by it at all; weir fleet status names them. It also shows which lists are
on trial, and weir fleet audit who has put them on trial.

A list with addresses with which a node has conversed in the last 24 hours is
not enforced without --force, and its trial does not end by itself. "weir fleet
status" shows such addresses. Only nodes with the key collateral in weir.yaml
report them; a warning says how many nodes do not.`,
		Example: `  weir fleet enforce drop               # the trial was long enough
  weir fleet enforce drop --after 24h   # unless --off comes first
  weir fleet enforce drop --off         # it has caught somebody innocent`,
		Args: theArgs("LIST"),
	}
	trialFlags(c, &change, &after)
	c.Flags().BoolVar(&change.Force, "force", false, "enforce the list even if that cuts off whom nodes converse with")
	return question[*api.FleetEnforced]{
		hub: true,
		ask: func(c *cobra.Command, of *client.Client, args []string) (*api.FleetEnforced, error) {
			if err := checkAfter(c, after); err != nil {
				return nil, err
			}
			change.After = after.Seconds()
			return of.EnforceFleet(c.Context(), args[0], change)
		},
		text: func(c *cobra.Command, e *api.FleetEnforced) {
			fmt.Fprintln(c.OutOrStdout(), &e.Enforced)
			for _, w := range e.Warnings {
				fmt.Fprintln(c.ErrOrStderr(), "weir: warning:", w)
			}
			if !e.Published {
				fmt.Fprintln(c.OutOrStdout(), notPublished)
			}
		},
		outcome: func(e *api.FleetEnforced) error { return unlessPublished(e.Published) },
	}.complete(c)
}
