package main

import (
	"cmp"
	"fmt"

	"github.com/spf13/cobra"

	"weir/control/api"
)

func newReload() *cobra.Command {
	var socket string
	c := &cobra.Command{
		Use:   "reload",
		Short: "Read the configuration again and activate it",
		Long: `Makes the running daemon read its configuration again, with its files, and shows
what has changed. If anything is wrong, all of the old one stays active. A
daemon that was started with flags reads its lists again.

The exit code is 4 if the new configuration is active, but an interface that
exists cannot be filtered: that is retried.`,
		Example: `  weir check /etc/weir/weir.yaml   # first: find mistakes
  weir reload`,
		Args: noArgs,
	}
	socketFlag(c.Flags(), &socket)
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		r, err := api.Dial(socket).Reload(c.Context())
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
		for _, problem := range r.Unfiltered {
			fmt.Fprintln(c.ErrOrStderr(), "weir: the configuration is active, but", problem)
		}
		return unfiltered
	}
	return c
}
