package main

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"weir/control/api"
	"weir/control/api/client"
	"weir/control/quantity"
)

func newReload() *cobra.Command {
	var within time.Duration
	c := &cobra.Command{
		Use:   "reload",
		Short: "Read the configuration again and activate it",
		Long: `Makes the running daemon read its configuration again, with its files, and shows
what has changed. If anything is wrong, all of the old one stays active. A
daemon that was started with flags reads its lists again.

With --confirm 60s, the daemon returns to the previous configuration after 60
seconds, unless you run weir confirm before: so a configuration that locks you
out does not stay. A restart before weir confirm returns to the previous one at
once. After that, weir reload activates the new file again, and so does a
restart once the file has changed. Files of lists are not rolled back.

The exit code is 4 if the new configuration is active, but an interface that it
names is not filtered. The daemon goes on trying to attach to such an interface,
and attaches to one that does not exist yet when it appears.`,
		Example: `  weir check /etc/weir/weir.yaml   # first: find mistakes
  weir reload
  weir reload --confirm 60s && weir confirm   # from a new session`,
		Args: noArgs,
	}
	durationFlag(c.Flags(), &within, "confirm", 0, "`time` after which the previous configuration is active again, as in 60s, unless weir confirm comes first")
	return question[*api.Reloaded]{
		ask: func(c *cobra.Command, of *client.Client, _ []string) (*api.Reloaded, error) {
			if c.Flags().Changed("confirm") && within <= 0 {
				return nil, usageError{errors.New("--confirm 0s: want a time in which to confirm, as in 60s, or no --confirm to reload for good")}
			}
			if within == 0 {
				return of.Reload(c.Context())
			}
			return of.ReloadUnconfirmed(c.Context(), within)
		},
		text: func(c *cobra.Command, r *api.Reloaded) {
			printChanges(c.OutOrStdout(), r.Changes)
			if within > 0 {
				fmt.Fprintf(c.OutOrStdout(), "active for %v: then the previous configuration is active again, unless `weir confirm` comes first\n", quantity.Duration(within))
			}
			for _, problem := range r.Unfiltered {
				fmt.Fprintln(c.ErrOrStderr(), "weir: the configuration is active, but", problem)
			}
		},
		outcome: func(r *api.Reloaded) error {
			if len(r.Unfiltered) > 0 {
				return errUnfiltered
			}
			return nil
		},
	}.complete(c)
}

// printChanges prints what has changed in a configuration, a line each.
func printChanges(out io.Writer, changes []string) {
	for _, change := range changes {
		fmt.Fprintln(out, change)
	}
	if len(changes) == 0 {
		fmt.Fprintln(out, "nothing has changed since the files were read last")
	}
}

func newConfirm() *cobra.Command {
	c := &cobra.Command{
		Use:   "confirm",
		Short: "Keep the configuration that weir reload --confirm has activated",
		Long: `Keeps the configuration that weir reload --confirm has activated, which would be
rolled back otherwise. It fails if that has happened already.`,
		Example: `  weir confirm`,
		Args:    noArgs,
	}
	return question[api.Confirmed]{
		ask: func(c *cobra.Command, of *client.Client, _ []string) (api.Confirmed, error) {
			return api.Confirmed{Confirmed: true}, of.Confirm(c.Context())
		},
		text: func(c *cobra.Command, _ api.Confirmed) {
			fmt.Fprintln(c.OutOrStdout(), "confirmed: the configuration stays")
		},
	}.complete(c)
}
