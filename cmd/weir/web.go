package main

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"weir/cmd/terminal"
	"weir/control/api"
	"weir/control/api/client"
	"weir/control/ruleset"
)

func newWeb() *cobra.Command {
	var socket string
	c := &cobra.Command{
		Use:   "console [--read-only]",
		Short: "Open the console, a page for browsers",
		Long: `Prints a URL that opens the console of the running daemon in a browser. It
works once, within five minutes. The session lasts twelve hours, also through a
restart if there is a state directory, unless it is ended in the browser or by
--end. In it, you may block, allow and undo that; with --read-only, you may only
look.

console.listen in weir.yaml switches the console on. From another host, forward
its port: ssh -L 9479:127.0.0.1:9479 HOST.`,
		Example: `  weir console
  weir console --read-only
  weir console --end          # ends all sessions`,
		Args: noArgs,
	}
	socketFlag(c.Flags(), &socket)
	openConsole(c, func() *client.Client { return client.Dial(socket) })
	return c
}

func newFleetConsole() *cobra.Command {
	c := &cobra.Command{
		Use:   "console [--read-only]",
		Short: "Open the hub's console, a page for browsers",
		Long: `Prints a URL that opens the console of the running hub in a browser: nodes,
which versions they have, rollouts, and the largest flows of all nodes together.
It opens once, within five minutes. The session lasts twelve hours, also through
a restart of the hub, unless it is ended there or by --end. It may block and
allow on all nodes and steer rollouts; with --read-only, only look.

console.listen in hub.yaml switches the console on.`,
		Example: `  weir fleet console
  weir fleet console --read-only`,
		Args: noArgs,
	}
	socket := hubFlag(c)
	openConsole(c, func() *client.Client { return connectHub(c, *socket) })
	return c
}

// openConsole has a command open a console.
func openConsole(c *cobra.Command, dial func() *client.Client) {
	f := c.Flags()
	readOnly := f.Bool("read-only", false, "a session that may not change anything")
	end := f.Bool("end", false, "end all sessions, and open none")
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if *readOnly && *end {
			return usageError{errors.New("--read-only and --end exclude each other")}
		}
		out := c.OutOrStdout()
		if *end {
			e, err := dial().EndConsole(c.Context())
			switch {
			case err != nil:
				return err
			case *asJSON:
				return terminal.PrintJSON(out, e)
			}
			_, err = fmt.Fprintf(out, "ended: %s\n", plural(e.Sessions, "session", "sessions"))
			return err
		}
		o, err := dial().OpenConsole(c.Context(), api.ConsoleRequest{ReadOnly: *readOnly, SSH: ruleset.SSHConnection()})
		switch {
		case err != nil:
			return err
		case *asJSON:
			return terminal.PrintJSON(out, o)
		}
		printOpened(out, o, time.Now())
		return nil
	}
}

func printOpened(out io.Writer, o *api.ConsoleOpened, now time.Time) {
	may := "may change entries"
	if o.ReadOnly {
		may = "may only read"
	}
	fmt.Fprintf(out, "%s\nIt opens a session that %s, once, and expires %s.\n", o.URL, may, relative(&o.Expires, now))
}
