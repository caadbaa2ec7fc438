package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"weir/control/api"
)

func newAudit() *cobra.Command {
	var socket string
	c := &cobra.Command{
		Use:   "audit",
		Short: "Show who changed what, when and why",
		Long: `Shows the last changes of entries, of the configuration and of modes in the
running daemon, by commands, the console, signals and expiry, the latest first.

With a state directory, those before a restart are among them, and all are in
audit.log there, a line of JSON each.`,
		Example: `  weir audit
  weir audit --limit 200 --json | jq -r '.changes[] | select(.list == "manual")'`,
		Args: noArgs,
	}
	socketFlag(c.Flags(), &socket)
	showAudit(c, func() *api.Client { return api.Dial(socket) })
	return c
}

// showAudit makes a command show the audit of a daemon or a hub.
func showAudit(c *cobra.Command, dial func() *api.Client) {
	limit := c.Flags().Int("limit", api.DefaultAudit, fmt.Sprintf("`number` of changes to show, at most %d", api.MaxAudit))
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if *limit < 1 || *limit > api.MaxAudit {
			return usageError{fmt.Errorf("--limit %d: want 1 to %d", *limit, api.MaxAudit)}
		}
		a, err := dial().Audit(c.Context(), *limit)
		switch {
		case err != nil:
			return err
		case *asJSON:
			return printJSON(c.OutOrStdout(), a)
		}
		return printAudit(c.OutOrStdout(), a.Changes)
	}
}

func printAudit(out io.Writer, changes []api.AuditRecord) error {
	if len(changes) == 0 {
		_, err := fmt.Fprintln(out, "no change was made")
		return err
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	const row = "%s\t%s\t%s\t%s\t%s\t%s\n"
	fmt.Fprintf(t, row, "time", "by", "change", "list", "what", "reason")
	for _, r := range changes {
		what := r.What()
		if r.TTL > 0 {
			what += " for " + time.Duration(r.TTL*float64(time.Second)).String()
		}
		fmt.Fprintf(t, row, r.Time.Local().Format("2006-01-02 15:04:05"), r.Who(), r.Change, r.List+r.Interface, what, r.Why())
	}
	return t.Flush()
}
