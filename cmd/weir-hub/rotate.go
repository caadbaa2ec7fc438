package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"weir/cmd/terminal"
	"weir/control/fleet/authority"
)

// rotated says how far the replacement of the authority's certificate has come.
var rotated = map[authority.Step]string{
	authority.StepNone:  "the authority has one certificate: it is not being replaced",
	authority.StepTrust: "step 1 of 2: nodes and sites are to trust the next certificate",
	authority.StepIssue: "step 2 of 2: the next certificate issues, nodes and sites are to have certificates of it",
}

func newRotate() *cobra.Command {
	c := &cobra.Command{
		Use:   "rotate [--show]",
		Short: "Replace the certificate of the fleet's authority",
		Long: `Begins to replace the certificate and the key of the authority, which issues the
certificates of all nodes. The running hub goes on: it has all nodes trust the
next one, then have certificates of it, and then removes the former one. No file
of a node changes, and all connections stay.

A step waits for each node that is not revoked, and for sites, which are
enrolled anew in each of both: weir fleet status names them. Until the end, a
backup and tokens of before are good. After it they are not: make others.

With --show it changes nothing, and shows the step.`,
		Example: `  weir-hub rotate && weir fleet status
  weir-hub rotate --show`,
		Args: noArgs,
	}
	show := c.Flags().Bool("show", false, "show the step, and change nothing")
	asJSON := c.Flags().Bool("json", false, "print JSON")
	file := configFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		h, a, err := openedAsOwner(*file)
		if err != nil {
			return err
		}
		if !*show {
			if len(h.Broker.Servers) > 0 {
				return errors.New("the servers of a cluster have the former certificate in files of their own: the hub cannot replace it there")
			}
			if err := a.Rotate(); err != nil {
				return err
			}
		}
		if *asJSON {
			return terminal.PrintJSON(c.OutOrStdout(), map[string]authority.Step{"step": a.Rotation()})
		}
		fmt.Fprintln(c.OutOrStdout(), rotated[a.Rotation()])
		return nil
	}
	return c
}
