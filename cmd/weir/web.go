package main

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"weir/control/api"
	"weir/control/guard"
)

func newWeb() *cobra.Command {
	var socket string
	var readOnly, end bool
	c := &cobra.Command{
		Use:   "console [--read-only]",
		Short: "Open the console, a page for browsers",
		Long: `Prints a URL that opens the console of the running daemon in a browser: once,
and within five minutes. The session lasts twelve hours, or until it is ended
there, or by --end, or weir stops. It may block, allow and undo that; with
--read-only, only look.

console.listen in weir.yaml switches the console on. From another host, forward
its port: ssh -L 9479:127.0.0.1:9479 HOST.`,
		Example: `  weir console
  weir console --read-only
  weir console --end          # ends all sessions`,
		Args: noArgs,
	}
	f := c.Flags()
	f.BoolVar(&readOnly, "read-only", false, "a session that may not change anything")
	f.BoolVar(&end, "end", false, "end all sessions, and open none")
	socketFlag(f, &socket)
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if readOnly && end {
			return usageError{errors.New("--read-only and --end exclude each other")}
		}
		out := c.OutOrStdout()
		if end {
			e, err := api.Dial(socket).EndConsole(c.Context())
			switch {
			case err != nil:
				return err
			case *asJSON:
				return printJSON(out, e)
			}
			_, err = fmt.Fprintf(out, "ended: %s\n", plural(e.Sessions, "session", "sessions"))
			return err
		}
		o, err := api.Dial(socket).OpenConsole(c.Context(), api.ConsoleRequest{ReadOnly: readOnly, SSH: guard.SSHConnection()})
		switch {
		case err != nil:
			return err
		case *asJSON:
			return printJSON(out, o)
		}
		printOpened(out, o, time.Now())
		return nil
	}
	return c
}

func printOpened(out io.Writer, o *api.ConsoleOpened, now time.Time) {
	may := "may change entries"
	if o.ReadOnly {
		may = "may only read"
	}
	fmt.Fprintf(out, "%s\nIt opens a session that %s, once, and expires %s.\n", o.URL, may, relative(&o.Expires, now))
}
