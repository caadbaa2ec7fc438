package main

import (
	"cmp"

	"github.com/spf13/cobra"

	"weir/control/api/client"
)

// question is a command that asks the daemon, or the hub of a fleet, and prints the answer.
type question[T any] struct {
	hub  bool // the hub is asked
	ask  func(c *cobra.Command, of *client.Client, args []string) (T, error)
	text func(c *cobra.Command, answer T) // prints an answer, unless --json is given

	// outcome returns the error with which the command ends although it was answered; nil: none.
	outcome func(answer T) error
}

// complete completes a command by --socket, --json and what it does.
func (q question[T]) complete(c *cobra.Command) *cobra.Command {
	dial, socket := client.Dial, new(string)
	if q.hub {
		dial, socket = client.DialHub, hubFlag(c)
	} else {
		socketFlag(c.Flags(), socket)
	}
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		answer, err := q.ask(c, dial(*socket), args)
		if err != nil {
			return err
		}
		var outcome error
		if q.outcome != nil {
			outcome = q.outcome(answer)
		}
		if *asJSON {
			return cmp.Or(printJSON(c.OutOrStdout(), answer), outcome)
		}
		q.text(c, answer)
		return outcome
	}
	return c
}
