package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"weir/control/api"
)

func newReload() *cobra.Command {
	var socket string
	c := &cobra.Command{
		Use:   "reload",
		Short: "Put the configuration in force as it is now",
		Long: `Has the running weir read its configuration again, and says what has changed. If
anything in it is wrong, all of the old one stays in force.`,
		Example: `  weir check /etc/weir/weir.yaml   # before, what is wrong with it
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
		if *asJSON {
			return printJSON(c.OutOrStdout(), r)
		}
		for _, change := range r.Changes {
			fmt.Fprintln(c.OutOrStdout(), change)
		}
		if len(r.Changes) == 0 {
			fmt.Fprintln(c.OutOrStdout(), "nothing has changed")
		}
		return nil
	}
	return c
}
