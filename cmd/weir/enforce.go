package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"weir/control/api"
	"weir/control/api/client"
	"weir/control/guard"
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

The command counts whatever the configuration says (enforce: true or false). It
outlasts reloads and, if there is a state_dir, restarts and crashes, and ends
when enforce of the list changes in the configuration, or the list goes. Manual
entries that would cut off this host, or your SSH session, are not enforced
without --force, and neither are lists with addresses with which this host has
conversed in the last 24 hours, as "weir collateral LIST" shows them. weir
status, lists, explain and audit show what is on trial.`,
		Example: `  weir enforce drop               # the trial was long enough
  weir enforce drop --after 24h   # unless --off comes first
  weir enforce drop --off         # it has caught somebody innocent`,
		Args: theArgs("LIST"), ValidArgsFunction: completeLists(1),
	}
	durationFlag(c.Flags(), &after, "after", 0, "`time` until the list is enforced by itself, as in 24h; 0: at once")
	c.Flags().BoolVar(&change.Off, "off", false, "put the list on trial; with --after until then")
	c.Flags().BoolVar(&change.Force, "force", false, "enforce the list even if that cuts off this host, you, or whom it converses with")
	return question[*api.Enforced]{
		ask: func(c *cobra.Command, of *client.Client, args []string) (*api.Enforced, error) {
			if after < 0 || after == 0 && c.Flags().Changed("after") {
				return nil, usageError{errors.New("--after: want a time from now on, as in 24h, or leave it out")}
			}
			change.After, change.SSH = after.Seconds(), guard.SSHConnection()
			return of.Enforce(c.Context(), args[0], change)
		},
		text: func(c *cobra.Command, e *api.Enforced) { fmt.Fprintln(c.OutOrStdout(), e) },
	}.complete(c)
}
