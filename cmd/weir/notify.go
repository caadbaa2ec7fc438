package main

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"weir/control/api"
	"weir/control/api/client"
)

func newNotify() *cobra.Command {
	c := &cobra.Command{
		Use:   "notify",
		Short: "Test the receivers of notifications",
		Long: `The daemon sends events to the receivers that the configuration names under
notify: webhooks, commands and syslog servers. Events are heavy hitters,
failures of feeds and interfaces, refused changes and surges of drops.`,
		Example: `  weir notify test`,
		Args:    noArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newNotifyTest())
	return c
}

func newNotifyTest() *cobra.Command {
	c := &cobra.Command{
		Use:   "test [NAME]",
		Short: "Send a test event, and show what the receivers answer",
		Long: `Makes the running daemon send a test event to all receivers of notifications, or
to one, and shows what they answer. The event does not wait behind others, and
is not repeated.

The exit code is 1 if it was not delivered to one of them.`,
		Example: `  weir notify test
  weir notify test pager
  weir notify test --json | jq '.targets[] | select(.delivered | not)'`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usageError{errors.New("want the name of one receiver, or none for all")}
			}
			return nil
		},
	}
	return question[api.NotifyTests]{
		ask: func(c *cobra.Command, of *client.Client, args []string) (api.NotifyTests, error) {
			name := ""
			if len(args) > 0 {
				name = args[0]
			}
			tested, err := of.TestNotify(c.Context(), name)
			return api.NotifyTests{Targets: tested}, err
		},
		text: func(c *cobra.Command, tested api.NotifyTests) { printNotifyTests(c.OutOrStdout(), tested.Targets) },
		outcome: func(tested api.NotifyTests) error {
			for _, t := range tested.Targets {
				if !t.Delivered {
					return errors.New("the test event was not delivered everywhere")
				}
			}
			return nil
		},
	}.complete(c)
}

func printNotifyTests(out io.Writer, tested []api.NotifyTested) {
	for _, t := range tested {
		took := time.Duration(t.Seconds * float64(time.Second)).Round(time.Millisecond)
		outcome, text := "delivered to", t.Answer
		if !t.Delivered {
			outcome, text = "FAILED:", t.Error
		}
		fmt.Fprintf(out, "%s: %s %s in %v", t.Target, outcome, t.To, took)
		if text != "" {
			fmt.Fprintf(out, ": %s", text)
		}
		if t.Waiting > 0 {
			fmt.Fprintf(out, " (other events that wait: %d)", t.Waiting)
		}
		fmt.Fprintln(out)
	}
}
