package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"weir/cmd/terminal"
	"weir/control/api"
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
	ask, socket := dial, new(string)
	if q.hub {
		ask, socket = dialHub, hubFlag(c)
	} else {
		socketFlag(c.Flags(), socket)
	}
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		answer, err := q.ask(c, ask(c, *socket), args)
		if err != nil {
			return err
		}
		var outcome error
		if q.outcome != nil {
			outcome = q.outcome(answer)
		}
		if *asJSON {
			return cmp.Or(terminal.PrintJSON(c.OutOrStdout(), answer), outcome)
		}
		q.text(c, answer)
		return outcome
	}
	return c
}

// slowAfter is how long a command waits for an answer before it says so.
var slowAfter = 5 * time.Second

// dial returns a client of the daemon for a command, which says on standard error what it
// waits for.
func dial(c *cobra.Command, socket string) *client.Client {
	return waiting(c, client.Dial(socket), func(s *api.Status, err error) string {
		starting := new(api.StartingError)
		switch {
		case errors.As(err, &starting):
			return err.Error()
		case err != nil:
			return "the daemon at " + socket + " answers nothing, not even its status: it may be stopped, or the host overloaded"
		case s.Busy != nil:
			return fmt.Sprintf("the daemon is busy since %s: %v", s.Busy.Since.Format(time.TimeOnly), s.Busy)
		}
		return "the daemon at " + socket + " has not answered yet"
	})
}

// dialHub is dial for the hub of a fleet.
func dialHub(c *cobra.Command, socket string) *client.Client {
	of := connectHub(c, socket)
	return waiting(c, of, func(*api.Status, error) string { return "the hub at " + of.Address() + " has not answered yet" })
}

// waiting has a client say why a command waits.
func waiting(c *cobra.Command, of *client.Client, why func(*api.Status, error) string) *client.Client {
	of.OnSlow(slowAfter, func(ctx context.Context, s *api.Status, err error) {
		if text := why(s, err); ctx.Err() == nil {
			fmt.Fprintf(c.ErrOrStderr(), "weir: still waiting: %s\n", text)
		}
	})
	return of
}
