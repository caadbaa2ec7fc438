package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"weir/cmd/terminal"
	"weir/control/api"
	"weir/control/api/client"
	"weir/control/audit"
	"weir/control/quantity"
	"weir/control/queue"
)

func newAudit() *cobra.Command {
	var socket string
	c := &cobra.Command{
		Use:   "audit",
		Short: "Show who changed what, when and why",
		Long: `Shows the last changes of entries, of the configuration and of modes in the
running daemon, by commands, the console, signals and expiry, the latest first,
also those that were refused, and starts, stops and weir detach. "alice as root"
means alice, by sudo. Where no daemon answers, its file is read.

With a state directory, those before a restart are among them, and all are in
audit.log there, a line of JSON each.`,
		Example: `  weir audit
  weir audit --since 2h
  weir audit --limit 200 --json | jq -r '.changes[] | select(.list == "manual")'`,
		Args: noArgs,
	}
	socketFlag(c.Flags(), &socket)
	showAudit(c, func(ctx context.Context, limit int) (*api.Audit, error) {
		a, err := client.Dial(socket).Audit(ctx, limit)
		if !lacksAnswer(err) {
			return a, err
		}
		q, unknown := queueOf(socket)
		if unknown != nil {
			return nil, err
		}
		return readAudit(c, q, limit)
	})
	return c
}

// readAudit reads the audit that a daemon has left, with what was done since.
func readAudit(c *cobra.Command, q queue.Queue, limit int) (*api.Audit, error) {
	file := filepath.Join(q.StateDir(), audit.File)
	if f, err := os.Open(file); err == nil {
		f.Close()
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	fmt.Fprintf(c.ErrOrStderr(), "weir: the daemon does not answer: from %s\n", file)
	log := slog.New(slog.NewTextHandler(c.ErrOrStderr(), nil))
	a := &api.Audit{Changes: audit.Read(q.StateDir(), limit, log)}
	names, err := q.Waiting()
	for _, name := range names {
		if note, bad := q.Read(name); bad == nil && note.Note != nil {
			a.Changes = append(a.Changes, *note.Note)
		}
	}
	slices.SortStableFunc(a.Changes, func(x, y api.AuditRecord) int { return y.Time.Compare(x.Time) })
	a.Changes = a.Changes[:min(limit, len(a.Changes))]
	return a, err
}

// showAudit makes a command show the audit of a daemon or a hub.
func showAudit(c *cobra.Command, ask func(context.Context, int) (*api.Audit, error)) {
	limit := c.Flags().Int("limit", api.DefaultAudit, fmt.Sprintf("`number` of changes to show, at most %d", api.MaxAudit))
	var since time.Duration
	durationFlag(c.Flags(), &since, "since", 0, "show the changes of this `time`, as in 2h (default: all)")
	asJSON := jsonFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		limited, timed := c.Flags().Changed("limit"), c.Flags().Changed("since")
		switch {
		case *limit < 1 || *limit > api.MaxAudit:
			return usageError{fmt.Errorf("--limit %d: want 1 to %d", *limit, api.MaxAudit)}
		case timed && since <= 0:
			return usageError{errors.New("--since: want a time, as in 2h")}
		case timed && !limited:
			*limit = api.MaxAudit
		}
		a, err := ask(c.Context(), *limit)
		if err == nil && timed {
			after := time.Now().Add(-since)
			a.Changes = slices.DeleteFunc(a.Changes, func(r api.AuditRecord) bool { return r.Time.Before(after) })
			if len(a.Changes) == api.MaxAudit {
				fmt.Fprintf(c.ErrOrStderr(), "weir: there may be more: these are the last %d changes\n", api.MaxAudit)
			}
		}
		switch {
		case err != nil:
			return err
		case *asJSON:
			return terminal.PrintJSON(c.OutOrStdout(), a)
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
	// What and why come last, so that a long one widens no other row.
	const row = "%s\t%s\t%s\t%s\t%s\n"
	fmt.Fprintf(t, row, "time", "by", "change", "list", "what: reason")
	for _, r := range changes {
		what := r.What()
		if r.TTL > 0 {
			what = strings.TrimSpace(fmt.Sprintf("%s %s %v", what, r.Lasting(), quantity.Duration(r.TTL*float64(time.Second))))
		}
		if why := r.Why(); what == "" {
			what = why
		} else if why != "" {
			what += ": " + why
		}
		fmt.Fprintf(t, row, r.Time.Local().Format("2006-01-02 15:04:05"), r.Who(), r.Change, r.List+r.Interface, what)
	}
	return t.Flush()
}
