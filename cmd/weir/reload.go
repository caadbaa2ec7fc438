package main

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"weir/control/api"
	"weir/control/api/client"
	"weir/control/quantity"
)

func newReload() *cobra.Command {
	var socket string
	var within time.Duration
	c := &cobra.Command{
		Use:   "reload",
		Short: "Read the configuration again and activate it",
		Long: `Makes the running daemon read its configuration again, with its files, and shows
what has changed. If anything is wrong, all of the old one stays active. A
daemon that was started with flags reads its lists again.

With --confirm, the previous configuration is active again after that time,
unless weir confirm comes first: one that locks you out is rolled back by
itself. A restart before weir confirm rolls back at once. A file that was rolled
back is activated again by weir reload, or when it has changed, and not by a
restart. Files of lists are not rolled back.

The exit code is 4 if the new configuration is active, but an interface that it
names is not filtered: one that cannot be is retried, one that does not exist is
waited for.`,
		Example: `  weir check /etc/weir/weir.yaml   # first: find mistakes
  weir reload
  weir reload --confirm 60s && weir confirm   # from a new session`,
		Args: noArgs,
	}
	durationFlag(c.Flags(), &within, "confirm", 0, "`time` after which the previous configuration is active again, as in 60s, unless weir confirm comes first")
	socketFlag(c.Flags(), &socket)
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if c.Flags().Changed("confirm") && within <= 0 {
			return usageError{errors.New("--confirm 0s: want a time in which to confirm, as in 60s, or no --confirm to reload for good")}
		}
		client := client.Dial(socket)
		var r *api.Reloaded
		var err error
		if within == 0 {
			r, err = client.Reload(c.Context())
		} else {
			r, err = client.ReloadUnconfirmed(c.Context(), within)
		}
		if err != nil {
			return err
		}
		var unfiltered error
		if len(r.Unfiltered) > 0 {
			unfiltered = errUnfiltered
		}
		if *asJSON {
			return cmp.Or(printJSON(c.OutOrStdout(), r), unfiltered)
		}
		for _, change := range r.Changes {
			fmt.Fprintln(c.OutOrStdout(), change)
		}
		if len(r.Changes) == 0 {
			fmt.Fprintln(c.OutOrStdout(), "nothing has changed")
		}
		if within > 0 {
			fmt.Fprintf(c.OutOrStdout(), "active for %v: then the previous configuration is active again, unless `weir confirm` comes first\n", quantity.Duration(within))
		}
		for _, problem := range r.Unfiltered {
			fmt.Fprintln(c.ErrOrStderr(), "weir: the configuration is active, but", problem)
		}
		return unfiltered
	}
	return c
}

func newConfirm() *cobra.Command {
	var socket string
	c := &cobra.Command{
		Use:   "confirm",
		Short: "Keep the configuration that weir reload --confirm has activated",
		Long: `Keeps the configuration that weir reload --confirm has activated, which would be
rolled back otherwise. It fails if that has happened already.`,
		Example: `  weir confirm`,
		Args:    noArgs,
	}
	socketFlag(c.Flags(), &socket)
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := client.Dial(socket).Confirm(c.Context()); err != nil {
			return err
		}
		if *asJSON {
			return printJSON(c.OutOrStdout(), api.Confirmed{Confirmed: true})
		}
		fmt.Fprintln(c.OutOrStdout(), "confirmed: the configuration stays")
		return nil
	}
	return c
}
