package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weir/cmd/terminal"
	"weir/control/api"
	"weir/control/fleet/authority"
	"weir/control/quantity"
)

func newOperator() *cobra.Command {
	c := &cobra.Command{
		Use:   "operator COMMAND",
		Short: "Let people and programs ask the hub from other hosts",
		Long: `Lets an operator use weir fleet on another host, with a token. The hub answers
where hosts join: join in its configuration. The audit names the operator. The
hub keeps no secret of a token.

Roles: read sees everything, and asks nodes; block also changes manual entries
and what is dropped of floods; publish does everything else that weir fleet does;
standby copies the hub's keys and state, and so can be the hub: weir-hub follow.`,
		Example: `  weir-hub operator create alice --role block
  weir-hub operator list`,
		Args: noCommand,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newOperatorCreate(), newOperatorList(), newOperatorRevoke())
	return c
}

// operatorMade is a new operator, in JSON.
type operatorMade struct {
	authority.Operator
	URL     string `json:"url"`
	Text    string `json:"text"`
	Command string `json:"command"`
}

func newOperatorCreate() *cobra.Command {
	var o authority.Operator
	ttl := quantity.Duration(90 * 24 * time.Hour)
	c := &cobra.Command{
		Use:   "create NAME --role ROLE [--ttl TIME]",
		Short: "Make a token for an operator",
		Long: `Makes a token, and prints the command to run as the operator, on the other host.
A second token of the same operator does not end the first one.`,
		Example: "  weir-hub operator create alice --role block\n  weir-hub operator create ticker --role read --ttl 365d --json",
		Args:    exactly("NAME"),
	}
	c.Flags().StringVar(&o.Role, "role", api.RoleRead, "`role`: "+strings.Join(api.Roles, ", "))
	c.Flags().TextVar(&ttl, "ttl", ttl, "`time` until the token ends")
	asJSON := c.Flags().Bool("json", false, "print JSON")
	file := configFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := checkTTL(ttl); err != nil {
			return err
		}
		if !slices.Contains(api.Roles, o.Role) {
			return usageError{fmt.Errorf("--role %q: want %s", o.Role, strings.Join(api.Roles, ", "))}
		}
		h, a, err := openedAsOwner(*file)
		if err != nil {
			return err
		}
		if h.Join.Listen == "" {
			return fmt.Errorf("%s: the hub listens nowhere for operators: add join: {listen: 0.0.0.0:4223}, and restart it", *file)
		}
		o.Name, o.Expires = args[0], time.Now().Add(time.Duration(ttl)).UTC()
		made := operatorMade{URL: h.JoinURL()}
		if made.Operator, made.Text, err = a.NewOperator(o); err != nil {
			return usageError{err}
		}
		made.Command = "weir fleet login " + made.URL + " " + made.Text
		if o.Role == api.RoleStandby {
			made.Command = "weir hub follow " + made.URL + " " + made.Text + " /root/hub.tar.gz"
		}
		if *asJSON {
			return terminal.PrintJSON(c.OutOrStdout(), made)
		}
		fmt.Fprintf(c.ErrOrStderr(), "operator %s: role %s, until %s. On another host:\n", made.Name, made.Role, made.Expires.Format(time.RFC3339))
		fmt.Fprintln(c.OutOrStdout(), made.Command)
		return nil
	}
	return c
}

func newOperatorList() *cobra.Command {
	c := &cobra.Command{
		Use:   "list",
		Short: "Show operators",
		Long: `Shows the tokens of operators, from the directory of keys: the hub need not run.
Those that ended more than 30 days ago go when another one is made.`,
		Example: "  weir-hub operator list",
		Args:    noArgs,
	}
	shows(c, "operators", (*authority.Authority).Operators, func(o authority.Operator) string {
		return fmt.Sprintf("%s  %-8s %-26s %s", o.ID, o.Role, until(o.Ended(time.Now()), o.Expires), o.Name)
	})
	return c
}

func newOperatorRevoke() *cobra.Command {
	c := &cobra.Command{
		Use:     "revoke NAME",
		Short:   "Let an operator ask nothing any more",
		Long:    `Revokes all tokens of an operator. The hub refuses the next request.`,
		Example: "  weir-hub operator revoke alice",
		Args:    exactly("NAME"),
	}
	asJSON := c.Flags().Bool("json", false, "print JSON")
	file := configFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		_, a, err := openedAsOwner(*file)
		if err != nil {
			return err
		}
		revoked, err := a.RevokeOperator(args[0])
		if err != nil {
			return err
		}
		if *asJSON {
			return terminal.PrintJSON(c.OutOrStdout(), map[string]any{"revoked": args[0], "tokens": revoked})
		}
		fmt.Fprintf(c.OutOrStdout(), "revoked: operator %s, tokens: %d\n", args[0], revoked)
		return nil
	}
	return c
}
